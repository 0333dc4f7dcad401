"""A real cluster for tests: embedded servers of the test run, an agent, and a cluster id of the test's own."""
