"""``tables``: the archived ranges as Delta tables, which the archiver and the rewriter keep up to date from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from jobmaster.master.history.archive import Archive
from jobmaster.model.archive import ArchiveState, LakeFile
from jobmaster.model.errors import Unavailable
from jobmaster.model.ids import text
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.lake import delta_log
from jobmaster.pipeline.lake.lake import Lake
from jobmaster.pipeline.lake.schema import SCHEMAS
from jobmaster.pipeline.spark.session import require_extra
from jobmaster.wiring import open_archive

_LOCK = "tables"
_TURN_SECONDS = 0.5
_PATIENCE_SECONDS = 600.0


def tables(context: PipelineContext, *, stop: bool = False) -> StepResult:
    """Write the tables, and have them kept up to date; with ``stop`` leave them as they are from now on.

    Raises:
        Refused: the lake belongs to another cluster, or the package deltalake is not installed.
        Unavailable: the master, the lake or a log does not work; run it again.
    """
    require_extra()
    lake = Lake(context.lake)
    lake.check(text(context.connection.master.cluster.uid), create=not context.dry_run)
    if stop:
        if not context.dry_run:
            lake.delete(delta_log.DOCUMENT)
        return StepResult(summary={"kept": False, "lake": lake.where})
    delta_log.require_deltalake()
    connection = context.connection.run(open_archive(context.settings))
    try:
        if context.dry_run:
            files = _published(context, connection, lake)
            return StepResult(summary={"files": len(files), "lake": lake.where})
        lake.write_json(delta_log.DOCUMENT, {"tables": [delta_log.folder_of(dataset) for dataset in SCHEMAS]})
        written = _write(context, connection, lake)
    finally:
        context.connection.run(connection.close())
    return StepResult(
        summary={"tables": {lake.url(delta_log.folder_of(name)): files for name, files in written.items()}}
    )


def keep_tables(context: PipelineContext, connection: Archive, lake: Lake) -> None:
    """Bring the tables up to the manifest if the lake has them. Files that no range has any more may be deleted then."""
    if lake.read_json(delta_log.DOCUMENT) is not None:
        _write(context, connection, lake)


def _write(context: PipelineContext, archive: Archive, lake: Lake) -> Mapping[str, int]:
    """One process at a time reads the manifest and writes the logs: a log never goes back."""
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
        return delta_log.write(lake, _published(context, archive, lake))
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
