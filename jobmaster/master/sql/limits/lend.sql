-- lend: permits of limits for an agent, which starts jobs with them and writes nothing first
-- in: $1 uuid agent
-- in: $2 text[] limits
-- in: $3 text[] keys
-- in: $4 integer[] permits that the agent keeps, whatever the answer: it has no more in use until it knows it
-- in: $5 integer[] permits that it could use
-- in: $6 bigint[] number of the question; each is greater than that of the one before
-- in: $7 double precision seconds for which a question, or the denial of an admission, counts
-- out: name text, key text, permits integer (that it has from now on), share integer (that it may use; 0: it asks for each start)
-- move: nothing
-- fence: the lock of each key, as limits/admit has it; an older question than the last one changes nothing and has no row in the answer
-- index: limit_state_pkey, permit_loan_pkey, permit_pkey, agent_pkey, permit_loan_over; job_pkey for each permit; bucket_owner and
--        bucket_former_owner for each dead agent with a loan
SELECT name, key, permits, share
FROM lend_permits($1::uuid, $2::text[], $3::text[], $4::integer[], $5::integer[], $6::bigint[], $7::double precision)
