-- 0077 size of trace: a submit in SQL counts the trace context among the bytes of its headers, as the clients do.

-- As in 0074, with the limit.
CREATE OR REPLACE FUNCTION submit_traced(headers bytea, options jsonb, due_us bigint) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
DECLARE
    parent text := options ->> 'traceparent';
    state  text := options ->> 'tracestate';
    fields bytea;
    most   integer;
BEGIN
    IF parent IS NULL AND state IS NULL THEN
        RETURN headers;
    ELSIF jsonb_typeof(options -> 'traceparent') IS DISTINCT FROM 'string'
          OR parent !~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' OR parent ~ '^00-0{32}' OR parent ~ '-0{16}-' THEN
        PERFORM submit_refuse(format('''traceparent'' is no W3C trace context: %s', left(coalesce(options -> 'traceparent', 'null')::text, 100)),
                              'such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01');
    ELSIF state IS NOT NULL AND (jsonb_typeof(options -> 'tracestate') <> 'string' OR length(state) > 512 OR state !~ '^[ !#-[\]-~]*$') THEN
        PERFORM submit_refuse('''tracestate'' must be at most 512 printable ASCII characters without quotes and backslashes, not '
                              || left((options -> 'tracestate')::text, 100));
    END IF;
    fields := CASE WHEN headers = ''::bytea THEN '{'::bytea
                   ELSE substring(headers FROM 1 FOR octet_length(headers) - 1) || ','::bytea END
              || convert_to(concat_ws(',', '"traceparent":"' || parent || '"', '"tracestate":"' || nullif(state, '') || '"',
                                      CASE WHEN due_us > 0 THEN '"trace_linked":true' END) || '}', 'UTF8');
    SELECT r.headers_bytes INTO STRICT most FROM submit_rule AS r;
    IF octet_length(fields) > most THEN
        PERFORM submit_refuse(format('tags, metadata and options have %s bytes together, the limit is %s', octet_length(fields), most),
                              'put large data into the arguments or a store of its own');
    END IF;
    RETURN fields;
END
$$;
