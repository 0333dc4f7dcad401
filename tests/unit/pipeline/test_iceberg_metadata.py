"""Iceberg metadata over files that the test has written: columns that are added, what stays of earlier versions, errors."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobmaster.model.archive import LakeFile
from jobmaster.model.errors import Unavailable
from jobmaster.pipeline.lake import iceberg_metadata, schema
from jobmaster.pipeline.lake.lake import Lake

pytest.importorskip("pyiceberg", reason="the extra `iceberg` is not installed")
pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")
METADATA = "logs/v1/metadata"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "the lake"))


def lake_file(lake: Lake, number: int, dataset: str = "logs") -> LakeFile:
    """A file of one row, with the columns that the lake has at this moment."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = schema.dataset_schema(dataset)
    values: dict[Any, Any] = {pa.string(): "x"}
    row = {
        field.name: datetime(2030, 1, 1, tzinfo=UTC)
        if pa.types.is_timestamp(field.type)
        else values.get(field.type, number)
        for field in columns
    }
    path = f"{dataset}/v1/run=1/day=2030-01-01/{number}.parquet"
    with lake.writing(path) as stream:
        parquet.write_table(pa.Table.from_pylist([row], schema=columns), stream)
    return LakeFile(dataset, path, 1, lake.size(path) or 0)


def written(lake: Lake, count: int) -> list[LakeFile]:
    """So many files, and a version of the table for each."""
    files: list[LakeFile] = []
    for number in range(count):
        files.append(lake_file(lake, number))
        iceberg_metadata.write(lake, files)
    return files


def table_of(lake: Lake, version: int | None = None) -> Any:
    from pyiceberg.table import StaticTable

    assert lake.local is not None
    place = lake.local / "logs/v1"
    return StaticTable.from_metadata(str(place if version is None else place / f"metadata/v{version}.metadata.json"))


def keep_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_metadata, "KEPT_VERSIONS", 3)
    monkeypatch.setitem(iceberg_metadata._PROPERTIES, "write.metadata.previous-versions-max", "3")


def test_a_column_that_the_lake_gains_is_added_to_the_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    files = written(lake, 1)
    monkeypatch.setitem(schema.SCHEMAS, "logs", f"{schema.LOGS}, colour string")
    iceberg_metadata.write(lake, files)
    assert table_of(lake).schema().column_names[-1] == "colour", "also before a file has it"
    files.append(lake_file(lake, 1))
    iceberg_metadata.write(lake, files)
    assert sorted(table_of(lake).scan().to_arrow()["colour"].to_pylist(), key=str) == [None, "x"]
    assert len(table_of(lake, 1).scan().to_arrow()) == 1, "readers of the earlier version go on"


