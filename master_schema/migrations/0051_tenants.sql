-- 0051 tenants: the tenant of a job, from its headers.

-- NULL without one. Headers are JSON: quotes in texts are escaped, and no other field is a list under this name, so nothing
-- else has these bytes. Names are ASCII without quotes (model.tenant), so the bytes are the name.
CREATE FUNCTION tenant_of(headers bytea) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE WHEN position('"tenant":["'::bytea IN headers) > 0
                THEN substring(encode(headers, 'escape') FROM '"tenant":\["([^"]*)"') END
$$;
