"""``archive``: moves ranges from the master to the lake, step by step; every step is committed in the manifest.

A killed run is repeated and continues from the manifest. A range has one archiver at a time (a lock of the archiver's
session). Its tables are dropped only after its files were read back and matched in count and checksum, and after a second
check of the files right before the drop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from jobmaster.clock import new_id
from jobmaster.master.history.archive import Archive
from jobmaster.master.history.export import measure_logs, open_scan
from jobmaster.model.archive import ArchiveRange, ArchiveState, LakeFile, Measure
from jobmaster.model.errors import Conflict, JobMasterError, Refused, Unavailable
from jobmaster.model.ids import text
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.lake import parquet_export, verify
from jobmaster.pipeline.lake.lake import FORMAT, MARK, Lake, lake_errors
from jobmaster.pipeline.lake.schema import SCHEMAS
from jobmaster.pipeline.spark.session import threads_of
from jobmaster.pipeline.steps.tables import keep_tables
from jobmaster.retention.retire import Retiring
from jobmaster.wiring import open_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFEST = "_manifest/jobs"
_REMOTE_TASKS = 8
"""Connections at once when Spark runs on a cluster, whose size is unknown."""
_EXPORTS = 2
"""Exports per run of a range whose files do not match."""


def archive(
    context: PipelineContext, older_than_seconds: float, *, keep: bool, lost_stores: Sequence[str] = ()
) -> StepResult:
    """Archive every range that is old enough.

    Args:
        older_than_seconds: minimum age of the youngest job of a range.
        keep: leave published ranges in the master, until a later run.
        lost_stores: stores that are lost for good; jobs that only they held are lost.

    Raises:
        Refused: the lake belongs to another cluster, or files do not match; nothing unverified was dropped.
        Conflict: a store may be the only holder of a job of a range. Ranges retired before are archived all the same.
        Unavailable: the master, a store or the lake does not work; run it again.
    """
    with opened(context) as archiver:
        archiver.lake.check(text(context.connection.master.cluster.uid), create=not context.dry_run)
        if context.dry_run:
            return archiver.planned(older_than_seconds, lost_stores)
        archiver.try_lake()
        return archiver.run(older_than_seconds, keep=keep, lost_stores=lost_stores)


@contextmanager
def opened(context: PipelineContext) -> Iterator[Archiver]:
    """An archiver with a session of its own in the master."""
    connection = context.connection.run(open_archive(context.settings))
    try:
        yield Archiver(context, connection)
    finally:
        context.connection.run(connection.close())


class Archiver:
    """One run of ``archive``."""

    def __init__(self, context: PipelineContext, archive: Archive) -> None:
        self.lake = Lake(context.lake)
        self._context = context
        self._archive = archive
        self._wait = context.connection.run
        self._progress = context.progress
        self.jobs = 0
        self.archived: list[str] = []
        self.dropped: list[str] = []
        self.busy: list[str] = []

    def planned(self, older_than_seconds: float, lost_stores: Sequence[str]) -> StepResult:
        """The result of a dry run: the ranges that would be archived."""

        async def look() -> tuple[list[ArchiveRange], list[str]]:
            async with Retiring.opened(
                self._context.settings, self._archive, older_than_seconds, lost_stores
            ) as retiring:
                return await self._archive.ranges(), await self._archive.leaving(retiring.bound)

        ranges, leaving = self._wait(look())
        unfinished = [found.name for found in ranges if found.state not in (ArchiveState.SEALED, ArchiveState.DROPPED)]
        return StepResult(summary={"to_finish": unfinished, "to_leave": leaving})

    def run(self, older_than_seconds: float, *, keep: bool, lost_stores: Sequence[str]) -> StepResult:
        """Retire old ranges, then advance every retired range as far as possible."""
        held_up: Conflict | None = None
        try:
            self._wait(self._retire(older_than_seconds, lost_stores))
        except Conflict as error:
            held_up = error
        for found in self._wait(self._archive.ranges()):
            if found.state not in (ArchiveState.SEALED, ArchiveState.DROPPED):
                self._alone(found.name, keep=keep)
        keep_tables(self._context, self._archive, self.lake)
        if held_up is not None:
            raise held_up
        summary = {
            "archived": self.archived,
            "dropped": self.dropped,
            "archived_jobs": self.jobs,
            "at_work_elsewhere": self.busy,
            "lake": self.lake.where,
        }
        note = None if not self.busy else f"another archiver is at work on {', '.join(self.busy)}"
        return StepResult(rows=self.jobs, summary=summary, note=note)

    async def _retire(self, older_than_seconds: float, lost_stores: Sequence[str]) -> None:
        async with Retiring.opened(self._context.settings, self._archive, older_than_seconds, lost_stores) as retiring:
            async for _ in retiring.all(self._progress):
                pass

    def _alone(self, name: str, *, keep: bool) -> None:
        """Work on one range unless another archiver does."""
        if not self._wait(self._archive.take(name)):
            self.busy.append(name)
            return
        try:
            found = self._wait(self._archive.range(name))  # read again under the lock
            if found is not None:
                self.advance(found, keep=keep)
        finally:
            with _ignore_errors():
                self._wait(self._archive.let_go(name))

    def advance(self, found: ArchiveRange, *, keep: bool) -> ArchiveRange:
        """Advance a range as far as possible. The caller holds its lock."""
        found = self._in_this_lake(found)
        exports = 0
        while found.state is not ArchiveState.DROPPED:
            match found.state:
                case ArchiveState.DETACHED:
                    exports += 1
                    found = self._step("exported", found, self._export)
                case ArchiveState.EXPORTED:
                    found = self._step("verified", found, partial(self._verify, last=exports >= _EXPORTS))
                case ArchiveState.VERIFIED:
                    found = self._step("published", found, self._publish)
                    self.archived.append(found.name)
                    self.jobs += found.measure.rows if found.measure else 0
                case ArchiveState.PUBLISHED if keep:
                    return found
                case ArchiveState.PUBLISHED:
                    self._all_log_lines(found)
                    self._unchanged(found)
                    self._read_by_spark(found)
                    self._wait(self._archive.drop(found.name, progress=self._progress))
                    self._progress(f"{found.name}: dropped from the master")
                    self.dropped.append(found.name)
                    return found
                case _:
                    raise Refused(f"range {found.name} is {found.state} and cannot be archived")
        return found

    def _step(self, done: str, found: ArchiveRange, work: Callable[[ArchiveRange], ArchiveRange]) -> ArchiveRange:
        began = self._context.clock.boottime()
        after = work(found)
        seconds = self._context.clock.boottime() - began
        rows = after.measure.rows if after.measure else 0
        if after.state is not ArchiveState.DETACHED:
            self._progress(f"{found.name}: {done} in {seconds:.1f} s, {rows} jobs")
        return after

    def _in_this_lake(self, found: ArchiveRange) -> ArchiveRange:
        """Restart a range that another lake has in part; refuse a range that another lake has published."""
        if found.format is not None and found.format > FORMAT:
            raise Refused(
                f"range {found.name} was exported by a newer version (layout {found.format}, ours is {FORMAT})",
                hint="update this program",
            )
        if found.lake is None or found.lake == self.lake.root:
            return found
        if found.state is ArchiveState.PUBLISHED:
            raise Refused(
                f"range {found.name} is published in the lake {found.lake}, not in {self.lake.root}",
                hint=f"run this with --lake {found.lake}",
            )
        return self._wait(self._archive.export_again(found))

    # ------------------------------------------------------------ steps

    def _export(self, found: ArchiveRange) -> ArchiveRange:
        run_id = new_id().hex()
        tasks = threads_of(self._context.options.session.master) or _REMOTE_TASKS
        tables = [("jobs", found.name, tasks), ("attempts", found.attempts, 1)]
        if self._wait(self._measured_logs(found))[0]:
            tables.append(("logs", found.name, tasks))
        parts = [
            part
            for dataset, table, tasks_ in tables
            for part in parquet_export.page_ranges(
                self._context.connection.connection_factory,
                dataset,
                table,
                self._wait(self._archive.pages(table)),
                tasks_,
            )
        ]
        spark = self._context.spark if parts else None

        def write() -> None:
            with lake_errors(self.lake):
                if spark is not None:
                    parquet_export.write(spark, parts, self.lake, run_id)

        async def both() -> tuple[Measure, datetime | None, datetime | None]:
            """Measure in the master while the tables are copied: a detached range has no writers."""
            copying = asyncio.create_task(asyncio.to_thread(write))
            try:
                return await self._archive.measure(found)
            finally:
                await copying

        measured = self._wait(both())
        return self._wait(self._archive.exported(found, self.lake.root, FORMAT, run_id, measured))

    def _verify(self, found: ArchiveRange, *, last: bool) -> ArchiveRange:
        assert found.run_id is not None
        with lake_errors(self.lake):
            measure, logs, files = verify.measure_run(lambda: self._context.spark, self.lake, found.run_id)
        lines = self._wait(self._measured_logs(found))
        if measure != found.measure or logs != lines:
            self._progress(
                f"{found.name}: the files hold {_describe(measure)} and {logs[0]} log lines, the tables "
                f"{_describe(found.measure)} and {lines[0]} log lines"
            )
            again = self._wait(self._archive.export_again(found))
            if last:
                raise Refused(
                    f"the files of {found.name} do not hold what its tables hold, although they were written twice",
                    hint="look at the disk of the lake; the range is still in the master",
                )
            return again
        return self._wait(self._archive.verified(found, self._sealed(files)))

    async def _measured_logs(self, found: ArchiveRange) -> tuple[int, int]:
        """Lines that runs of the jobs have written, and their checksum: they are no part of the manifest."""
        connection = await open_scan(self._context.connection.connection_factory)
        try:
            return await measure_logs(connection, found.name)
        finally:
            connection.terminate()

    def _sealed(self, files: Sequence[LakeFile]) -> tuple[LakeFile, ...]:
        """Flush the files to the disk; returns them with their digests."""
        found = []
        for file in files:
            self.lake.sync(file.path)
            found.append(msgspec.structs.replace(file, sha256=self.lake.digest(file.path)))
        return tuple(found)

    def _publish(self, found: ArchiveRange) -> ArchiveRange:
        self.lake.write_json(f"{MANIFEST}/{found.name}.json", document_of(found))
        return self._wait(self._archive.published(found))

    def _unchanged(self, found: ArchiveRange) -> None:
        """Check right before the drop: every file is as it was verified."""
        for file in found.files:
            if self.lake.size(file.path) != file.bytes or self.lake.digest(file.path) != file.sha256:
                self._wait(self._archive.export_again(found))
                raise Refused(
                    f"{file.path} of the lake has changed since it was verified; {found.name} stays in the master",
                    hint="look at the disk of the lake, then run the command again: it exports the range again",
                )

    def _all_log_lines(self, found: ArchiveRange) -> None:
        """Check right before the drop: the files have every log line. A range that an earlier version published and kept has
        no files of lines, and a line may have come since."""
        lines = self._wait(self._measured_logs(found))[0]
        exported = sum(file.rows for file in found.files if file.dataset == "logs")
        if lines != exported:
            self._wait(self._archive.export_again(found))
            raise Refused(
                f"the files of {found.name} hold {exported} log lines, its tables {lines}; it stays in the master",
                hint="run the command again: it exports the range again",
            )

    def try_lake(self) -> None:
        """Check before the first step that Spark can read the lake: it may lack a file system that Arrow has.

        Raises:
            Refused: Spark cannot read it.
        """
        if self.lake.local is None:
            self._spark_reads("the lake", lambda spark: spark.read.text(self.lake.url(MARK)).count() > 0)

    def _read_by_spark(self, found: ArchiveRange) -> None:
        """Check right before the drop: Spark reads the files, as every later command does."""
        for dataset in SCHEMAS:
            files = [file for file in found.files if file.dataset == dataset]
            if files:
                urls, rows = [self.lake.url(file.path) for file in files], sum(file.rows for file in files)
                self._spark_reads(found.name, partial(_holds, urls, rows))

    def _spark_reads(self, what: str, read: Callable[[SparkSession], bool]) -> None:
        try:
            with lake_errors(self.lake):
                right = read(self._context.spark)
        except Unavailable as error:
            raise Refused(
                f"{what} is not taken from the master: {error.message}",
                hint="Spark needs a library for the lake's file system: for s3a:// give --conf spark.jars.packages="
                "org.apache.hadoop:hadoop-aws:VERSION; Apache Spark has no s3://",
            ) from error
        if not right:
            raise Refused(
                f"{what} is not taken from the master: Spark reads other rows in {self.lake.where} than were verified",
                hint="look at the disk of the lake, then run the command again",
            )


def _holds(urls: Sequence[str], rows: int, spark: SparkSession) -> bool:
    return spark.read.parquet(*urls).count() == rows


def document_of(found: ArchiveRange) -> dict[str, Any]:
    """The copy of a manifest row in the lake, for readers without the master."""
    return {
        "dataset": "jobs",
        "range": found.name,
        "format": found.format,
        "run": found.run_id,
        "ids": [text(found.lo), text(found.hi)],
        "ended": [_iso(found.ended_from), _iso(found.ended_to)],
        "measure": msgspec.to_builtins(found.measure),
        "files": msgspec.to_builtins(found.files),
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _describe(measure: Measure | None) -> str:
    return "nothing" if measure is None else f"{measure.rows} jobs and {measure.attempt_rows} attempts"


@contextmanager
def _ignore_errors() -> Iterator[None]:
    """Ignore errors of the unlock: the lock ends with the session, and the first error must stay visible."""
    try:
        yield
    except JobMasterError:
        pass
