-- start: store a workflow with its steps; the steps without parents become jobs
-- in: $1 uuid its id
-- in: $2 text its name
-- in: $3 boolean some step has a compensation
-- in: $4 bigint limit of the arguments of a step, bytes
-- in: $5 integer[] numbers of the steps
-- in: $6 text[] names
-- in: $7 text[] what they run on: success, failure, end or undo
-- in: $8 text[] parents, as text of integer[]
-- in: $9 text[] choices (JSON), NULL = none
-- in: $10 text[] handlers
-- in: $11 smallint[] priorities
-- in: $12 text[] lanes
-- in: $13 bytea[] args, without the results of other steps
-- in: $14 text[] places of results in the args (JSON)
-- in: $15 bytea[] headers
-- in: $16 bigint[] delays in microseconds
-- in: $17 boolean[] whether another step needs the result
-- out: started boolean (false: the id is known, and nothing was stored; NULL: it is known with other steps)
-- move: none -> WAITING|HELD
-- fence: the key of the workflow: sent again, it starts nothing
-- index: workflow_pkey, as the arbiter
SELECT workflow_start($1::uuid, $2::text, $3::boolean, $4::bigint, $5::integer[], $6::text[], $7::text[], $8::text[], $9::text[],
                      $10::text[], $11::smallint[], $12::text[], $13::bytea[], $14::text[], $15::bytea[], $16::bigint[],
                      $17::boolean[]) AS started
