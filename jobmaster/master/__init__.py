"""PostgreSQL behind the ports. SQL lies in ``sql/``, one statement a file."""
