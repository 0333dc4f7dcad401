-- 0067 permit loans: permits that the master lends to an agent, which starts jobs with them and writes nothing first.

CREATE TABLE permit_loan (
    name             text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    agent_id         uuid NOT NULL REFERENCES agent ON DELETE CASCADE,
    permits          integer NOT NULL CHECK (permits >= 0),
    wanted           integer NOT NULL,              -- permits that the agent could use when it asked
    sequence         bigint NOT NULL,               -- of the agent's question; an older one changes nothing
    maximum          integer,                       -- the limit when permits last grew; NULL: they never have
    asked_at         timestamptz NOT NULL,
    lent_at          timestamptz NOT NULL,          -- when permits last grew
    PRIMARY KEY (name, key, agent_id)
);
CREATE INDEX permit_loan_over ON permit_loan (agent_id, asked_at) WHERE permits = 0 AND wanted = 0;

-- Permits of a limit that living agents have. A death certificate ends the loans of its agent: the agent stops its jobs before
-- its lease is over.
CREATE FUNCTION lent_permits(limit_name text, limit_key text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(o.permits), 0)::bigint
    FROM permit_loan o
    WHERE o.name = limit_name COLLATE "C" AND o.key = limit_key COLLATE "C"
      AND (SELECT a.state IN ('ACTIVE', 'STOPPING') FROM agent a WHERE a.id = o.agent_id)
$$;

-- As in 0058, and what is lent is taken.
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
           array_agg(l.asked ORDER BY l.n), array_agg(false)
    INTO names, keys, known, maxima, rates, bursts, filled, used, asked, waits
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
                              WHERE ordering_key(j.headers) = signal_key_form(u.key)
                                AND j.state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING')
                                AND (j.id < ids[u.job] OR j.id > ids[u.job] AND j.state = 'PROCESSING')
                          ) ORDER BY u.n)
                   FROM unnest(use_jobs, use_names, use_keys) WITH ORDINALITY AS u (job, name, key, n));
    END IF;

    WHILE first <= uses LOOP
        beyond := first;
        full_limit := NULL;
        by_permits := false;
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
                    by_permits := by_permits OR full_limit IS NULL;
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
            waits[full_limit] := waits[full_limit] OR by_permits;
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
                waiting_at = CASE WHEN waits[lim] THEN now_at ELSE s.waiting_at END
            WHERE s.name = names[lim] AND s.key = keys[lim];
        END IF;
    END LOOP;
END
$$;

-- Lend permits to an agent; of each limit the permits that it has from now on, and its share. The agent never has more in use
-- than it keeps until it knows the answer, and the answer is never less: so a lost answer, or one that comes late, lends nothing
-- twice. The share is that of max-min fairness between the agents that asked in the last seconds; where jobs were denied a
-- permit by admissions not long ago, these have a share, too. An agent that has more than its share gives back as its jobs end.
CREATE FUNCTION lend_permits(
    asking uuid, names text[], keys text[], keeps integer[], all_wanted integer[], sequences bigint[], recent_seconds double precision
) RETURNS TABLE (name text, key text, permits integer, share integer) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    now_at    timestamptz;
    place     integer;
    maximum   integer;
    by_rate   boolean;
    admitted  bigint;
    lent      bigint;
    denied    boolean;
    others    boolean;
    rest      bigint;
    left_over integer;
    one       record;
    mine      integer;
    granted   integer;
    lives     boolean := EXISTS (SELECT FROM agent a WHERE a.id = asking AND a.state IN ('ACTIVE', 'STOPPING'));
