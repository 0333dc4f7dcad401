"""Where Spark looks data sources up by name: every module ``pyspark_*`` that can be imported is asked for ``DefaultSource``.

This is the top-level package ``pyspark_jobmaster`` of the wheel. Every user of Spark in an environment pays for this import.
"""

from jobmaster.pipeline.datasource.source import JobMasterSource as DefaultSource

__all__ = ["DefaultSource"]
