"""Refused rows as Parquet, with their reasons: one file a task, readable once the run has ended.

Files of a run lie under ``.writing-<run>`` until then, where no reader of the directory looks, and those of tasks that were
run twice stay behind and are deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobmaster.pipeline.datasource.row_parser import RejectedRow

if TYPE_CHECKING:
    import pyarrow as pa


def rejects_schema() -> pa.Schema:
    """Columns of the files."""
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in ("key", "handler", "args", "reason", "batch", "run_id")])


class RejectsFile:
    """The file of one task; made when the first row is refused."""

    def __init__(self, where: str, run_id: str, batch: str, name: str) -> None:
        self._where, self._run_id, self._batch, self._name = where, run_id, batch, name
        self._writer: Any = None
        self.count = 0

    @property
    def name(self) -> str | None:
        """Name of the file, ``None`` while there is none."""
        return self._name if self.count else None

    def add(self, rejects: Sequence[RejectedRow]) -> None:
        """Write some rows."""
        import pyarrow as pa
        from pyarrow import parquet

        if not rejects:
            return
        schema = rejects_schema()
        if self._writer is None:
            system, path = _system(self._where)
            folder = f"{path}/{_folder(self._run_id)}"
            system.create_dir(folder, recursive=True)
            self._writer = parquet.ParquetWriter(
                f"{folder}/{self._name}", schema, filesystem=system, compression="zstd"
            )
        rows = [{**one._asdict(), "batch": self._batch, "run_id": self._run_id} for one in rejects]
        self._writer.write_table(pa.Table.from_pylist(rows, schema=schema))
        self.count += len(rejects)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()


def publish(where: str, run_id: str, names: Sequence[str]) -> None:
    """Move the files of the tasks that count to where readers look, and delete the others."""
    system, path = _system(where)
    for name in names:
        system.move(f"{path}/{_folder(run_id)}/{name}", f"{path}/{name}")
    discard(where, run_id)


def discard(where: str, run_id: str) -> None:
    """Delete what is left of a run."""
    from pyarrow import fs

    system, path = _system(where)
    folder = f"{path}/{_folder(run_id)}"
    if system.get_file_info(folder).type is not fs.FileType.NotFound:
        system.delete_dir(folder)


def _folder(run_id: str) -> str:
    return f".writing-{run_id}"


def _system(where: str) -> tuple[Any, str]:
    from pyarrow import fs

    if "://" in where:
        return fs.FileSystem.from_uri(where)
    return fs.LocalFileSystem(), where.rstrip("/")
