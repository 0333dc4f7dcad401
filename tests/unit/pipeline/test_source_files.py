"""Which files a task has finished, from the files of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobmaster.pipeline.datasource.source_files import FILE, FileTracker, FinishedFile

if TYPE_CHECKING:
    import pyarrow as pa

pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")


def rows(*files: int | None) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.record_batch({"key": ["k"] * len(files), FILE: pa.array(files, pa.int64())})


def test_a_file_is_finished_when_rows_of_another_one_follow_and_at_the_end() -> None:
    tracker = FileTracker()
    assert tracker.written(rows(1, 1, 2), 0) == [FinishedFile(1, 2)]
    assert tracker.written(rows(2, 2), 0) == []
    assert tracker.written(rows(3, 4), 0) == [FinishedFile(2, 3), FinishedFile(3, 1)]
    assert tracker.ended() == [FinishedFile(4, 1)]


def test_no_file_with_a_refused_row_and_no_part_of_a_file_is_finished() -> None:
    tracker = FileTracker()
    assert tracker.written(rows(1, 1), 1) == []
    assert tracker.written(rows(1, None, None, 2), 0) == []
    assert tracker.written(rows(2, 3), 0) == [FinishedFile(2, 2)]
    assert tracker.written(rows(4, 5), 1) == [FinishedFile(3, 1)], "either may have the refused row"
    assert tracker.ended() == []


def test_rows_without_files_finish_none() -> None:
    import pyarrow as pa

    tracker = FileTracker()
    assert tracker.written(pa.record_batch({"key": ["a"]}), 0) == []
    assert tracker.ended() == []
