-- 0073 plain conditions: no condition of an index on job calls a function of this schema.

-- PostgreSQL inlines functions in SQL. It does so for the conditions of all indexes of a table at the beginning of every statement
-- that writes the table: 36 microseconds for each of these two, as much as a COPY of ten outcomes takes. A search of bytes is
-- no such function, and finds nothing in empty headers. (A function in plpgsql is not inlined, but takes a microsecond for each
-- row that it is asked of.)
CREATE INDEX job_of_tenant ON job (lane, priority, (tenant_of(headers) COLLATE "C"), due_at, id)
    WHERE state = 'HELD' AND position('"tenant":["'::bytea IN headers) > 0;
CREATE INDEX job_of_ordering_key ON job (ordering_key(headers), id)
    WHERE state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING') AND position('],"ordering_key":"'::bytea IN headers) > 0;

DROP INDEX job_tenant_due, job_ordering;

-- As in 0069, with the condition of the index.
CREATE OR REPLACE FUNCTION take_permits(
    ids uuid[], job_tokens integer[], use_jobs integer[], use_names text[], use_keys text[], use_weights integer[],
    asking_bucket uuid
) RETURNS TABLE (id uuid, limit_name text, limit_key text, wait_seconds double precision)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now_at      timestamptz;
    names       text[];
    keys        text[];
    known       boolean[];
    maxima      integer[];
    rates       double precision[];
    bursts      double precision[];
    filled      double precision[];
    used        bigint[];
    asked       bigint[];
    use_limits  integer[];
    begun       boolean[];
    behind      boolean[];
    waits       boolean[];
    heaviest    integer[];
    full_weight integer;
    by_permits  boolean;
    takes       integer[] := '{}';
    uses        integer := cardinality(use_jobs);
    first       integer := 1;
    beyond      integer;
    place       integer;
    lim         integer;
    weight      double precision;
    full_limit  integer;
    wait        double precision;
