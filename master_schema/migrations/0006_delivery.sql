-- 0006 delivery: which jobs are never started a second time.

-- Whether a job may be started at most once, from its headers. Every other value in headers that could follow such a name is
-- text or a number, and inside a string the quotes would be escaped.
CREATE FUNCTION is_at_most_once(headers bytea) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT position('"at_most_once":true'::bytea IN headers) > 0
$$;
