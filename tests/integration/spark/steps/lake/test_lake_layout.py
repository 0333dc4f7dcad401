"""The files of the lake are plain Parquet: other tools prune by day and cluster, and files of earlier versions are read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobmaster.model.errors import Refused
from jobmaster.pipeline.context import PipelineContext, PipelineOptions
from jobmaster.pipeline.lake.lake import Lake
from jobmaster.pipeline.steps.archive import archive
from jobmaster.settings.model import ClusterSettings
from tests.integration.spark.steps.conftest import SeededCluster, forge
from tests.integration.spark.steps.test_history_table import ids_of, options_of, reader_of

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = [pytest.mark.slow, pytest.mark.spark]
ROWS = 200


@pytest.fixture
def archived(seeded: SeededCluster) -> SeededCluster:
    """Two days in a lake that lies below a root for several clusters."""
    seeded.lake = seeded.lake.with_name("the root") / "cluster={cluster}"
    seeded.fill_days(3, 2, rows=ROWS)
    assert archive(seeded.run(), 2.0, keep=False).rows == 2 * ROWS
    seeded.lake = Path(seeded.run().lake)
    return seeded


def documents(archived: SeededCluster) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((archived.lake / "_manifest/jobs").glob("*.json"))]


def test_another_tool_reads_the_files_by_their_paths_and_prunes_by_day_and_cluster(archived: SeededCluster) -> None:
    """Nothing of ours is used here but the names of directories."""
    from pyarrow import dataset

    assert archived.lake.name == f"cluster={archived.settings.cluster}"
    root = archived.lake.parent
    beside = root / "cluster=other/jobs/v1/run=1/day=2030-01-01/part.parquet"
    beside.parent.mkdir(parents=True)
    paths = sorted(archived.lake.glob("jobs/v1/run=*/day=*/*.parquet"))
    beside.write_bytes(paths[0].read_bytes())
    named = {file["path"] for one in documents(archived) for file in one["files"] if file["dataset"] == "jobs"}
    assert {str(path.relative_to(archived.lake)) for path in paths} == named, "after a vacuum no other file is there"
    every = [str(path) for path in sorted(root.glob("cluster=*/jobs/v1/run=*/day=*/*.parquet"))]
    jobs = dataset.dataset(every, partitioning=dataset.partitioning(flavor="hive"), partition_base_dir=str(root))
    days = Counter(path.parent.name.removeprefix("day=") for path in paths)
    ours = dataset.field("cluster") == archived.settings.cluster
    assert jobs.count_rows(filter=ours) == 2 * ROWS
    assert len(days) == 2
    for day, files in days.items():
        chosen = ours & (dataset.field("day") == day)
        assert len(list(jobs.get_fragments(filter=chosen))) == files
        rows = jobs.to_table(filter=chosen, columns=["id", "created_at", "state"])
        assert (len(rows), {str(one.date()) for one in rows["created_at"].to_pylist()}) == (ROWS, {day})


def test_one_lake_is_of_one_cluster_and_a_name_with_the_cluster_gives_each_its_own(archived: SeededCluster) -> None:
    lake = str(archived.lake.parent / "cluster={cluster}")
    other = PipelineContext(ClusterSettings(cluster="other"), PipelineOptions(lake=lake))
    assert other.lake == str(archived.lake.parent / "cluster=other")
    with pytest.raises(Refused, match="belongs to another cluster") as caught:
        Lake(str(archived.lake)).check("another uid", create=True)
    assert "--lake '/srv/lake/cluster={cluster}'" in str(caught.value.hint)


def older(table: pa.Table) -> pa.Table:
    """As a version wrote it that had neither of the last two columns."""
    return table.drop_columns(table.schema.names[-2:])


def test_files_of_an_earlier_version_are_read_with_newer_ones_and_compacted_into_them(archived: SeededCluster) -> None:
    from pyarrow import parquet

    from jobmaster.pipeline.lake.schema import JOBS, dataset_schema
    from jobmaster.pipeline.steps.forget_jobs import compact

    reader = reader_of(options_of(archived))
    before = sorted(ids_of(reader, reader.partitions()))
    forged = forge(archived, older)
    assert "expires_at" not in parquet.read_schema(forged).names
    reader = reader_of(options_of(archived), "error")
    assert sorted(ids_of(reader, reader.partitions())) == before
    assert archived.spark is not None
    paths = [f"file://{path}" for path in sorted(archived.lake.glob("jobs/v1/*/*/*.parquet"))]
    frame = archived.spark.read.schema(JOBS).parquet(*paths)
    assert (frame.count(), frame.where("error IS NOT NULL").count() > 0) == (2 * ROWS, True)
    compact(archived.run())
    files = sorted(archived.lake.glob("jobs/v1/*/*/*.parquet"))
    assert [parquet.read_schema(path).names for path in files] == [dataset_schema("jobs").names] * 2
    reader = reader_of(options_of(archived))
    assert sorted(ids_of(reader, reader.partitions())) == before
