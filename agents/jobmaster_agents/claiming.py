"""From a bucket's lists into memory: woken, never polling; asked again under the same name when a reply was lost.

One blocking pop over the wake keys of all buckets tells which bucket has something new; a claim's answer arms a timer for
the next due job. Prefetch is bounded by free slots plus the buffer, and by the reporter's backlog. After every
reconnect, and when the blocking pop comes back empty, each bucket is asked once: a token may have died with the
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.handlers import Handler
from jobmaster.model.errors import OutcomeUnknown, StoreRefused, Unavailable
from jobmaster.ports import Claimed, StoreOwner, Word
from jobmaster_agents.execution import Execution
from jobmaster_agents.holdings import Holding, Holdings
from jobmaster_agents.portions import LiveJob, Memory, Portion
from jobmaster_agents.reporting import BACKLOG_ROWS_MAX, Reporter
from jobmaster_agents.verdicts import StopCause, Verdicts

CLAIM_JOBS_MAX = 1000
_WAKE_SECONDS = 5.0
"""Time-out of the blocking pop: only there to notice a dead connection."""
_BACKOFF_SECONDS = 0.05
_BACKOFF_SECONDS_MAX = 2.0
_FENCED = (Word.FENCED, Word.GENERATION, Word.ROLLBACK, Word.NO_BUCKET)


class Onboarder(Protocol):
    """Who fetches HELD jobs for a bucket."""

    def kick(self, bucket_id: bytes) -> None: ...

    def taken(self, bucket_id: bytes, jobs: int) -> None: ...


class Pump:
    """Claims for one bucket.

    Args:
        list_prefix: unique per incarnation of the agent; the lists are ``<prefix>-<n>``.
        spill_jobs: jobs left in ``pending`` above which, when there is no room, a portion is spilled to the master.
    """

    def __init__(
        self,
        holding: Holding,
        store: StoreOwner,
        holdings: Holdings,
        memory: Memory,
        execution: Execution,
        reporter: Reporter,
        verdicts: Verdicts,
        handlers: dict[str, Handler],
        clock: Clock,
        onboarder: Onboarder,
        on_forgotten: Callable[[bytes, str], None],
        *,
        list_prefix: str,
        capacity: int,
        spill_jobs: int,
    ) -> None:
        self.holding = holding
        self._store = store
        self._holdings = holdings
        self._memory = memory
        self._execution = execution
        self._reporter = reporter
        self._verdicts = verdicts
        self._handlers = handlers
        self._now = clock.boottime
        self._onboarder = onboarder
        self._on_forgotten = on_forgotten
        self._list_prefix = list_prefix
        self._capacity = capacity
        self._spill_jobs = spill_jobs
        self._names = 0
        self._asked = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._more = False
        self.flushing = False
        """True while completing: everything claimed goes back to the master unrun."""
        self.ended = False
        """True once the bucket is closed or lost: the loop leaves."""
        self.claimed = 0

    # ------------------------------------------------------------ signals (cheap, called from anywhere on the loop)

    def ask(self) -> None:
        """There may be something to claim."""
        self._asked.set()

    def room(self) -> None:
        """The bucket's queue got shorter."""
        if self._more and not self._asked.is_set() and self._free() * 2 >= self._capacity:
            self._asked.set()

    def _free(self) -> int:
        return self._capacity - self._execution.backlog(self.holding.fence.bucket_id)

    # ------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Claim until cancelled or the bucket is lost."""
        self._asked.set()
        await self.adopt_unknown_lists()
        while not self.ended:
            await self._asked.wait()
            self._asked.clear()
            await self._claim_while_room()
        if self._timer is not None:
            self._timer.cancel()

    async def _claim_while_room(self) -> None:
        while not self.ended:
            now = self._now()
            if now >= self._holdings.soft_until:
                await self._holdings.wait_trusted()
                continue
            free = CLAIM_JOBS_MAX if self.flushing else min(self._free(), CLAIM_JOBS_MAX)
            if free <= 0 or self._reporter.backlog > BACKLOG_ROWS_MAX:
                self._more = True
                return
            if not await self._claim(free):
                return

    async def _claim(self, limit: int) -> bool:
        """One claim; True when another should follow at once."""
        self._names += 1
        name = f"{self._list_prefix}-{self._names}"
        sent = self._now()
        answer = await self._insist_claim(name, limit)
        if answer is None:
            return False
        taken = len(answer.entries)
        self._more = answer.remaining > 0
        if taken:
            self._accept(name, answer, sent)
        if answer.hint:
            self._onboarder.kick(self.holding.fence.bucket_id)
        self._arm(answer)
        if self._more and not self.flushing and answer.remaining > self._spill_jobs and self._free() <= 0:
            await self._spill()
        return taken > 0 and (self._more or taken == limit)

    async def _insist_claim(self, name: str, limit: int) -> Claimed | None:
        delay = _BACKOFF_SECONDS
        while not self.ended:
            try:
                answer = await self._store.claim(self.holding.fence, name, limit)
            except (OutcomeUnknown, Unavailable):
                # The same name is asked again: if the lost reply had moved jobs, this returns the same list.
                await asyncio.sleep(delay)
                delay = min(delay * 2, _BACKOFF_SECONDS_MAX)
                continue
            except StoreRefused as refusal:
                self._on_forgotten(self.holding.fence.bucket_id, str(refusal))
                return None
            if answer.word is Word.OK:
                return answer
            if answer.word in _FENCED:
                self._on_forgotten(self.holding.fence.bucket_id, f"the store answered {answer.word} to a claim")
            return None
        return None

    def _accept(self, name: str, answer: Claimed, sent: float) -> None:
        portion = Portion(self.holding, name, sent, answer.now_us)
        fresh = self._memory.adopt(portion, answer.entries, self._handlers)
        self.claimed += len(answer.entries)
        onboarded = sum(1 for entry in answer.entries if entry.token > 1)
        if onboarded:
            self._onboarder.taken(self.holding.fence.bucket_id, onboarded)
        if answer.cancelled:
            for job in fresh:
                if job.entry.id in answer.cancelled:
                    job.cancelled = True
        if self.flushing:
            for job in fresh:
                self._verdicts.release(job)
            return
        self._execution.enqueue(self._ready(fresh, answer.now_us))

    def _ready(self, jobs: list[LiveJob], now_us: int) -> list[LiveJob]:
        """Jobs due now; a SavePending job due later goes to the master, which brings it back in time."""
        late = [job for job in jobs if job.entry.due_us > now_us and not job.cancelled]
        if not late:
            return jobs
        for job in late:
            self._verdicts.postpone(job)
        chosen = set(map(id, late))
        return [job for job in jobs if id(job) not in chosen]

    def _arm(self, answer: Claimed) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if answer.next_due_us:
            delay = max((answer.next_due_us - answer.now_us) / 1e6, 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay, self.ask)

    async def _spill(self) -> None:
        """Over the high-water mark with no room: a portion goes to the master, so the store's memory stays bounded."""
        self._names += 1
        name = f"{self._list_prefix}-{self._names}"
        sent = self._now()
        answer = await self._insist_claim(name, CLAIM_JOBS_MAX)
        if answer is None or not answer.entries:
            return
        portion = Portion(self.holding, name, sent, answer.now_us)
        for job in self._memory.adopt(portion, answer.entries, self._handlers):
            self._verdicts.release(job)

    # ------------------------------------------------------------ lists whose reply was lost

    async def adopt_unknown_lists(self) -> None:
        """Take lists of this bucket that the store has and memory has not (lost replies, a rolled-back store)."""
        fence = self.holding.fence
        try:
            word, names = await self._store.claimed_lists(fence)
            if word is not Word.OK:
                return
            for name in names:
                if not self._memory.knows(fence.bucket_id, name) and not self._is_ours_in_flight(name):
                    answer = await self._store.read_claimed(fence, name)
                    if answer.word is Word.OK and answer.entries and not self._memory.knows(fence.bucket_id, name):
                        self._accept(name, answer, self._now())
        except (OutcomeUnknown, Unavailable):
            return  # asked again by the next round of anti-entropy

    def _is_ours_in_flight(self, name: str) -> bool:
        # The list of a claim whose answer has not arrived yet.
        return name == f"{self._list_prefix}-{self._names}"


