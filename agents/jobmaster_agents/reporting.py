"""Outcomes to the master, in batches, and claimed lists deleted afterwards. Toward the master: durable first, erase second.

No timer makes a batch: while one write is under way, outcomes pile up for the next one, so light load commits each
outcome at once and heavy load commits thousands at a time (group commit). Two writers run side by side, so that one
commits while the other's rows are encoded.

The rules of refusal are kept here (see ``ports.Written``): accepted, or refused *by the row* = settled; refused *by the
bucket lock* = the bucket is forgotten, no key is touched. An uncertain commit is sent again through the guarded
statement until the answer is known; a claimed list is never deleted on anything less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Protocol, TypeVar

from jobmaster.clock import Clock
from jobmaster.codec import encode_entry
from jobmaster.model.errors import OutcomeUnknown, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry, FinalRow, HoldRow, InFlightRow, JobState
from jobmaster.ports import Outcomes, StoreOwner, Word, Written
from jobmaster_agents.holdings import Holding, Holdings
from jobmaster_agents.portions import LiveJob, Memory, Phase, Portion
from jobmaster_agents.verdicts import StopCause

_BATCH_ROWS = 2000
_WRITERS = 2
_BACKOFF_SECONDS = 0.05
_BACKOFF_SECONDS_MAX = 2.0
BACKLOG_ROWS_MAX = 20_000
"""Outcomes on the way to the master above which no more jobs are claimed."""

_T = TypeVar("_T")


class Runner(Protocol):
    """What the reporter tells the execution."""

    def enqueue(self, jobs: Iterable[LiveJob]) -> None: ...


class Reporter:
    """Batches verdicts into statements and settles claimed lists.

    Args:
        on_forgotten: a bucket turned out to be another's; called once per bucket with the reason.
        stop: stop the handler of a running job whose row says so (cancelled, or another assignment's).
    """

    def __init__(
        self,
        master: Outcomes,
        store: StoreOwner,
        holdings: Holdings,
        memory: Memory,
        clock: Clock,
        on_forgotten: Callable[[bytes, str], None],
        stop: Callable[[LiveJob, StopCause], None],
    ) -> None:
        self._master = master
        self._store = store
        self._holdings = holdings
        self._memory = memory
        self._now = clock.boottime
        self._on_forgotten = on_forgotten
        self._stop = stop
        self._copy: list[LiveJob] = []
        self._upsert: list[LiveJob] = []
        self._holds: list[LiveJob] = []
        self._heres: list[LiveJob] = []
        self._work = asyncio.Event()
        self._settled: dict[bytes, tuple[Holding, list[str], list[bytes]]] = {}
        self._settle_work = asyncio.Event()
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.runner: Runner | None = None
        self.copied = 0
        self.upserted = 0
        self.refused = 0
        self.quarantined = 0
        self.fenced_batches = 0

    # ------------------------------------------------------------ verdicts in

    def final(self, job: LiveJob) -> None:
        """Queue a ``FinalRow``."""
        (self._upsert if job.has_row else self._copy).append(job)
        self._work.set()

    def hold(self, job: LiveJob, *, here: bool) -> None:
        """Queue a ``HoldRow``; ``here`` keeps the job in its bucket if that still takes jobs."""
        (self._heres if here and not job.portion.holding.closed else self._holds).append(job)
        self._work.set()

    @property
    def backlog(self) -> int:
        """Outcomes not yet settled."""
        return len(self._copy) + len(self._upsert) + len(self._holds) + len(self._heres) + self._busy

    async def wait_settled(self) -> None:
        """Wait until every verdict given so far is in the master and its list deleted."""
        while self.backlog or self._settled:
            self._idle.clear()
            await self._idle.wait()

    # ------------------------------------------------------------ the loops

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_WRITERS):
                group.create_task(self._write_loop(), name="jobmaster-reporting")
            group.create_task(self._settle_loop(), name="jobmaster-settling")

    async def _write_loop(self) -> None:
        while True:
            if not (self._copy or self._upsert or self._holds or self._heres):
                self._work.clear()
                self._note_idle()
                await self._work.wait()
                continue
            if not self._holdings.may_commit(self._now()):
                await self._holdings.wait_trusted()
                continue
            if self._copy:
                await self._batch(self._take(self._copy), self._write_copy)
            if self._upsert:
                await self._batch(self._take(self._upsert), self._write_upsert)
            if self._holds:
                await self._batch(self._take(self._holds), self._write_holds)
            if self._heres:
                await self._batch(self._take(self._heres), self._write_heres)

    @staticmethod
    def _take(queue: list[LiveJob]) -> list[LiveJob]:
        batch = queue[:_BATCH_ROWS]
        del queue[: len(batch)]
        return batch

    async def _batch(
        self, jobs: list[LiveJob], write: Callable[[list[LiveJob]], Coroutine[object, object, None]]
    ) -> None:
        jobs = [job for job in jobs if job.phase is Phase.ENDED]  # the rest was forgotten with its bucket
        self._busy += len(jobs)
        try:
            if jobs:
                await write(jobs)
        finally:
            self._busy -= len(jobs)

    async def _insist(self, call: Callable[[], Coroutine[object, object, _T]]) -> _T:
        """Send the same again until the answer is known; the statements are idempotent by identity."""
        delay = _BACKOFF_SECONDS
        while True:
            try:
                return await call()
            except (OutcomeUnknown, Unavailable):
                await asyncio.sleep(delay)
                delay = min(delay * 2, _BACKOFF_SECONDS_MAX)
                while not self._holdings.may_commit(self._now()):
                    await self._holdings.wait_trusted()

    # ------------------------------------------------------------ final rows

    async def _write_copy(self, jobs: list[LiveJob]) -> None:
        rows = [job.row for job in jobs if isinstance(job.row, FinalRow)]
        try:
            done = await self._master.copy_final(rows)
        except (OutcomeUnknown, Unavailable):
            done = False  # perhaps written: the guarded statement finds our own rows and says so
        if done:
            self.copied += len(rows)
            self._settle_all(jobs)
        else:
            await self._write_upsert(jobs)

    async def _write_upsert(self, jobs: list[LiveJob]) -> None:
        rows = [job.row for job in jobs if isinstance(job.row, FinalRow)]
        written = await self._insist(lambda: self._master.record_final(rows))
        self.upserted += len(written.accepted)
        self._conclude(jobs, written)

    # ------------------------------------------------------------ back to the master, or later here

    async def _write_holds(self, jobs: list[LiveJob]) -> None:
        for holding, mine in _by_holding(jobs):
            rows = [job.row for job in mine if isinstance(job.row, HoldRow)]
            written = await self._insist(lambda f=holding.fence, r=rows: self._master.hold(f, r))  # type: ignore[misc]
            self._conclude(mine, written)

    async def _write_heres(self, jobs: list[LiveJob]) -> None:
        for holding, mine in _by_holding(jobs):
            rows = [job.row for job in mine if isinstance(job.row, HoldRow)]
            written = await self._insist(lambda f=holding.fence, r=rows: self._master.retry_here(f, r))  # type: ignore[misc]
            if not written.bucket_ok:
                if holding.closed:  # it began to complete meanwhile: the master takes them
                    await self._write_holds(mine)
                else:
                    self._forget(holding, "a write was refused by the bucket's lock")
                continue
            again = [row for row in rows if row.id in written.accepted and row.id not in written.cancelled]
            self._conclude(mine, written)
            await self._put_again(holding, again)

    async def _put_again(self, holding: Holding, rows: Sequence[HoldRow]) -> None:
        """The master has them ASSIGNED with token + 1; now the copies. A crash between is healed by anti-entropy."""
        if not rows:
            return
        items = [
            (
                row.due_us,
                encode_entry(
                    Entry(
                        row.id, row.token + 1, row.handler, row.args, row.due_us, row.headers, row.attempt, row.rescues
                    )
                ),
            )
            for row in rows
        ]
        try:
            word = await self._store.assign(holding.fence, items)
        except (OutcomeUnknown, Unavailable):
            return  # the row says ASSIGNED here; the owner's anti-entropy returns it when no copy is found
        if word in (Word.FENCED, Word.GENERATION, Word.ROLLBACK):
            self._forget(holding, f"the store answered {word} to a retry")

    # ------------------------------------------------------------ in flight

    async def persist(self, holding: Holding, jobs: Sequence[LiveJob]) -> None:
        """Give claimed jobs that have not ended their rows (and so free their claimed lists)."""
        rows = [_in_flight(job) for job in jobs if not job.safe and job.phase in (Phase.QUEUED, Phase.RUNNING)]
        if not rows:
            return
        written = await self._insist(lambda: self._master.persist(holding.fence, rows))
        if not written.bucket_ok:
            self._forget(holding, "an in-flight write was refused by the bucket's lock")
            return
        known: list[bytes] = []
        for job in jobs:
            job_id = job.entry.id
            if job_id in written.accepted:
                job.has_row = True
                known.append(job_id)
                if (portion := self._memory.make_safe(job)) is not None:
                    self._delete_later(portion)
            elif job_id in written.cancelled:
                job.has_row = True
                job.cancelled = True
                if job.phase is Phase.RUNNING:
                    self._stop(job, StopCause.CANCEL)
            elif job_id in written.refused or job_id in written.quarantined:
                self._superseded(job)
        self._publish_later(holding, known)

    async def authorise(self, job: LiveJob) -> bool:
        """An accepted PROCESSING write for a ``start="fenced"`` job, under the bucket lock."""
        holding = job.portion.holding
        rows = [_in_flight(job)]
        written = await self._insist(lambda: self._master.persist(holding.fence, rows))
        if not written.bucket_ok:
            self._forget(holding, "a fenced start was refused by the bucket's lock")
            return False
        job_id = job.entry.id
        if job_id in written.accepted:
            job.has_row = True
            if (portion := self._memory.make_safe(job)) is not None:
                self._delete_later(portion)
            return job.phase is Phase.RUNNING
        if job_id in written.cancelled:
            job.has_row = True
            job.cancelled = True
        else:
            self._superseded(job)
        return False

    # ------------------------------------------------------------ after a write

    def _conclude(self, jobs: Sequence[LiveJob], written: Written) -> None:
        if not written.bucket_ok:
            self._forget(jobs[0].portion.holding, "a write was refused by the bucket's lock")
            return
        over = written.refused | written.quarantined
        self.refused += len(written.refused)
        self.quarantined += len(written.quarantined)
        if not over:
            self._settle_all(jobs)
            return
        self._settle_all([job for job in jobs if job.entry.id not in over])
        for job in jobs:
            if job.entry.id in over:
                self._settle_one(job, accepted=False)

    def _settle_all(self, jobs: Sequence[LiveJob]) -> None:
        settle = self._memory.settle
        finished: dict[int, tuple[Holding, list[bytes]]] = {}
        for job in jobs:
            portions, _ = settle(job, accepted=True)
            for portion in portions:
                self._delete_later(portion)
            holding = job.portion.holding
            found = finished.get(id(holding))
            if found is None:
                finished[id(holding)] = (holding, [job.entry.id])
            else:
                found[1].append(job.entry.id)
        for holding, ids in finished.values():
            self._publish_later(holding, ids)

    def _settle_one(self, job: LiveJob, *, accepted: bool) -> None:
        portions, promoted = self._memory.settle(job, accepted=accepted)
        for portion in portions:
            self._delete_later(portion)
        if promoted and self.runner is not None:
            self.runner.enqueue(promoted)

    def _superseded(self, job: LiveJob) -> None:
        """The row belongs to another assignment, or is final: stop the handler, record nothing."""
        self.refused += 1
        was_running = job.phase is Phase.RUNNING
        self._settle_one(job, accepted=False)
        if was_running:
            self._stop(job, StopCause.SUPERSEDED)

    def _forget(self, holding: Holding, why: str) -> None:
        self.fenced_batches += 1
        self._on_forgotten(holding.fence.bucket_id, why)

    # ------------------------------------------------------------ claimed lists

    def _delete_later(self, portion: Portion) -> None:
        self._entry_of(portion.holding)[1].append(portion.name)
        self._settle_work.set()

    def _publish_later(self, holding: Holding, ids: Sequence[bytes]) -> None:
        if ids:
            self._entry_of(holding)[2].extend(ids)
            self._settle_work.set()

    def _entry_of(self, holding: Holding) -> tuple[Holding, list[str], list[bytes]]:
        bucket_id = holding.fence.bucket_id
        entry = self._settled.get(bucket_id)
        if entry is None:
            entry = self._settled[bucket_id] = (holding, [], [])
        return entry

    async def _settle_loop(self) -> None:
        delay = _BACKOFF_SECONDS
        while True:
            if not self._settled:
                self._settle_work.clear()
                self._note_idle()
                await self._settle_work.wait()
            bucket_id, (holding, names, ids) = next(iter(self._settled.items()))
            del self._settled[bucket_id]
            self._busy += 1
            try:
                word = await self._store.settle(holding.fence, names, ids)
                delay = _BACKOFF_SECONDS
            except (OutcomeUnknown, Unavailable):
                # All of it is in the master: asking again is free, and until then the list only costs memory.
                entry = self._entry_of(holding)
                entry[1].extend(names)
                await asyncio.sleep(delay)
                delay = min(delay * 2, _BACKOFF_SECONDS_MAX)
                continue
            finally:
                self._busy -= 1
            if word in (Word.FENCED, Word.GENERATION, Word.ROLLBACK):
                self._forget(holding, f"the store answered {word} to a settle")

    def _note_idle(self) -> None:
        if not self.backlog and not self._settled:
            self._idle.set()


def _by_holding(jobs: Sequence[LiveJob]) -> list[tuple[Holding, list[LiveJob]]]:
    groups: dict[Fence, tuple[Holding, list[LiveJob]]] = {}
    for job in jobs:
        holding = job.portion.holding
        groups.setdefault(holding.fence, (holding, []))[1].append(job)
    return list(groups.values())


def _in_flight(job: LiveJob) -> InFlightRow:
    entry, holding = job.entry, job.portion.holding
    state = JobState.PROCESSING if job.phase is Phase.RUNNING else JobState.ASSIGNED
    return InFlightRow(
        entry.id, state, holding.priority, holding.lane, entry.handler, entry.token, entry.attempt, entry.rescues,
        entry.due_us, entry.args, entry.headers,
    )  # fmt: skip