BEGIN
    INSERT INTO limit_state AS s (name, key)
    SELECT DISTINCT u.name COLLATE "C", u.key COLLATE "C" FROM unnest(names, keys) AS u (name, key)
    ORDER BY 1, 2  -- every caller locks in the same order, admissions too
    ON CONFLICT (name, key) DO UPDATE SET locked_at = clock_timestamp();
    now_at := clock_timestamp();
    FOR place IN 1 .. cardinality(names) LOOP
        CONTINUE WHEN EXISTS (SELECT FROM permit_loan o
                              WHERE o.name = names[place] AND o.key = keys[place] AND o.agent_id = asking
                                AND o.sequence >= sequences[place]);
        maximum := NULL;
        by_rate := true;
        SELECT coalesce(d.set_running, d.declared_running), coalesce(d.set_rate, d.declared_rate) IS NOT NULL
        INTO maximum, by_rate FROM job_limit d WHERE d.name = names[place];
        DELETE FROM permit p
        WHERE p.name = names[place] AND p.key = keys[place]
          AND (SELECT j.state = 'PROCESSING' AND j.token = p.token FROM job j WHERE j.id = p.job_id) IS NOT TRUE;
        admitted := (SELECT coalesce(sum(least(p.weight, maximum)), 0) FROM permit p
                     WHERE p.name = names[place] AND p.key = keys[place]);
        lent := (SELECT coalesce(sum(o.permits), 0) FROM permit_loan o
                 WHERE o.name = names[place] AND o.key = keys[place] AND o.agent_id <> asking
                   AND (SELECT a.state IN ('ACTIVE', 'STOPPING') FROM agent a WHERE a.id = o.agent_id));
        denied := EXISTS (SELECT FROM limit_state s
                          WHERE s.name = names[place] AND s.key = keys[place]
                            AND s.waiting_at > now_at - make_interval(secs => recent_seconds));
        mine := 0;
        IF maximum IS NOT NULL AND NOT by_rate THEN
            -- Jobs that are admitted one by one share the limit with the agents; while some are denied, they want all of it.
            rest := maximum;
            others := denied OR admitted > 0;
            left_over := (SELECT count(*) FROM permit_loan o
                          WHERE o.name = names[place] AND o.key = keys[place] AND o.agent_id <> asking
                            AND (SELECT a.state IN ('ACTIVE', 'STOPPING') FROM agent a WHERE a.id = o.agent_id)
                            AND (o.permits > 0 OR o.wanted > 0 AND o.asked_at > now_at - make_interval(secs => recent_seconds)))
                         + 1 + others::integer;
            IF rest >= left_over THEN  -- otherwise some would have none for as long as the others want theirs
                FOR one IN
                    SELECT o.agent_id, CASE WHEN o.asked_at > now_at - make_interval(secs => recent_seconds) THEN o.wanted
                                            ELSE o.permits END AS wanted
                    FROM permit_loan o
                    WHERE o.name = names[place] AND o.key = keys[place] AND o.agent_id <> asking
                      AND (SELECT a.state IN ('ACTIVE', 'STOPPING') FROM agent a WHERE a.id = o.agent_id)
                      AND (o.permits > 0 OR o.wanted > 0 AND o.asked_at > now_at - make_interval(secs => recent_seconds))
                    UNION ALL SELECT asking, all_wanted[place]
                    UNION ALL SELECT NULL, CASE WHEN denied THEN maximum ELSE admitted END WHERE others
                    ORDER BY 2, 1 NULLS LAST
                LOOP
                    granted := least(one.wanted, rest / left_over);
                    IF one.agent_id = asking THEN
                        mine := granted;
                    END IF;
                    rest := rest - granted;
                    left_over := left_over - 1;
                END LOOP;
            END IF;
        END IF;
        granted := greatest(keeps[place], least(mine, greatest(coalesce(maximum, 0) - admitted - lent, 0)));
        INSERT INTO permit_loan AS o (name, key, agent_id, permits, wanted, sequence, maximum, asked_at, lent_at)
        SELECT names[place], keys[place], asking, granted, all_wanted[place], sequences[place],
               CASE WHEN granted > 0 THEN maximum END, now_at, now_at
        WHERE lives
        ON CONFLICT (name, key, agent_id) DO UPDATE
        SET permits = EXCLUDED.permits, wanted = EXCLUDED.wanted, sequence = EXCLUDED.sequence, asked_at = EXCLUDED.asked_at,
            maximum = CASE WHEN EXCLUDED.permits > o.permits THEN EXCLUDED.maximum ELSE o.maximum END,
            lent_at = CASE WHEN EXCLUDED.permits > o.permits THEN EXCLUDED.lent_at ELSE o.lent_at END;
        name := names[place];
        key := keys[place];
        permits := CASE WHEN lives THEN granted ELSE 0 END;
        share := CASE WHEN lives THEN mine ELSE 0 END;
        RETURN NEXT;
    END LOOP;
    -- A question is not on its way for an hour, so the number of the last one is of no use any more.
    DELETE FROM permit_loan o
    WHERE o.agent_id = asking AND o.permits = 0 AND o.wanted = 0 AND o.asked_at < now_at - interval '1 hour';
END
$$;
