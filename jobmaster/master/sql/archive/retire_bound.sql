-- retire_bound: the attempts of the attic get the higher bound as a check, to be proved
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: ACCESS EXCLUSIVE on the attic of attempts for a change of the catalogue, given up after a tenth of a second
-- index: none; catalogue
SELECT retire_bound()
