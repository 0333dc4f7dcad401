-- 0069 loans of the dead: permits that were lent to an agent stay taken while its runs may go on.

-- True: the process had ended when its death certificate was written. A certificate for a lease that ran out shows nothing of the
-- process: while it is cut off from the master alone, its runs go on as long as its store confirms its buckets.
ALTER TABLE agent ADD COLUMN process_ended boolean NOT NULL DEFAULT false;

-- Of a bucket that was taken by a rescuer: the owner whose runs may go on in it, until its rows are swept.
ALTER TABLE bucket ADD COLUMN former_owner uuid;
CREATE INDEX bucket_former_owner ON bucket (former_owner) WHERE former_owner IS NOT NULL;

-- The weight of the heaviest job that was denied a permit not long ago.
ALTER TABLE limit_state ADD COLUMN waiting_weight integer NOT NULL DEFAULT 0, ADD COLUMN weighed_at timestamptz;

DROP INDEX permit_loan_over;
CREATE INDEX permit_loan_over ON permit_loan (agent_id, asked_at) WHERE permits = 0;

-- Loans that count. Those of a dead agent do until the last of its buckets is rescued, as permits of jobs that it was admitted do:
-- its runs go on until a rescuer has fenced the bucket in its store and waited for the end of the term that the store has granted.
-- (By the buckets and not by a time after the certificate: while no rescuer reaches that store, one term follows the other.) An
-- agent without a bucket runs nothing. Scalar queries: one look into the index for each loan, and none at buckets while its agent
-- lives. (A LATERAL join took half as long again.)
CREATE VIEW loan_in_force AS
SELECT o.name, o.key, o.agent_id, o.permits, o.wanted, o.maximum, o.asked_at, o.lent_at,
       (SELECT a.state <> 'DEAD' FROM agent a WHERE a.id = o.agent_id) AS lives
FROM permit_loan o
WHERE (SELECT a.state IN ('ACTIVE', 'STOPPING')
              OR a.state = 'DEAD' AND NOT a.process_ended
                 AND (EXISTS (SELECT FROM bucket b WHERE b.owner = a.id AND b.state <> 'READY_TO_DELETE' OFFSET 0)
                      OR EXISTS (SELECT FROM bucket b WHERE b.former_owner = a.id AND b.state IN ('LOST', 'DRAINING') OFFSET 0))
       FROM agent a WHERE a.id = o.agent_id);

-- Permits of a limit that are lent.
CREATE OR REPLACE FUNCTION lent_permits(limit_name text, limit_key text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(o.permits), 0)::bigint
    FROM loan_in_force o
    WHERE o.name = limit_name COLLATE "C" AND o.key = limit_key COLLATE "C"
$$;

-- As in 0067, and the heaviest job that was denied is known.
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

