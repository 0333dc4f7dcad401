"""The lake as Delta tables, read by another program: just the files of the manifest, also after a run that was killed."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from jobmaster.model.errors import Refused
from jobmaster.pipeline.steps.archive import archive
from jobmaster.pipeline.steps.forget_jobs import Forgotten, compact, forget_jobs
from jobmaster.pipeline.steps.tables import tables
from tests.integration.spark.steps.conftest import SeededCluster
from tests.integration.spark.steps.lake.test_forget import end_at

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = [pytest.mark.slow, pytest.mark.spark]
ROWS = 200
needs_deltalake = pytest.mark.skipif(find_spec("deltalake") is None, reason="the extra `delta` is not installed")


def table_of(seeded: SeededCluster, dataset: str = "jobs") -> Any:
    from deltalake import DeltaTable

    return DeltaTable(str(seeded.lake / dataset / "v1"))


def rows_of(seeded: SeededCluster, dataset: str = "jobs") -> pa.Table:
    return table_of(seeded, dataset).to_pyarrow_table()


@needs_deltalake
def test_the_tables_follow_the_archive_and_what_is_forgotten(
    seeded: SeededCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded.fill_days(3, 2, rows=ROWS)
    archive(seeded.run(), 2 * 86_400.0 - 5, keep=False)
    assert not (seeded.lake / "jobs/v1/_delta_log").exists(), "only who asks for tables gets them"
    tables(seeded.run())
    assert (len(rows_of(seeded)), table_of(seeded).version()) == (ROWS, 0)
    attempts = len(rows_of(seeded, "attempts"))
    assert attempts > 0
    tables(seeded.run())
    assert table_of(seeded).version() == 0, "nothing is new"

    archive(seeded.run(), 2.0, keep=False)
    assert table_of(seeded).version() == 1
    days = sorted({str(day) for day in rows_of(seeded)["day"].to_pylist()})
    assert len(days) == 2
    ids = set(rows_of(seeded)["id"].to_pylist())
    assert len(ids) == 2 * ROWS
    young = table_of(seeded).to_pyarrow_table(filters=[("day", "=", date.fromisoformat(days[1]))])
    assert (len(young), young.schema.field("created_at").type.tz) == (ROWS, "UTC")

    end_at("the row is committed", monkeypatch, partial(compact, seeded.run()))
    compact(seeded.run())
    assert set(rows_of(seeded)["id"].to_pylist()) == ids
    assert len(table_of(seeded).file_uris()) == 2
    oldest = datetime.fromisoformat(days[0]).replace(tzinfo=UTC) + timedelta(days=1)
    assert forget_jobs(seeded.run(), Forgotten(before=oldest)).rows == ROWS
    assert {str(day) for day in rows_of(seeded)["day"].to_pylist()} == {days[1]}
    tables(seeded.run(), stop=True)
    assert forget_jobs(seeded.run(), Forgotten()).rows == ROWS
    assert table_of(seeded).file_uris(), "it is left as it was"


@needs_deltalake
def test_the_log_has_the_times_of_each_file_so_that_readers_leave_files_out(seeded: SeededCluster) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    seeded.fill_days(3, 2, rows=ROWS)
    archive(seeded.run(), 2.0, keep=False)
    tables(seeded.run())
    actions = pa.table(table_of(seeded).get_add_actions(flatten=True)).to_pylist()
    assert sum(one["num_records"] for one in actions) == 2 * ROWS
    for one in actions:
        times = parquet.read_table(seeded.lake / "jobs/v1" / one["path"], columns=["created_at"])[
            "created_at"
        ].to_pylist()
        assert one["min.created_at"] <= min(times)
        assert max(times) <= one["max.created_at"] < max(times) + timedelta(milliseconds=1)


def test_without_the_package_it_is_one_sentence(seeded: SeededCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmaster.pipeline.lake.table_packages.find_spec", lambda name: None)
    with pytest.raises(Refused, match="the package deltalake is not installed") as caught:
        tables(seeded.run())
    assert 'pip install "jobmaster-cluster[delta]"' in str(caught.value.hint)
    assert not seeded.lake.exists() or not (seeded.lake / "_manifest/delta.json").exists()
