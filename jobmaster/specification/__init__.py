"""Transition tables: which moves a job, a bucket and a range of the history may make. A move that is not listed is an error.

This is a specification. The moves themselves are made by SQL statements, and the header of each statement lists its moves
(``-- move: A -> B``). Tests compare every header with these tables (``tests/integration/postgres/schema/test_headers.py``),
the diagrams in ``docs/architecture.md`` are drawn from them, and ``tests/unit/specification`` checks the properties of the
tables that the protocol needs. The running program reads one table only: ``jobmaster.master.buckets`` takes from
``bucket_transitions`` the states from which an owner may move its bucket.
"""
