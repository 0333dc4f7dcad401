"""Where Spark looks data sources up by name: it imports every module ``pyspark_*`` and reads its ``DefaultSource``.

This is the top-level package ``pyspark_jobmaster`` of the wheel. Every user of Spark in an environment pays for this import.
"""

from jobmaster.pipeline.datasource.source import JobMasterSource as DefaultSource

__all__ = ["DefaultSource"]