def test_a_change_syncs_only_what_it_has_written(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    files = written(lake, 3)
    before = {path for path in lake.files(METADATA) if path.endswith(".avro")}
    synced: list[str] = []
    monkeypatch.setattr(lake, "sync", synced.append)
    iceberg_metadata.write(lake, [*files, lake_file(lake, 3)])
    new = {path for path in lake.files(METADATA) if path.endswith(".avro")} - before
    assert len(new) == 2, "one list of manifests, one manifest"
    assert set(synced) == new


def test_only_the_kept_versions_stay_and_each_of_them_is_readable(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_three(monkeypatch)
    written(lake, 8)
    with lake.writing(f"{METADATA}/of-a-killed-run-m0.avro") as stream:
        stream.write(b"x")
    files = [lake_file(lake, 100)]
    iceberg_metadata.write(lake, files)
    versions = {int(found[1]) for path in lake.files(METADATA) if (found := re.search(r"v(\d+)\.metadata", path))}
    assert versions == {6, 7, 8, 9}
    assert {version: len(table_of(lake, version).scan().to_arrow()) for version in versions} == {6: 6, 7: 7, 8: 8, 9: 1}
    assert len(table_of(lake).metadata.snapshots) == 4
    assert not [path for path in lake.files(METADATA) if "killed" in path]
    for number in range(3):
        files.append(lake_file(lake, 101 + number))
        iceberg_metadata.write(lake, files)
    # Four lists, five manifests (one of what is gone), the metadata of four versions, the hint: nothing of the first eight.
    assert len(lake.files(METADATA)) == 14


def test_the_number_of_manifests_does_not_grow_with_the_number_of_changes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(iceberg_metadata._PROPERTIES, "commit.manifest.min-count-to-merge", "3")
    written(lake, 9)
    table = table_of(lake)
    assert len(table.current_snapshot().manifests(table.io)) <= 3
    assert len(table.scan().to_arrow()) == 9


def test_a_table_of_an_earlier_build_gets_the_bound_with_its_next_change(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(iceberg_metadata, "_PROPERTIES", {})
        earlier.setattr(iceberg_metadata, "_sweep", lambda *_: None)
        earlier.setattr(iceberg_metadata, "_expire", lambda _: None)
        files = written(lake, 7)
    keep_three(monkeypatch)
    iceberg_metadata.write(lake, [*files, lake_file(lake, 100)])
    table = table_of(lake)
    assert len(table.metadata.snapshots) == 4
    assert sum(path.endswith(".metadata.json") for path in lake.files(METADATA)) == 4
    assert table.properties["write.metadata.previous-versions-max"] == "3"
    assert len(table.scan().to_arrow()) == 8


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            "v1.metadata.json",
            r"version-hint.text of the lake .* names logs/v1/metadata/v1.metadata.json, which is not there",
        ),
        ("snap-*.avro", r"table logs/v1 of the lake .* cannot be written: .*snap-\S+\.avro"),
        ("*-m0.avro", r"table logs/v1 of the lake .* cannot be written: .*-m0\.avro"),
    ],
)
def test_a_file_that_is_missing_is_named_with_the_command_that_mends_it(lake: Lake, broken: str, said: str) -> None:
    assert lake.local is not None
    files = written(lake, 1)
    [path] = (lake.local / METADATA).glob(broken)
    path.unlink()
    files.append(lake_file(lake, 1))
    with pytest.raises(Unavailable, match=said) as caught:
        iceberg_metadata.write(lake, files)
    assert f"delete the directory {lake.local / METADATA} and run jobmaster pipeline tables" in str(caught.value.hint)
    for left in (lake.local / METADATA).iterdir():
        left.unlink()
    iceberg_metadata.write(lake, files)
    assert len(table_of(lake).scan().to_arrow()) == 2, "the hint mends it"


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format-version": 7}', b'{"format-version": 2, "location": 3}'])
def test_metadata_that_is_none_is_one_sentence(lake: Lake, content: bytes) -> None:
    files = written(lake, 1)
    lake.write(f"{METADATA}/v1.metadata.json", content)
    with pytest.raises(Unavailable, match=r"the Iceberg table logs/v1 of the lake .* cannot be written: "):
        iceberg_metadata.write(lake, files)


@pytest.mark.parametrize("content", [b"", b"soon"])
def test_a_hint_that_is_no_number_is_one_sentence(lake: Lake, content: bytes) -> None:
    files = written(lake, 1)
    lake.write(f"{METADATA}/version-hint.text", content)
    with pytest.raises(Unavailable, match=r"version-hint.text of the lake .* has no number"):
        iceberg_metadata.write(lake, files)


@pytest.mark.parametrize("cut", ["snap-*.avro", "*-m0.avro"])
def test_a_manifest_that_is_cut_is_one_sentence(lake: Lake, cut: str) -> None:
    assert lake.local is not None
    files = written(lake, 1)
    [path] = (lake.local / METADATA).glob(cut)
    for length in (0, 3, 200, path.stat().st_size - 20):
        path.write_bytes(path.read_bytes()[:length])
        with pytest.raises(Unavailable, match=r"the Iceberg table logs/v1 of the lake .* cannot be written: "):
            iceberg_metadata.write(lake, [*files, lake_file(lake, length + 1)])
