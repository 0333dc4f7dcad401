"""Which files of its source a task has written whole, so that a submit that continues does not read them again.

A submit of files gives each row the number of its file, if one task reads the whole file. The rows of a file come one after
the other. A file with a refused row is not finished: its refused rows are to lie with those of the run that ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "source_file"
"""Column of a write: the number of the row's file; null: several tasks read the file."""


class FinishedFile(NamedTuple):
    """A file whose rows are all jobs."""

    file: int
    rows: int


class FileTracker:
    """Follows the files in the rows of one task."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._rows = 0
        self._is_whole = True
        """No row of it was refused so far."""

    def written(self, batch: pa.RecordBatch, refused: int) -> list[FinishedFile]:
        """The files that have ended before the last row of some rows, which are written.

        Args:
            refused: rows of the batch that are no jobs. They may be of any of its files.
        """
        from pyarrow import compute as pc

        if FILE not in batch.schema.names:
            return []
        runs = pc.run_end_encode(batch.column(FILE))
        found: list[FinishedFile] = []
        begin = 0
        for file, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            if file != self._file:
                found += self.ended()
                self._file, self._rows, self._is_whole = file, 0, True
            self._rows += end - begin
            self._is_whole &= not refused
            begin = end
        return found

    def ended(self) -> list[FinishedFile]:
        """The file of the last row, if it is finished: no row of it follows."""
        is_finished = self._file is not None and self._is_whole
        return [FinishedFile(self._file, self._rows)] if is_finished and self._file is not None else []
