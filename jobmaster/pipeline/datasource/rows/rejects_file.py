"""Rejected rows as Parquet files, with their reasons: one file per task, visible once the run has ended.

Until then the files of a run are in ``.writing-<run>``, which readers of the directory skip. Files of repeated tasks stay
there and are deleted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from socket import gethostname
from typing import TYPE_CHECKING, Any

from jobmaster.model.errors import InputError
from jobmaster.pipeline.datasource.file_systems import file_system_of
from jobmaster.pipeline.datasource.rows.row_parser import RejectedRow

if TYPE_CHECKING:
    import pyarrow as pa

_MARK = "_begun"


def rejects_schema() -> pa.Schema:
    """Columns of the files."""
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in ("key", "handler", "args", "reason", "batch", "run_id")])


class RejectsFile:
    """The file of one task; created with the first rejected row."""

    def __init__(self, where: str, run_id: str, batch: str, name: str) -> None:
        self._where, self._run_id, self._batch, self._name = where, run_id, batch, name
        self._writer: Any = None
        self.count = 0

    @property
    def name(self) -> str | None:
        """Name of the file; ``None`` before the first row."""
        return self._name if self.count else None

    def add(self, rejects: Sequence[RejectedRow]) -> None:
        """Write some rows."""
        import pyarrow as pa
        from pyarrow import parquet

        if not rejects:
            return
        schema = rejects_schema()
        if self._writer is None:
            system, path = file_system_of(self._where)
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


def shared_path(where: str) -> str:
    """A directory as every process finds it: executors have other working directories than the driver."""
    return where if "://" in where else os.path.abspath(where)


def prepare(where: str, run_id: str) -> None:
    """Create the folder of a run, with a mark by which its tasks know the directory.

    Raises:
        InputError: the directory cannot be written.
    """
    try:
        system, path = file_system_of(where)
        folder = f"{path}/{_folder(run_id)}"
        system.create_dir(folder, recursive=True)
        with system.open_output_stream(f"{folder}/{_MARK}"):
            pass
    except (OSError, ValueError) as error:
        raise InputError(
            f"refused rows cannot be written to {where}: {error}", hint="give option rejects another directory or URL"
        ) from error


def require_prepared(where: str, run_id: str) -> None:
    """Check in a task that the directory is the one of the driver, before the first row is written.

    Raises:
        InputError: this machine has another directory of that name.
    """
    from pyarrow import fs

    try:
        system, path = file_system_of(where)
        found = system.get_file_info(f"{path}/{_folder(run_id)}/{_MARK}").type is fs.FileType.File
    except (OSError, ValueError) as error:
        raise InputError(f"refused rows cannot be written to {where} on {gethostname()}: {error}") from error
    if not found:
        raise InputError(
            f"directory {where} for refused rows is not the same one on {gethostname()} as on the machine of the driver",
            hint="give option rejects a URL, or a path of storage that every machine of the cluster shares",
        )


def publish(where: str, run_id: str, names: Sequence[str]) -> None:
    """Move the named files into the directory, and delete the other files of the run.

    Files that an earlier end of the same run has published are replaced: Spark may repeat a micro-batch that has ended.
    """
    from pyarrow import fs

    system, path = file_system_of(where)
    for known in system.get_file_info(fs.FileSelector(path)):
        if known.base_name.startswith(f"part-{run_id}-"):
            system.delete_file(known.path)
    for name in names:
        system.move(f"{path}/{_folder(run_id)}/{name}", f"{path}/{name}")
    discard(where, run_id)


def discard(where: str, run_id: str) -> None:
    """Delete the unpublished files of a run."""
    from pyarrow import fs

    system, path = file_system_of(where)
    folder = f"{path}/{_folder(run_id)}"
    if system.get_file_info(folder).type is not fs.FileType.NotFound:
        system.delete_dir(folder)


def _folder(run_id: str) -> str:
    return f".writing-{run_id}"
