"""The log of a Delta table over files that the test has written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jobmaster.model.archive import LakeFile
from jobmaster.model.errors import Refused
from jobmaster.pipeline.lake import delta_log, schema
from jobmaster.pipeline.lake.lake import Lake
from tests.unit.pipeline.test_iceberg_metadata import lake_file

pytest.importorskip("deltalake", reason="the extra `delta` is not installed")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "the lake"))


def place_of(lake: Lake) -> Path:
    assert lake.local is not None
    return lake.local / "logs/v1"


def table_of(lake: Lake) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(str(place_of(lake)))


def commits(lake: Lake, after: int = -1) -> list[list[dict[str, Any]]]:
    """The actions of each commit in the order of the log."""
    paths = sorted(place_of(lake).glob("_delta_log/*.json"))
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths if int(path.stem) > after]


def files_by_lines(lake: Lake) -> set[str]:
    """The files of the table by a reader that applies the lines in order, as Spark does: the last checkpoint, then each
    line."""
    from pyarrow import parquet

    log, last, found = place_of(lake) / "_delta_log", -1, set()
    if (log / "_last_checkpoint").exists():
        last = json.loads((log / "_last_checkpoint").read_text())["version"]
        rows = parquet.read_table(log / f"{last:020}.checkpoint.parquet")["add"].to_pylist()
        found = {row["path"] for row in rows if row is not None}
    for commit in commits(lake, last):
        for action in commit:
            if "add" in action:
                found.add(action["add"]["path"])
            elif "remove" in action:
                found.discard(action["remove"]["path"])
    return found


def paths_of(files: Sequence[LakeFile]) -> set[str]:
    return {file.path.removeprefix("logs/v1/") for file in files}


def rows_of(lake: Lake) -> list[int]:
    return sorted(table_of(lake).to_pyarrow_table()["number"].to_pylist())


def test_a_column_that_the_lake_gains_is_added_to_the_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [lake_file(lake, 0)]
    delta_log.write(lake, files)
    monkeypatch.setitem(schema.SCHEMAS, "logs", f"{schema.LOGS}, colour string")
    files.append(lake_file(lake, 1))
    delta_log.write(lake, files)
    found = table_of(lake).to_pyarrow_table()
    assert sorted(found["colour"].to_pylist(), key=str) == [None, "x"]


def test_a_commit_names_only_the_files_that_come_and_go(lake: Lake) -> None:
    """A file that a commit adds and removes is there for ``deltalake`` and gone for Spark."""
    import pyarrow as pa
    from deltalake import write_deltalake

    a, b, c, d = (lake_file(lake, number) for number in range(4))
    for wanted in ([a, b, c], [b, c, d], [], [b]):
        delta_log.write(lake, wanted)
        assert files_by_lines(lake) == paths_of(wanted)
        assert len(table_of(lake).file_uris()) == len(wanted)
    foreign = pa.Table.from_pylist(
        table_of(lake).to_pyarrow_table().to_pylist() * 2, schema=pa.schema(table_of(lake).schema())
    )
    write_deltalake(str(place_of(lake)), foreign, mode="append")
    assert len(rows_of(lake)) == 3
    delta_log.write(lake, [b, d])
    assert files_by_lines(lake) == paths_of([b, d]), "what another program has written is removed"
    assert rows_of(lake) == [1, 3]
    for commit in commits(lake):
        added, removed = ({one[kind]["path"] for one in commit if kind in one} for kind in ("add", "remove"))
        assert not added & removed
    (change,) = commits(lake)[1:2]
    removal = next(one["remove"] for one in change if "remove" in one)
    assert {removal["path"]} == paths_of([a])
    assert (removal["size"], removal["partitionValues"]) == (a.bytes, {"day": "2030-01-01"})
    version = table_of(lake).version()
    delta_log.write(lake, [b, d])
    assert table_of(lake).version() == version, "nothing is new"


def test_a_table_of_an_earlier_version_gets_a_checkpoint_once(lake: Lake) -> None:
    """As that version left it: a commit that removes all files and adds again those that stay."""
    from deltalake import Schema

    files = [lake_file(lake, number) for number in range(3)]
    delta_log.write(lake, files)
    table = table_of(lake)
    stay = list(delta_log._actions(lake, "logs", files[1:]))
    table.create_write_transaction(stay, "overwrite", Schema.from_arrow(delta_log._table_schema("logs")), ["day"])
    assert files_by_lines(lake) == set(), "by the order of the lines no file is left"
    assert rows_of(lake) == [1, 2]
    delta_log.write(lake, files[1:])
    assert files_by_lines(lake) == paths_of(files[1:])
    version = table_of(lake).version()
    delta_log.write(lake, files[1:])
    assert table_of(lake).version() == version
    assert len(list(place_of(lake).glob("_delta_log/*.checkpoint.parquet"))) == 1


def test_a_package_that_removes_no_single_file_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("deltalake.transaction.RemoveAction")
    with pytest.raises(Refused, match=r"deltalake [\d.]+ is too old") as caught:
        delta_log.write(lake, [lake_file(lake, 0)])
    assert 'pip install "jobmaster-cluster[delta]"' in str(caught.value.hint)
