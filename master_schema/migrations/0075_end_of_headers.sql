-- 0075 end of headers: the trace context of a step is looked for at the end of its headers, where it stands.

-- As in 0074, where a field of that name in the metadata was taken for it. Only the tenant follows.
CREATE OR REPLACE FUNCTION untraced(headers bytea) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT regexp_replace(convert_from(headers, 'UTF8'),
                          ',"traceparent":"[^"]*"(?:,"tracestate":"[^"]*")?(?:,"trace_linked":true)?((?:,"tenant":\["[^"]*"\])?\})$', '\1')
$$;
