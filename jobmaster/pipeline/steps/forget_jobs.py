"""``forget`` and ``compact`` on the lake: a range gets new files, and then the old ones are deleted.

A document names the two runs of a range before its first new file is written. A run that is killed at any point leaves it,
and the next run ends what was begun: the row in the master decides which of the two runs counts, and the files of the other
one are deleted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmaster.clock import new_id
from jobmaster.master.history.archive import Archive
from jobmaster.model.archive import ArchiveRange, ArchiveState
from jobmaster.model.errors import InputError, Refused
from jobmaster.model.ids import text
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.lake import rewrite
from jobmaster.pipeline.lake.lake import Lake
from jobmaster.pipeline.spark.session import require_extra
from jobmaster.pipeline.steps.archive import MANIFEST, document_of
from jobmaster.pipeline.steps.tables import keep_tables
from jobmaster.wiring import open_archive

if TYPE_CHECKING:
    import pyarrow as pa

REWRITING = "_manifest/rewriting"
SMALL_BYTES = 64 << 20
"""Files below it are merged when a day has several of them."""


class Forgotten(NamedTuple):
    """The jobs to forget: those that fit every condition that is given."""

    metadata: Mapping[str, str] = {}
    before: datetime | None = None
    """Created before then."""

    def forgets(self, batch: pa.RecordBatch) -> pa.Array:
        """A flag for each job of a batch."""
        import pyarrow as pa
        from pyarrow import compute as pc

        chosen = pa.array([True] * len(batch), pa.bool_())
        if self.before is not None:
            chosen = pc.less(batch.column("created_at"), pa.scalar(self.before, pa.timestamp("us", "UTC")))
        if self.metadata:
            chosen = pc.and_(chosen, pa.array(map(self._fits, batch.column("headers").to_pylist()), pa.bool_()))
        return chosen

    def _fits(self, headers: str | None) -> bool:
        known = json.loads(headers).get("metadata", {}) if headers else {}
        return all(known.get(name) == value for name, value in self.metadata.items())

    def touches(self, found: ArchiveRange) -> bool:
        """Whether a range may hold such jobs, by its ids alone."""
        first_ms = int.from_bytes(found.lo[:6], "big")
        return self.before is None or first_ms < self.before.timestamp() * 1000


def forgotten(metadata: Sequence[str], older_than_seconds: float | None, now_us: int) -> Forgotten:
    """The jobs that the options of the command name.

    Raises:
        InputError: an option is wrong.
    """
    pairs: dict[str, str] = {}
    for pair in metadata:
        name, sign, value = pair.partition("=")
        if not name or not sign:
            raise InputError(f"--metadata {pair!r} is not NAME=VALUE", hint="such as tenant=42")
        pairs[name] = value
    before = None
    if older_than_seconds is not None:
        before = datetime.fromtimestamp(now_us / 1e6 - older_than_seconds, UTC)
    return Forgotten(pairs, before)


def forget_jobs(context: PipelineContext, wanted: Forgotten) -> StepResult:
    """Delete jobs from the lake, with their attempts and log lines; ``failed`` when another process has kept a range.

    Raises:
        Refused: the lake belongs to another cluster, or files are not as they were verified; they stay.
        Unavailable: the master or the lake does not work; run it again.
    """
    with _opened(context) as rewriter:
        jobs, counts = 0, Counter[str]()
        for found in rewriter.ranges():
            if not wanted.touches(found):
                continue
            number = rewriter.forget(found.name, wanted)
            jobs += number
            counts[found.name] += number
        changed = [name for name, number in counts.items() if number]
    note = "jobs that are still in the master, files of streams, rejected rows and figures are not touched"
    if rewriter.busy:
        note = f"another process is at work on {', '.join(rewriter.busy)}: run the command again"
    summary = {"forgotten_jobs": jobs, "ranges": changed, "at_work_elsewhere": rewriter.busy}
    return StepResult(rows=jobs, summary=summary, note=note, failed=bool(rewriter.busy))


def compact(context: PipelineContext) -> StepResult:
    """Merge small files of the same range, dataset and day.

    Raises:
        As ``forget_jobs``.
    """
    with _opened(context) as rewriter:
        before = after = 0
        names = []
        for found in rewriter.ranges():
            days = Counter(file.path.rpartition("/")[0] for file in found.files if file.bytes < SMALL_BYTES)
            if max(days.values(), default=0) < 2:
                continue
            names.append(found.name)
            before += len(found.files)
            if not context.dry_run:
                after += rewriter.merge(found.name) or len(found.files)
    files = {} if context.dry_run else {"files_after": after}
    return StepResult(summary={"ranges": names, "files": before, **files, "at_work_elsewhere": rewriter.busy})


@contextmanager
def _opened(context: PipelineContext) -> Iterator[_Rewriter]:
    require_extra()
    lake = Lake(context.lake)
    lake.check(text(context.connection.master.cluster.uid), create=False)
    connection = context.connection.run(open_archive(context.settings))
    try:
        rewriter = _Rewriter(context, lake, connection)
        if not context.dry_run:
            rewriter.end_what_was_begun()
        yield rewriter
    finally:
        context.connection.run(connection.close())


class _Rewriter:
    """Replaces the files of ranges. One at a time works on a range: the archiver's lock in the master."""

    def __init__(self, context: PipelineContext, lake: Lake, archive: Archive) -> None:
        self.lake = lake
        self.busy: list[str] = []
        self._context = context
        self._archive = archive
        self._wait = context.connection.run

    def ranges(self) -> list[ArchiveRange]:
        """Ranges that are in this lake alone."""
        return [
            found
            for found in self._wait(self._archive.ranges())
            if found.state is ArchiveState.DROPPED and not found.discarded and found.lake == self.lake.root
        ]

    def forget(self, name: str, wanted: Forgotten) -> int:
        """Give a range new files without the jobs to forget, if it holds any; how many it held. 0 while another process works
        on it."""
        with self._alone(name) as found:
            number = 0 if found is None else rewrite.count(self.lake, found, wanted.forgets)
            if found is not None and number and not self._context.dry_run:
                self._replace(found, wanted.forgets)
            return number

    def merge(self, name: str) -> int:
        """Give a range new files with the same rows; how many files. 0 while another process works on it."""
        with self._alone(name) as found:
            return 0 if found is None else len(self._replace(found, _nothing).files)

    def _replace(self, found: ArchiveRange, forgets: rewrite.Forgets) -> ArchiveRange:
        run_id = new_id().hex()
        intent = {"range": found.name, "from": found.run_id, "to": run_id}
        self.lake.write_json(f"{REWRITING}/{found.name}.json", intent)
        new = rewrite.rewrite(self.lake, found, run_id, forgets)
        after = self._wait(self._archive.rewritten(found, run_id, new.files, new.measure, new.forgotten))
        self._end(after, intent)
        self._context.progress(f"{found.name}: {new.measure.rows} jobs stay, {new.forgotten} are forgotten")
        return after

    def end_what_was_begun(self) -> None:
        """Delete what runs that were killed have left."""
        for name in self.lake.documents(REWRITING):
            with self._alone(name) as found:
                intent = self.lake.read_json(f"{REWRITING}/{name}.json")
                if found is not None and intent is not None:
                    self._context.progress(f"{name}: an earlier run was killed, its files are deleted")
                    self._end(found, intent)

    def _end(self, found: ArchiveRange, intent: Mapping[str, Any]) -> None:
        """The row in the master decides; the files of the other run go."""
        if found.run_id not in (intent["from"], intent["to"]):
            raise Refused(
                f"{REWRITING}/{found.name}.json of the lake names neither of the runs of the manifest",
                hint="a restore of the master? remove the document, then run jobmaster pipeline audit",
            )
        self.lake.write_json(f"{MANIFEST}/{found.name}.json", document_of(found))
        keep_tables(self._context, self._archive, self.lake)
        rewrite.delete_run(self.lake, intent["from"] if found.run_id == intent["to"] else intent["to"])
        self.lake.delete(f"{REWRITING}/{found.name}.json")

    @contextmanager
    def _alone(self, name: str) -> Iterator[ArchiveRange | None]:
        """The range, and no other process works on it meanwhile; ``None`` while one does.

        It is read under the lock: another run may just have given it new files.
        """
        if not self._wait(self._archive.take(name)):
            if name not in self.busy:
                self.busy.append(name)
            yield None
            return
        try:
            yield self._wait(self._archive.range(name))
        finally:
            self._wait(self._archive.let_go(name))


def _nothing(batch: pa.RecordBatch) -> pa.Array:
    import pyarrow as pa

    return pa.array([False] * len(batch), pa.bool_())