class Waker:
    """One blocking pop for all buckets of the process."""

    def __init__(self, store: StoreOwner, pumps: dict[bytes, Pump]) -> None:
        self._store = store
        self._pumps = pumps
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """The set of buckets changed."""
        self._changed.set()

    async def run(self) -> None:
        """Dispatch wake tokens until cancelled."""
        delay = _BACKOFF_SECONDS
        while True:
            self._changed.clear()
            buckets = [bucket_id for bucket_id, pump in self._pumps.items() if not pump.ended]
            if not buckets:
                await self._changed.wait()
                continue
            try:
                woken = await self._wait(buckets)
                delay = _BACKOFF_SECONDS
            except (OutcomeUnknown, Unavailable):
                await asyncio.sleep(delay)
                delay = min(delay * 2, _BACKOFF_SECONDS_MAX)
                woken = None
            if woken is None:
                # Time-out, broken connection, or other buckets: a popped token may be lost, so every bucket is asked once.
                for pump in list(self._pumps.values()):
                    pump.ask()
            elif (found := self._pumps.get(woken)) is not None:
                found.ask()

    async def _wait(self, buckets: list[bytes]) -> bytes | None:
        """The next token; ``None`` at once when the set of buckets changes, for the pop is over the old set."""
        waiting = asyncio.ensure_future(self._store.wait_wake(buckets, _WAKE_SECONDS))
        changing = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((waiting, changing), return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            changing.cancel()
            waiting.cancel()
            await asyncio.wait((waiting,))  # one caller at a time


def stop_cancelled(memory: Memory, execution: Execution, job_ids: list[bytes]) -> None:
    """Cancel requests that came with a renewal: running handlers are stopped, waiting jobs are marked."""
    for job_id in job_ids:
        job = memory.get(job_id)
        if job is not None and not job.cancelled:
            execution.stop_job(job, StopCause.CANCEL)

