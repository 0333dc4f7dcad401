-- retire_prove: the attempts of the attic lie below the higher bound
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: none that delays readers or writers
-- index: none; the attic of attempts is read once
SELECT retire_prove()
