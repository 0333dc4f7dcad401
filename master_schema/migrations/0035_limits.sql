-- 0035 limits: how many jobs may run at once and how many may start in a time, and the permits of those that run.

-- One limit. What agents declare, and beside it what an operator has set, which counts until it is reset.
CREATE TABLE job_limit (
    name             text COLLATE "C" PRIMARY KEY,
    declared_running integer CHECK (declared_running >= 1),
    declared_rate    double precision CHECK (declared_rate > 0),    -- starts a second
    declared_burst   double precision CHECK (declared_burst >= 1),
    -- When the agent started that declared it: only an agent that started later replaces the declaration.
    declared_at      timestamptz,                                   -- NULL: no agent has declared it
    set_running      integer CHECK (set_running >= 1),              -- NULL: as declared
    set_rate         double precision CHECK (set_rate > 0),
    set_burst        double precision CHECK (set_burst >= 1),
    set_at           timestamptz,                                   -- NULL: nothing is set
    set_by           text NOT NULL DEFAULT '',
    set_reason       text NOT NULL DEFAULT '',
    changed_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT job_limit_is_of_somebody CHECK (declared_at IS NOT NULL OR set_at IS NOT NULL)
);

-- One key of a limit. Every admission locks the rows of its keys first, so admissions of one key come one after another.
CREATE TABLE limit_state (
    name             text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    tokens           double precision,                              -- of the rate; NULL: the burst, nothing has started yet
    refilled_at      timestamptz,
    locked_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, key)
) WITH (fillfactor = 50);                                           -- every admission writes it: no index changes, room in the page

-- A permit of one run. It counts while the job's row is PROCESSING with this token, and not a moment longer: whatever ends the
-- run frees it without a write here. Dead lines are removed by the next admission that needs the room.
CREATE TABLE permit (
    name             text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    job_id           uuid NOT NULL,
    token            integer NOT NULL,
    weight           integer NOT NULL CHECK (weight >= 1),
    maximum          integer NOT NULL,                              -- the limit at the admission
    admitted_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, key, job_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Permits for jobs that are about to start. One line per job: without a limit it is admitted, otherwise that limit has no
-- permit for it, and a permit may be free in so many seconds (0: unknown). Every command of the function has a snapshot of its
-- own. So the count, which follows the lock, sees each admission that has committed before.
-- use_jobs are places in ids, in order; use_names, use_keys and use_weights what that job takes.
CREATE FUNCTION take_permits(
    ids uuid[], job_tokens integer[], use_jobs integer[], use_names text[], use_keys text[], use_weights integer[]
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
    mine        boolean[];
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
           array_agg(coalesce((SELECT sum(p.weight) FROM permit p WHERE p.name = l.name AND p.key = l.key), 0) ORDER BY l.n),
           array_agg(l.asked ORDER BY l.n)
    INTO names, keys, known, maxima, rates, bursts, filled, used, asked
    FROM (
        SELECT row_number() OVER (ORDER BY s.name, s.key) AS n, s.name, s.key, s.tokens, s.refilled_at, u.asked,
               d.name IS NOT NULL AS known, coalesce(d.set_running, d.declared_running) AS maximum,
               coalesce(d.set_rate, d.declared_rate) AS rate,
               CASE WHEN d.set_rate IS NULL THEN coalesce(d.set_burst, d.declared_burst)
                    ELSE coalesce(d.set_burst, greatest(d.set_rate, 1)) END AS burst
        FROM (SELECT w.name COLLATE "C" AS name, w.key COLLATE "C" AS key, sum(w.weight) AS asked
              FROM unnest(use_names, use_keys, use_weights) AS w (name, key, weight) GROUP BY 1, 2) AS u
        JOIN limit_state s ON s.name = u.name AND s.key = u.key
        LEFT JOIN job_limit d ON d.name = u.name
    ) AS l;

    FOR lim IN 1 .. cardinality(names) LOOP
        IF used[lim] + asked[lim] > maxima[lim] THEN
            -- A scalar query for each line: a join could be planned as a scan of all jobs.
            DELETE FROM permit p
            WHERE p.name = names[lim] AND p.key = keys[lim]
              AND (SELECT j.state = 'PROCESSING' AND j.token = p.token FROM job j WHERE j.id = p.job_id) IS NOT TRUE;
            used[lim] := (SELECT coalesce(sum(p.weight), 0) FROM permit p WHERE p.name = names[lim] AND p.key = keys[lim]);
        END IF;
    END LOOP;

    -- A call that is sent again after a lost answer finds its own permits: they are in the count already.
    SELECT array_agg(l.n::integer ORDER BY u.n),
           array_agg(EXISTS (SELECT FROM permit p
                             WHERE p.name = l.name AND p.key = l.key AND p.job_id = ids[u.job] AND p.token = job_tokens[u.job])
                     ORDER BY u.n)
    INTO use_limits, mine
    FROM unnest(use_jobs, use_names, use_keys) WITH ORDINALITY AS u (job, name, key, n)
    JOIN unnest(names, keys) WITH ORDINALITY AS l (name, key, n) ON l.name = u.name AND l.key = u.key;

    WHILE first <= uses LOOP
        beyond := first;
        full_limit := NULL;
        wait := 0;
        WHILE beyond <= uses AND use_jobs[beyond] = use_jobs[first] LOOP
            lim := use_limits[beyond];
            IF mine[beyond] THEN
                NULL;
            ELSIF NOT known[lim] THEN
                full_limit := coalesce(full_limit, lim);
            ELSE
                IF used[lim] + least(use_weights[beyond], maxima[lim]) > maxima[lim] THEN
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
        ELSE
            FOR place IN first .. beyond - 1 LOOP
                lim := use_limits[place];
                IF NOT mine[place] THEN
                    used[lim] := used[lim] + coalesce(least(use_weights[place], maxima[lim]), 0);
                    filled[lim] := filled[lim] - least(use_weights[place], bursts[lim]);
                    IF maxima[lim] IS NOT NULL THEN
                        takes := array_append(takes, place);
                    END IF;
                END IF;
            END LOOP;
        END IF;
        RETURN NEXT;
        first := beyond;
    END LOOP;

    INSERT INTO permit AS p (name, key, job_id, token, weight, maximum)
    SELECT use_names[t.place], use_keys[t.place], ids[use_jobs[t.place]], job_tokens[use_jobs[t.place]],
           least(use_weights[t.place], maxima[use_limits[t.place]]), maxima[use_limits[t.place]]
    FROM unnest(takes) AS t (place)
    ON CONFLICT (name, key, job_id) DO UPDATE
    SET token = EXCLUDED.token, weight = EXCLUDED.weight, maximum = EXCLUDED.maximum, admitted_at = clock_timestamp();

    UPDATE limit_state s SET tokens = l.filled, refilled_at = now_at
    FROM unnest(names, keys, filled, rates) AS l (name, key, filled, rate)
    WHERE s.name = l.name AND s.key = l.key AND l.rate IS NOT NULL;
END
$$;
