"""The data pipeline: what Spark reads out of a cluster, writes into it, and makes of its history.

A leaf: only the command line imports it. PySpark is an extra (``pip install "jobmaster-cluster[pipeline]"``) and is imported
when a session is made, not before.
"""
