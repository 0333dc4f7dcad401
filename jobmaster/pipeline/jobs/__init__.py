"""Jobs that run on Spark: handlers for the pipeline's own steps, and what an application's own handlers need.

``pipeline_handlers`` has the steps (``pipeline.archive``, ``pipeline.rollup``, ``pipeline.audit``, ``pipeline.compact``,
``pipeline.vacuum``): name this module under ``handlers`` in the configuration, and schedules and workflows run the pipeline.
``spark_job`` makes a handler of a function over a Spark session, ``spark_map`` one of a function over the record batches of
many jobs, ``run_application`` runs ``spark-submit`` in a handler.

Agents import this package, so it imports no Spark.
"""

from jobmaster.pipeline.jobs.application import ApplicationEnd, SparkApplication, run_application
from jobmaster.pipeline.jobs.driver_process import SparkFailed
from jobmaster.pipeline.jobs.functions import cluster_options, spark_job
from jobmaster.pipeline.jobs.map_application import SparkRowFailed
from jobmaster.pipeline.jobs.map_functions import spark_map
from jobmaster.pipeline.jobs.step_handlers import PipelineRun, pipeline_handlers

__all__ = [
    "ApplicationEnd",
    "PipelineRun",
    "SparkApplication",
    "SparkFailed",
    "SparkRowFailed",
    "cluster_options",
    "pipeline_handlers",
    "run_application",
    "spark_job",
    "spark_map",
]