BEGIN
    IF ids IS NULL THEN
        RETURN;  -- the bucket's lock refuses the call
    END IF;
    INSERT INTO limit_state AS s (name, key)
    SELECT DISTINCT u.name COLLATE "C", u.key COLLATE "C" FROM unnest(use_names, use_keys) AS u (name, key)
    ORDER BY 1, 2  -- every caller locks in the same order
    ON CONFLICT (name, key) DO UPDATE SET locked_at = clock_timestamp();
    now_at := clock_timestamp();

    SELECT array_agg(l.name ORDER BY l.n), array_agg(l.key ORDER BY l.n), array_agg(l.known ORDER BY l.n),
           array_agg(l.maximum ORDER BY l.n), array_agg(l.rate ORDER BY l.n), array_agg(l.burst ORDER BY l.n),
           array_agg(CASE WHEN l.tokens IS NULL OR l.refilled_at IS NULL THEN l.burst
                          ELSE least(l.burst, l.tokens + l.rate * greatest(extract(epoch FROM now_at - l.refilled_at), 0))
                     END ORDER BY l.n),
           array_agg(lent_permits(l.name, l.key)
                     + coalesce((SELECT sum(least(p.weight, l.maximum)) FROM permit p WHERE p.name = l.name AND p.key = l.key), 0)
                     ORDER BY l.n),
           array_agg(l.asked ORDER BY l.n), array_agg(false), array_agg(0)
    INTO names, keys, known, maxima, rates, bursts, filled, used, asked, waits, heaviest
    FROM (
        SELECT row_number() OVER (ORDER BY s.name, s.key) AS n, s.name, s.key, s.tokens, s.refilled_at, u.asked,
               d.name IS NOT NULL AS known, coalesce(d.set_running, d.declared_running) AS maximum,
               coalesce(d.set_rate, d.declared_rate) AS rate,
               CASE WHEN d.set_rate IS NULL THEN coalesce(d.set_burst, d.declared_burst)
                    ELSE coalesce(d.set_burst, greatest(d.set_rate, 1)) END AS burst
        FROM (SELECT w.name COLLATE "C" AS name, w.key COLLATE "C" AS key, sum(w.weight) AS asked
              FROM unnest(use_names, use_keys, use_weights) AS w (name, key, weight) GROUP BY 1, 2) AS u
        -- LATERAL and OFFSET: one look into the index for each key. Of a small table a plan is made, and kept, that reads all
        -- of it for each key.
        CROSS JOIN LATERAL (
            SELECT t.name, t.key, t.tokens, t.refilled_at FROM limit_state t WHERE t.name = u.name AND t.key = u.key OFFSET 0
        ) AS s
        LEFT JOIN LATERAL (SELECT j.* FROM job_limit j WHERE j.name = u.name OFFSET 0) AS d ON true
    ) AS l;

    FOR lim IN 1 .. cardinality(names) LOOP
        IF used[lim] + asked[lim] > maxima[lim] THEN
            -- A scalar query for each line: a join could be planned as a scan of all jobs.
            DELETE FROM permit p
            WHERE p.name = names[lim] AND p.key = keys[lim]
              AND (SELECT j.state = 'PROCESSING' AND j.token = p.token FROM job j WHERE j.id = p.job_id) IS NOT TRUE;
            used[lim] := lent_permits(names[lim], keys[lim])
                         + (SELECT coalesce(sum(least(p.weight, maxima[lim])), 0) FROM permit p
                            WHERE p.name = names[lim] AND p.key = keys[lim]);
        END IF;
    END LOOP;

    -- A call that is sent again after a lost answer finds its jobs begun: they have what they take.
    begun := (SELECT array_agg((SELECT j.state = 'PROCESSING' AND j.token = t.token FROM job j WHERE j.id = t.id) IS TRUE
                               ORDER BY t.n)
              FROM unnest(ids, job_tokens) WITH ORDINALITY AS t (id, token, n));
    -- The numbers of the limits again, without a join: it would compare every use with every limit.
    use_limits := (SELECT array_agg(r.limit_number::integer ORDER BY r.n)
                   FROM (SELECT u.n, dense_rank() OVER (ORDER BY u.name COLLATE "C", u.key COLLATE "C") AS limit_number
                         FROM unnest(use_names, use_keys) WITH ORDINALITY AS u (name, key, n)) AS r);

    -- Jobs of ordering keys that are behind another one. One query for all: each opens every partition.
    IF '' = ANY (names) THEN
        behind := (SELECT array_agg(u.name = '' AND EXISTS (
                              SELECT FROM job j
                              WHERE position('],"ordering_key":"'::bytea IN j.headers) > 0
                                AND ordering_key(j.headers) = signal_key_form(u.key)
                                AND j.state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING')
                                AND (j.id < ids[u.job] OR j.id > ids[u.job] AND j.state = 'PROCESSING')
                          ) ORDER BY u.n)
                   FROM unnest(use_jobs, use_names, use_keys) WITH ORDINALITY AS u (job, name, key, n));
    END IF;

    WHILE first <= uses LOOP
        beyond := first;
        full_limit := NULL;
        by_permits := false;
        full_weight := 1;
        wait := 0;
        WHILE beyond <= uses AND use_jobs[beyond] = use_jobs[first] LOOP
            lim := use_limits[beyond];
            IF begun[use_jobs[first]] THEN
                NULL;
            ELSIF names[lim] = '' THEN
                IF behind[beyond] THEN
                    by_permits := by_permits OR full_limit IS NULL;
                    full_limit := coalesce(full_limit, lim);
                END IF;
            ELSIF NOT known[lim] THEN
                full_limit := coalesce(full_limit, lim);
            ELSE
                IF used[lim] + least(use_weights[beyond], maxima[lim]) > maxima[lim] THEN
                    IF full_limit IS NULL THEN
                        by_permits := true;
                        full_weight := least(use_weights[beyond], maxima[lim]);
                    END IF;
                    full_limit := coalesce(full_limit, lim);
                END IF;
                weight := least(use_weights[beyond], bursts[lim]);
                IF filled[lim] < weight - 1e-6 THEN
                    full_limit := coalesce(full_limit, lim);
                    wait := greatest(wait, (weight - filled[lim]) / rates[lim]);
                END IF;
            END IF;
            beyond := beyond + 1;
        END LOOP;
        id := ids[use_jobs[first]];
        limit_name := NULL;
        limit_key := NULL;
        wait_seconds := wait;
        IF full_limit IS NOT NULL THEN
            limit_name := names[full_limit];
            limit_key := keys[full_limit];
            IF by_permits THEN
                waits[full_limit] := true;
                heaviest[full_limit] := greatest(heaviest[full_limit], full_weight);
            END IF;
        ELSIF NOT begun[use_jobs[first]] THEN
            FOR place IN first .. beyond - 1 LOOP
                lim := use_limits[place];
                used[lim] := used[lim] + coalesce(least(use_weights[place], maxima[lim]), 0);
                filled[lim] := filled[lim] - least(use_weights[place], bursts[lim]);
                IF maxima[lim] IS NOT NULL THEN
                    takes := array_append(takes, place);
                END IF;
            END LOOP;
        END IF;
        RETURN NEXT;
        first := beyond;
    END LOOP;

    INSERT INTO permit AS p (name, key, job_id, token, weight, maximum)
    SELECT use_names[t.place], use_keys[t.place], ids[use_jobs[t.place]], job_tokens[use_jobs[t.place]],
           use_weights[t.place], maxima[use_limits[t.place]]
    FROM unnest(takes) AS t (place)
    ON CONFLICT (name, key, job_id) DO UPDATE
    SET token = EXCLUDED.token, weight = EXCLUDED.weight, maximum = EXCLUDED.maximum, admitted_at = clock_timestamp();

    FOR lim IN 1 .. cardinality(names) LOOP
        IF rates[lim] IS NOT NULL OR waits[lim] THEN
            UPDATE limit_state s
            SET tokens = CASE WHEN rates[lim] IS NULL THEN s.tokens ELSE filled[lim] END,
                refilled_at = CASE WHEN rates[lim] IS NULL THEN s.refilled_at ELSE now_at END,
                waiting_bucket = CASE WHEN waits[lim] THEN asking_bucket ELSE s.waiting_bucket END,
                waiting_at = CASE WHEN waits[lim] THEN now_at ELSE s.waiting_at END,
                -- A lighter job does not take the place of a heavier one that asks again within this time.
                waiting_weight = CASE WHEN waits[lim] AND (heaviest[lim] >= s.waiting_weight
                                                           OR s.weighed_at < now_at - interval '2 seconds')
                                      THEN heaviest[lim] ELSE s.waiting_weight END,
                weighed_at = CASE WHEN waits[lim] AND (heaviest[lim] >= s.waiting_weight
                                                       OR s.weighed_at < now_at - interval '2 seconds')
                                  THEN now_at ELSE s.weighed_at END
            WHERE s.name = names[lim] AND s.key = keys[lim];
        END IF;
    END LOOP;
END
$$;
