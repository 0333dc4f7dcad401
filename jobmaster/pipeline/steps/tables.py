"""``tables``: the archived ranges as Delta or Iceberg tables, which archiver and rewriter keep up to date from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from jobmaster.master.history.archive import Archive
from jobmaster.model.archive import ArchiveState, LakeFile
from jobmaster.model.errors import Unavailable
from jobmaster.model.ids import text
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.lake import delta_log, iceberg_metadata
from jobmaster.pipeline.lake.lake import Lake, folder_of
from jobmaster.pipeline.lake.schema import SCHEMAS
from jobmaster.pipeline.lake.table_packages import DELTA, ICEBERG, require_table_package
from jobmaster.pipeline.spark.session import require_extra
from jobmaster.wiring import open_archive

_LOCK = "tables"
_TURN_SECONDS = 0.5
_PATIENCE_SECONDS = 600.0


class TableFormat(NamedTuple):
    """A format that a lake can have tables of."""

    document: str
    """The mark of a lake that has them."""
    write: Callable[[Lake, Iterable[LakeFile]], Mapping[str, int]]


FORMATS: Mapping[str, TableFormat] = {
    DELTA: TableFormat(delta_log.DOCUMENT, delta_log.write),
    ICEBERG: TableFormat(iceberg_metadata.DOCUMENT, iceberg_metadata.write),
}


def tables(context: PipelineContext, form: str = DELTA, *, stop: bool = False) -> StepResult:
    """Write the tables, and have them kept up to date; with ``stop`` leave them as they are from now on.

    Args:
        form: a key of ``FORMATS``.

    Raises:
        Refused: the lake belongs to another cluster, or the package of the format is not installed.
        Unavailable: the master, the lake or a table does not work; run it again.
    """
    require_extra()
    lake = Lake(context.lake)
    lake.check(text(context.connection.master.cluster.uid), create=not context.dry_run)
    chosen = FORMATS[form]
    if stop:
        if not context.dry_run:
            lake.delete(chosen.document)
        return StepResult(summary={"format": form, "kept": False, "lake": lake.where})
    require_table_package(form)
    connection = context.connection.run(open_archive(context.settings))
    try:
        if context.dry_run:
            files = _published(context, connection, lake)
            return StepResult(summary={"format": form, "files": len(files), "lake": lake.where})
        lake.write_json(chosen.document, {"tables": [folder_of(dataset) for dataset in SCHEMAS]})
        written = _write(context, connection, lake, [chosen])
    finally:
        context.connection.run(connection.close())
    return StepResult(
        summary={"format": form, "tables": {lake.url(folder_of(name)): files for name, files in written.items()}}
    )


def keep_tables(context: PipelineContext, connection: Archive, lake: Lake) -> None:
    """Bring the tables up to the manifest if the lake has them. Files that no range has any more may be deleted then."""
    kept = [one for one in FORMATS.values() if lake.read_json(one.document) is not None]
    if kept:
        _write(context, connection, lake, kept)


def _write(context: PipelineContext, archive: Archive, lake: Lake, formats: list[TableFormat]) -> Mapping[str, int]:
    """One process at a time reads the manifest and writes the tables: a table never goes back. The number of files by
    dataset."""
    wait, waited = context.connection.run, 0.0
    while not wait(archive.take(_LOCK)):
        if waited >= _PATIENCE_SECONDS:
            raise Unavailable(
                f"another process has been writing the tables of the lake for {_PATIENCE_SECONDS:.0f} s",
                hint="look for jobmaster-archive in pg_stat_activity; run jobmaster pipeline tables when it has ended",
            )
        wait(asyncio.sleep(_TURN_SECONDS))
        waited += _TURN_SECONDS
    try:
        files, written = _published(context, archive, lake), {}
        for one in formats:
            written = dict(one.write(lake, files))
        return written
    finally:
        wait(archive.let_go(_LOCK))


def _published(context: PipelineContext, archive: Archive, lake: Lake) -> list[LakeFile]:
    """The files of the manifest that lie in this lake."""
    states = (ArchiveState.PUBLISHED, ArchiveState.DROPPED)
    return [
        file
        for found in context.connection.run(archive.ranges())
        if found.state in states and not found.discarded and found.lake == lake.root
        for file in found.files
    ]
