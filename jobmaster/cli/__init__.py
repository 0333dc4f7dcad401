"""The command line. Each command imports its modules when it runs, so that ``--help`` is fast."""
