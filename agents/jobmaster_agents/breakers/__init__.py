"""Circuit breakers in an agent: results of runs are counted in memory and reported to the master."""
