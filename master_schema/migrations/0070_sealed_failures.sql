-- 0070 sealed failures: failed jobs whose messages are sealed are one kind of failure for each handler and type of error.

-- What the messages of one kind of failure have in common: the first line, with # in the place of ids and numbers. A sealed
-- message is sealed for its job alone: no two are alike.
CREATE OR REPLACE FUNCTION error_line(message text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN starts_with(message, '$sealed:') THEN '$sealed'
                ELSE regexp_replace(left(split_part(message, E'\n', 1), 200),
                    '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\m(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{7,}\M|[0-9]+',
                    '#', 'g') END
$$;
