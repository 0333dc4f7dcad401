"""The lake as Iceberg tables, read by another program: just the files of the manifest, also after a run that was killed."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from jobmaster.model.errors import Refused
from jobmaster.pipeline.lake.lake import Lake
from jobmaster.pipeline.steps.archive import archive
from jobmaster.pipeline.steps.forget_jobs import Forgotten, compact, forget_jobs
from jobmaster.pipeline.steps.tables import tables
from tests.integration.spark.steps.conftest import SeededCluster
from tests.integration.spark.steps.lake.test_forget import end_at

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = [pytest.mark.slow, pytest.mark.spark]
ROWS = 200
needs_pyiceberg = pytest.mark.skipif(find_spec("pyiceberg") is None, reason="the extra `iceberg` is not installed")


def table_of(seeded: SeededCluster, dataset: str = "jobs") -> Any:
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(str(seeded.lake / dataset / "v1"))


def rows_of(seeded: SeededCluster, dataset: str = "jobs", **scan: Any) -> pa.Table:
    return table_of(seeded, dataset).scan(**scan).to_arrow()


def files_of(seeded: SeededCluster, **scan: Any) -> list[str]:
    return [task.file.file_path for task in table_of(seeded).scan(**scan).plan_files()]


def version(seeded: SeededCluster) -> int:
    return int((seeded.lake / "jobs/v1/metadata/version-hint.text").read_text())


@needs_pyiceberg
def test_the_tables_follow_the_archive_and_what_is_forgotten(
    seeded: SeededCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded.fill_days(3, 2, rows=ROWS)
    archive(seeded.run(), 2 * 86_400.0 - 5, keep=False)
    assert not (seeded.lake / "jobs/v1/metadata").exists(), "only who asks for tables gets them"
    tables(seeded.run(), "iceberg")
    assert (len(rows_of(seeded)), version(seeded)) == (ROWS, 1)
    assert len(rows_of(seeded, "attempts")) > 0
    tables(seeded.run(), "iceberg")
    assert version(seeded) == 1, "nothing is new"

    archive(seeded.run(), 2.0, keep=False)
    assert version(seeded) == 2
    found = rows_of(seeded)
    ids, days = set(found["id"].to_pylist()), sorted({moment.date() for moment in found["created_at"].to_pylist()})
    assert (len(ids), len(days), found.schema.field("created_at").type.tz) == (2 * ROWS, 2, "UTC")
    young = {"row_filter": f"created_at >= '{days[1]}T00:00:00+00:00'"}
    assert len(rows_of(seeded, **young)) == ROWS
    assert len(files_of(seeded, **young)) < len(files_of(seeded)), "readers leave files out by their times"

    end_at("the row is committed", monkeypatch, partial(compact, seeded.run()))
    compact(seeded.run())
    assert set(rows_of(seeded)["id"].to_pylist()) == ids
    assert len(files_of(seeded)) == 2
    oldest = datetime.combine(days[1], datetime.min.time(), UTC)
    assert forget_jobs(seeded.run(), Forgotten(before=oldest)).rows == ROWS
    assert {moment.date() for moment in rows_of(seeded)["created_at"].to_pylist()} == {days[1]}
    tables(seeded.run(), "iceberg", stop=True)
    assert forget_jobs(seeded.run(), Forgotten()).rows == ROWS
    assert files_of(seeded), "it is left as it was"


@needs_pyiceberg
@pytest.mark.parametrize("after", ["metadata.json", pytest.param("version-hint.text", marks=pytest.mark.long)])
def test_a_run_that_was_killed_while_it_wrote_a_table_is_completed_by_the_next(
    seeded: SeededCluster, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """Readers have the earlier table until the name of the new one is written."""
    seeded.fill_days(3, 2, rows=ROWS)
    archive(seeded.run(), 2 * 86_400.0 - 5, keep=False)
    tables(seeded.run(), "iceberg")
    real = Lake.write

    class KilledError(BaseException):
        pass

    def killed(lake: Lake, path: str, content: bytes) -> None:
        real(lake, path, content)
        if path.startswith("jobs/v1/metadata/") and path.endswith(after):
            raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "write", killed)
        with pytest.raises(KilledError):
            archive(seeded.run(), 2.0, keep=False)
    assert len(rows_of(seeded)) == (ROWS if after == "metadata.json" else 2 * ROWS)
    archive(seeded.run(), 2.0, keep=False)
    tables(seeded.run(), "iceberg")
    assert len(rows_of(seeded)) == 2 * ROWS
    assert version(seeded) == 2


@needs_pyiceberg
def test_of_the_values_of_columns_the_metadata_has_times_only(seeded: SeededCluster) -> None:
    """What is forgotten leaves nothing in the manifests of earlier snapshots."""
    seeded.fill_days(2, rows=ROWS)
    archive(seeded.run(), 2.0, keep=False)
    tables(seeded.run(), "iceberg")
    table = table_of(seeded)
    created = table.schema().find_field("created_at").field_id
    for task in table.scan().plan_files():
        assert set(task.file.lower_bounds) == set(task.file.upper_bounds) == {created}
        assert task.file.record_count > 0


@needs_pyiceberg
def test_a_lake_may_have_tables_of_both_formats(seeded: SeededCluster) -> None:
    pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    from deltalake import DeltaTable

    seeded.fill_days(3, rows=ROWS)
    for form in ("delta", "iceberg"):
        tables(seeded.run(), form)
    archive(seeded.run(), 2.0, keep=False)
    assert len(rows_of(seeded)) == len(DeltaTable(str(seeded.lake / "jobs/v1")).to_pyarrow_table()) == ROWS


@needs_pyiceberg
@pytest.mark.skipif(
    "ICEBERG_SPARK_JAR" not in os.environ,
    reason="reading by Spark was not tried: ICEBERG_SPARK_JAR names no iceberg-spark-runtime, and no package index has it",
)
def test_spark_reads_the_table(seeded: SeededCluster) -> None:
    """In a session of its own: a jar is part of its start."""
    import subprocess
    import sys

    seeded.fill_days(2, rows=ROWS)
    archive(seeded.run(), 2.0, keep=False)
    tables(seeded.run(), "iceberg")
    program = (
        "import sys; from pyspark.sql import SparkSession;"
        "spark = SparkSession.builder.master('local[1]').config('spark.jars', sys.argv[1]).getOrCreate();"
        "print(spark.read.format('iceberg').load(sys.argv[2]).count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, os.environ["ICEBERG_SPARK_JAR"], str(seeded.lake / "jobs/v1")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == str(ROWS)


def test_without_the_package_it_is_one_sentence(seeded: SeededCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmaster.pipeline.lake.table_packages.find_spec", lambda name: None)
    with pytest.raises(Refused, match="the package pyiceberg is not installed") as caught:
        tables(seeded.run(), "iceberg")
    assert 'pip install "jobmaster-cluster[iceberg]"' in str(caught.value.hint)
    assert not seeded.lake.exists() or not (seeded.lake / "_manifest/iceberg.json").exists()
