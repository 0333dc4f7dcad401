"""The history of the master database: numbered SQL migrations, forward only, and the views people may rely on.

SQL files only; ``jobmaster.master.migrate`` reads them through ``importlib.resources``.
"""