-- Lend permits to an agent; of each limit the permits that it has from now on, and its share. The agent never has more in use
-- than it keeps until it knows the answer, and the answer is never less: so a lost answer, or one that comes late, lends nothing
-- twice. The share is that of max-min fairness between the agents that asked in the last seconds; where jobs were denied a
-- permit by admissions not long ago, these have a share, too, and at least the weight of the heaviest of them: it would wait for
-- ever for permits that are never free at once. An agent that has more than its share gives back as its jobs end. What dead agents
-- may still use is nobody's share.
CREATE OR REPLACE FUNCTION lend_permits(
    asking uuid, names text[], keys text[], keeps integer[], all_wanted integer[], sequences bigint[], recent_seconds double precision
) RETURNS TABLE (name text, key text, permits integer, share integer) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    now_at    timestamptz;
    place     integer;
    most      integer;                         -- (permit has a column maximum: the limit when it was given)
    by_rate   boolean;
    admitted  bigint;
    lent      bigint;
    denied    boolean;
    others    boolean;
    reserved  integer;
    of_others bigint;
    of_dead   bigint;
    set_aside bigint;
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
        most := NULL;
        by_rate := true;
        SELECT coalesce(d.set_running, d.declared_running), coalesce(d.set_rate, d.declared_rate) IS NOT NULL
        INTO most, by_rate FROM job_limit d WHERE d.name = names[place];
        DELETE FROM permit p
        WHERE p.name = names[place] AND p.key = keys[place]
          AND (SELECT j.state = 'PROCESSING' AND j.token = p.token FROM job j WHERE j.id = p.job_id) IS NOT TRUE;
        admitted := (SELECT coalesce(sum(least(p.weight, most)), 0) FROM permit p
                     WHERE p.name = names[place] AND p.key = keys[place]);
        SELECT coalesce(sum(o.permits), 0), coalesce(sum(o.permits) FILTER (WHERE NOT o.lives), 0) INTO lent, of_dead
        FROM loan_in_force o
        WHERE o.name = names[place] AND o.key = keys[place] AND o.agent_id <> asking;
        SELECT coalesce(s.waiting_at > now_at - make_interval(secs => recent_seconds), false),
               CASE WHEN s.weighed_at > now_at - make_interval(secs => recent_seconds)
                    THEN least(s.waiting_weight, most) ELSE 0 END
        INTO denied, reserved FROM limit_state s WHERE s.name = names[place] AND s.key = keys[place];
        mine := 0;
        IF most IS NOT NULL AND NOT by_rate THEN
            -- Jobs that are admitted one by one share the limit with the agents; while some are denied, they want all of it. When
            -- that leaves them less than the heaviest of them needs, they have that much, and the agents share the rest.
            set_aside := of_dead;
            others := denied OR admitted > 0;
            LOOP
                mine := 0;
                of_others := NULL;
                rest := most - set_aside;
                left_over := (SELECT count(*) FROM loan_in_force o
                              WHERE o.name = names[place] AND o.key = keys[place] AND o.agent_id <> asking AND o.lives
                                AND (o.permits > 0 OR o.wanted > 0 AND o.asked_at > now_at - make_interval(secs => recent_seconds)))
                             + 1 + others::integer;
                IF rest >= left_over THEN  -- otherwise some would have none for as long as the others want theirs
                    FOR one IN
                        SELECT o.agent_id, CASE WHEN o.asked_at > now_at - make_interval(secs => recent_seconds) THEN o.wanted
                                                ELSE o.permits END AS wanted
                        FROM loan_in_force o
                        WHERE o.name = names[place] AND o.key = keys[place] AND o.agent_id <> asking AND o.lives
                          AND (o.permits > 0 OR o.wanted > 0 AND o.asked_at > now_at - make_interval(secs => recent_seconds))
                        UNION ALL SELECT asking, all_wanted[place]
                        UNION ALL SELECT NULL, CASE WHEN denied THEN most ELSE admitted END WHERE others
                        ORDER BY 2, 1 NULLS LAST
                    LOOP
                        granted := least(one.wanted, rest / left_over);
                        IF one.agent_id = asking THEN
                            mine := granted;
                        ELSIF one.agent_id IS NULL THEN
                            of_others := granted;
                        END IF;
                        rest := rest - granted;
                        left_over := left_over - 1;
                    END LOOP;
                END IF;
                EXIT WHEN NOT denied OR of_others IS NULL OR of_others >= reserved;
                set_aside := of_dead + reserved;
                others := false;
            END LOOP;
        END IF;
        granted := greatest(keeps[place], least(mine, greatest(coalesce(most, 0) - admitted - lent, 0)));
        INSERT INTO permit_loan AS o (name, key, agent_id, permits, wanted, sequence, maximum, asked_at, lent_at)
        SELECT names[place], keys[place], asking, granted, all_wanted[place], sequences[place],
               CASE WHEN granted > 0 THEN most END, now_at, now_at
        WHERE lives
        ON CONFLICT (name, key, agent_id) DO UPDATE
        SET permits = EXCLUDED.permits, wanted = EXCLUDED.wanted, sequence = EXCLUDED.sequence, asked_at = EXCLUDED.asked_at,
            maximum = CASE WHEN EXCLUDED.permits > o.permits THEN EXCLUDED.maximum ELSE o.maximum END,
            lent_at = CASE WHEN EXCLUDED.permits > o.permits THEN EXCLUDED.lent_at ELSE o.lent_at END;
        DELETE FROM permit_loan o
        WHERE o.name = names[place] AND o.key = keys[place]
          AND (SELECT a.state IN ('DEAD', 'RETIRED') FROM agent a WHERE a.id = o.agent_id)
          AND NOT EXISTS (SELECT FROM loan_in_force f WHERE f.name = o.name AND f.key = o.key AND f.agent_id = o.agent_id);
        name := names[place];
        key := keys[place];
        permits := CASE WHEN lives THEN granted ELSE 0 END;
        share := CASE WHEN lives THEN mine ELSE 0 END;
        RETURN NEXT;
    END LOOP;
    -- A question is not on its way for an hour, so the number of the last one is of no use any more.
    DELETE FROM permit_loan o
    WHERE o.agent_id = asking AND o.permits = 0 AND o.asked_at < now_at - interval '1 hour';
END
$$;
