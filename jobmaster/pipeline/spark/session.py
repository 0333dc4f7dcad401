"""The Spark session of a call of the program: UTC, Arrow, compressed Parquet, little output.

``master`` is Spark's master URL: ``local[*]`` for a JVM of this process, otherwise a cluster. Settings of ``--conf`` override
the ones here.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from jobmaster.distribution import install_command
from jobmaster.model.errors import InputError, Refused
from jobmaster.pipeline.spark.errors import first_line
from jobmaster.pipeline.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
_LOCAL = re.compile(r"^local(?:\[(?P<threads>\*|\d+)(?:,\d+)?\])?$")
_NEEDED = ("pyspark", "pyarrow", "pandas")
_CONNECT = "sc://"
_CONNECT_NEEDED = ("grpc", "grpc_status", "zstandard")
"""What PySpark imports for Spark Connect."""
_PAIR = re.compile(r"^(?P<key>spark\.[\w.\-]+)=(?P<value>.*)$", re.DOTALL)


class SessionOptions(NamedTuple):
    """Spark's master URL, and settings that override the defaults."""

    master: str = DEFAULT_MASTER
    """``local[*]``, ``local[2]``, ``spark://host:7077``, ``yarn``, ``k8s://...``, or ``sc://host`` for Spark Connect."""
    conf: Mapping[str, str] = {}
    name: str = "jobmaster pipeline"


def parse_conf(pairs: Sequence[str]) -> dict[str, str]:
    """``spark.key=value`` texts as a mapping.

    Raises:
        InputError: a text has another form.
    """
    found = {}
    for pair in pairs:
        match = _PAIR.match(pair)
        if match is None:
            raise InputError(f"--conf {pair!r} is not spark.KEY=VALUE", hint="such as spark.driver.memory=4g")
        found[match["key"]] = match["value"]
    return found


def require_extra(master: str = DEFAULT_MASTER) -> None:
    """Raise ``Refused``, with the install command, when packages of the pipeline are missing.

    Args:
        master: where Spark is to run; Spark Connect needs more.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise Refused(
            f"the data pipeline needs {', '.join(missing)}, which this environment lacks",
            hint=f"{install_command('pipeline')}, or with a Java from a wheel: {install_command('pipeline', 'java')}",
        )
    if master.startswith(_CONNECT) and (missing := [name for name in _CONNECT_NEEDED if find_spec(name) is None]):
        raise Refused(
            f"Spark Connect needs {', '.join(missing)}, which this environment lacks",
            hint=install_command("pipeline", "connect"),
        )


def threads_of(master: str) -> int | None:
    """Tasks that run at once in this process; ``None`` when Spark runs on a cluster."""
    match = _LOCAL.match(master)
    if match is None:
        return None
    threads = match["threads"]
    if threads is None:
        return 1
    if threads != "*":
        return int(threads)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def settings_of(master: str) -> dict[str, str]:
    """Default settings for a master URL."""
    found = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A speculative copy of a task that writes to a database does the work twice and inserts nothing.
        "spark.speculation": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "2g",
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|dsn",
        "spark.sql.redaction.options.regex": "(?i)url|dsn|secret|password|token",
    }
    threads = threads_of(master)
    if threads is not None:
        found |= {
            "spark.sql.shuffle.partitions": str(max(2, 2 * threads)),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
    return found


def open_session(options: SessionOptions, env: Mapping[str, str]) -> SparkSession:
    """A session with the data source ``jobmaster`` registered; a running session is reused.

    Args:
        env: the environment in which to find a Java. ``JAVA_HOME`` of this process is set to it.

    Raises:
        Refused: PySpark or a Java is missing, or Spark does not start.
    """
    require_extra(options.master)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from jobmaster.pipeline.datasource.postgres_source import PostgresSource
    from jobmaster.pipeline.datasource.source import JobMasterSource

    conf = {**settings_of(options.master), **options.conf}
    builder = SparkSession.builder.appName(options.name)
    if options.master.startswith(_CONNECT):
        builder = builder.remote(options.master)
        conf = {key: value for key, value in conf.items() if key.startswith("spark.sql.")}
    else:
        java = find_java(env)
        os.environ["JAVA_HOME"] = str(java.home)
        if threads_of(options.master) is not None:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.master(options.master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
        session.dataSource.register(JobMasterSource)
        session.dataSource.register(PostgresSource)
    except PySparkException as error:
        raise Refused(f"Spark does not start on {options.master}: {first_line(error)}") from error
    return session
