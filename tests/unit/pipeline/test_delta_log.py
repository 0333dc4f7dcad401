"""The log of a Delta table over files that the test has written."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobmaster.pipeline.lake import delta_log, schema
from jobmaster.pipeline.lake.lake import Lake
from tests.unit.pipeline.test_iceberg_metadata import lake_file

pytest.importorskip("deltalake", reason="the extra `delta` is not installed")


def test_a_column_that_the_lake_gains_is_added_to_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deltalake import DeltaTable

    lake = Lake(str(tmp_path / "the lake"))
    files = [lake_file(lake, 0)]
    delta_log.write(lake, files)
    monkeypatch.setitem(schema.SCHEMAS, "logs", f"{schema.LOGS}, colour string")
    files.append(lake_file(lake, 1))
    delta_log.write(lake, files)
    found = DeltaTable(str(tmp_path / "the lake/logs/v1")).to_pyarrow_table()
    assert sorted(found["colour"].to_pylist(), key=str) == [None, "x"]
