"""Small stores for written interleavings: the rules of the real ones in dictionaries, and a script for every call.

A script says of a method's next calls: ``DOWN`` (nothing happens), ``LOST`` (it happens, the answer does not come), a
``Gate`` (the call waits until the test opens it), an exception, or an answer. Without a script a call does what the real
one does. Every call is recorded in ``calls`` in the order in which it began.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from jobmaster.clock import new_id
from jobmaster.codec import decode_entry
from jobmaster.handlers import Handlers
from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import OutcomeUnknown, Unavailable
from jobmaster.model.ids import AgentId, BucketId, Fence, Identity
from jobmaster.model.job import Entry, FinalRow, HoldRow, InFlightRow
from jobmaster.ports import Claimed, Onboarded, Page, RowRef, Word, Written
from jobmaster.rules.lease import term
from jobmaster.settings.model import AgentSettings, ClusterSettings
from jobmaster.telemetry import Telemetry
from jobmaster_agents.events import EventLog
from jobmaster_agents.holdings import Holding, Holdings
from jobmaster_agents.working import Working
from tests.agents.hand_clock import HandClock

ME = AgentId(b"me" * 8)
IN_FLIGHT = ("ASSIGNED", "PROCESSING")


class Fault(Enum):
    DOWN = 1
    LOST = 2


DOWN, LOST = Fault.DOWN, Fault.LOST


class Gate:
    """Holds a call until the test opens it; afterwards the call does what ``then`` says.

    Args:
        late: the effect happens at once, and only its answer is held.
    """

    def __init__(self, then: Any = None, *, late: bool = False) -> None:
        self.late = late
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self.then = then


class Scripted:
    """Records calls and follows the script."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.script: defaultdict[str, deque[Any]] = defaultdict(deque)

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """Arguments of the calls of one method so far."""
        return [args for called, args in self.calls if called == name]

    async def do(self, name: str, args: tuple[Any, ...], effect: Callable[[], Any]) -> Any:
        self.calls.append((name, args))
        step = self.script[name].popleft() if self.script[name] else None
        if isinstance(step, Gate):
            answer = effect() if step.late else None
            step.reached.set()
            await step.opened.wait()
            if step.late:
                return answer
            step = step.then
        if step is DOWN:
            raise Unavailable(f"{name}: down")
        if isinstance(step, BaseException):
            raise step
        if step is not None and step is not LOST:
            return step
        answer = effect()
        if step is LOST:
            raise OutcomeUnknown(f"{name}: the answer was lost")
        await asyncio.sleep(0)
        return answer


@dataclass
class Row:
    """One row of ``job``."""

    state: str
    token: int
    bucket_id: bytes | None = None
    epoch: int | None = None
    cancel: bool = False
    due_us: int = 0

    @property
    def identity(self) -> tuple[int, bytes | None, int | None]:
        return self.token, self.bucket_id, self.epoch


class KitMaster(Scripted):
    """Rows by identity (rule A), bucket locks (rule C), cancel flags (rule I)."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[bytes, Row] = {}
        self.entries: dict[bytes, Entry] = {}
        """What HELD rows onboard as."""
        self.others: set[bytes] = set()
        """Buckets that are another's now."""
        self.states: dict[bytes, BucketState] = {}
        self.outcomes: list[FinalRow] = []
        self.attempts: list[HoldRow] = []

    # ------------------------------------------------------------ outcomes

    async def copy_final(self, rows: Sequence[FinalRow]) -> bool:
        def effect() -> bool:
            if any(row.id in self.rows for row in rows):
                return False
            for row in rows:
                self._conclude(row)
            return True

        return bool(await self.do("copy_final", (list(rows),), effect))

    async def record_final(self, rows: Sequence[FinalRow]) -> Written:
        def effect() -> Written:
            accepted, refused = set(), set()
            for row in rows:
                there = self.rows.get(row.id)
                mine = there is not None and there.identity == (row.token, row.bucket_id, row.bucket_epoch)
                if there is None or (mine and there.state in IN_FLIGHT):
                    self._conclude(row)
                    accepted.add(row.id)
                elif mine and there.state == row.state:
                    accepted.add(row.id)  # our own earlier success
                else:
                    refused.add(row.id)
            return Written(True, frozenset(accepted), refused=frozenset(refused))

        written: Written = await self.do("record_final", (list(rows),), effect)
        return written

    def _conclude(self, row: FinalRow) -> None:
        self.rows[row.id] = Row(str(row.state), row.token, row.bucket_id, row.bucket_epoch)
        self.outcomes.append(row)

    async def persist(self, fence: Fence, rows: Sequence[InFlightRow]) -> Written:
        def effect() -> Written:
            if fence.bucket_id in self.others:
                return Written(False, frozenset())
            accepted, refused, cancelled = set(), set(), set()
            for row in rows:
                there = self.rows.get(row.id)
                if there is None:
                    self.rows[row.id] = Row(str(row.state), row.token, fence.bucket_id, fence.epoch)
                    accepted.add(row.id)
                elif there.identity != (row.token, fence.bucket_id, fence.epoch) or there.state not in IN_FLIGHT:
                    refused.add(row.id)
                elif there.cancel:
                    cancelled.add(row.id)
                else:
                    there.state = "PROCESSING" if "PROCESSING" in (there.state, row.state) else "ASSIGNED"
                    accepted.add(row.id)
            return Written(True, frozenset(accepted), frozenset(cancelled), frozenset(refused))

        written: Written = await self.do("persist", (fence, list(rows)), effect)
        return written

    async def hold(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        written: Written = await self.do("hold", (fence, list(rows)), lambda: self._give_back(fence, rows, here=False))
        return written

    async def retry_here(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        def effect() -> Written:
            if fence.bucket_id in self.others:
                return Written(False, frozenset())
            return self._give_back(fence, rows, here=True)

        written: Written = await self.do("retry_here", (fence, list(rows)), effect)
        return written

    def _give_back(self, fence: Fence, rows: Sequence[HoldRow], *, here: bool) -> Written:
        accepted, refused, cancelled = set(), set(), set()
        for row in rows:
            there = self.rows.get(row.id)
            after = (row.token + 1, fence.bucket_id, fence.epoch) if here else (row.token, None, None)
            if there is not None and there.identity == after and there.state == ("ASSIGNED" if here else "HELD"):
                accepted.add(row.id)  # our own earlier success
                continue
            if there is not None and (
                there.identity != (row.token, fence.bucket_id, fence.epoch) or there.state not in IN_FLIGHT
            ):
                refused.add(row.id)
                continue
            accepted.add(row.id)
            if there is not None and there.cancel:
                there.state = "CANCELLED"
                cancelled.add(row.id)
                continue
            if row.error is not None:
                self.attempts.append(row)
            token, bucket_id, epoch = after
            self.rows[row.id] = Row("ASSIGNED" if here else "HELD", token, bucket_id, epoch, due_us=row.due_us)
        return Written(True, frozenset(accepted), frozenset(cancelled), frozenset(refused))

    # ------------------------------------------------------------ onboarding

    async def onboard(
        self,
        fence: Fence,
        lane: str,
        priority: int,
        horizon_seconds: float,
        limit: int,
        handlers: Sequence[str] | None = None,
    ) -> Onboarded:
        def effect() -> Onboarded:
            if fence.bucket_id in self.others:
                return Onboarded(False, [], False)
            taken: list[Entry] = []
            for job_id, row in list(self.rows.items()):
                entry = self.entries.get(job_id)
                if (
                    row.state == "HELD"
                    and entry is not None
                    and len(taken) < limit
                    and (handlers is None or entry.handler in handlers)
                    and not self._is_far(row, horizon_seconds)
                ):
                    row.state, row.token, row.bucket_id, row.epoch = "ASSIGNED", row.token + 1, *fence[:2]
                    taken.append(Entry(job_id, row.token, entry.handler, entry.args, row.due_us))
            return Onboarded(True, taken, len(taken) == limit)

        answer: Onboarded = await self.do("onboard", (fence, horizon_seconds, limit), effect)
        return answer

    now_us = 0

    def _is_far(self, row: Row, horizon_seconds: float) -> bool:
        return row.due_us > self.now_us + horizon_seconds * 1e6

    async def release(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> Written:
        def effect() -> Written:
            accepted, refused = set(), set()
            for job_id, token in identities:
                row = self.rows.get(job_id)
                if row is not None and row.identity == (token, *fence[:2]) and row.state == "ASSIGNED":
                    row.state, row.bucket_id, row.epoch = "HELD", None, None
                    accepted.add(job_id)
                else:
                    refused.add(job_id)
            return Written(True, frozenset(accepted), refused=frozenset(refused))

        written: Written = await self.do("release", (fence, list(identities)), effect)
        return written

    # ------------------------------------------------------------ buckets

    async def bucket_rows(self, bucket_id: bytes, after: bytes | None, limit: int) -> list[RowRef]:
        def effect() -> list[RowRef]:
            return [
                RowRef(job_id, Identity(row.token, bucket_id, row.epoch or 0), row.state, 0)
                for job_id, row in self.rows.items()
                if row.bucket_id == bucket_id and row.state in IN_FLIGHT
            ][:limit]

        rows: list[RowRef] = await self.do("bucket_rows", (bucket_id,), effect)
        return rows

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool:
        def effect() -> bool:
            if bucket_id in self.others:
                return False
            self.states[bucket_id] = to
            return True

        return bool(await self.do("move_bucket", (bucket_id, to), effect))


class KitBucket:
    """What one bucket holds."""

    def __init__(self) -> None:
        self.fence: Fence | None = None
        self.state = BucketState.ACTIVE
        self.pending: deque[Entry] = deque()
        self.assigned: list[tuple[int, Entry]] = []
        self.claimed: dict[str, list[Entry]] = {}
        self.spilled: list[bytes] = []
        self.cancelled: set[bytes] = set()
        self.hint = False


class KitStore(Scripted):
    """Lists of entries behind a fence; wake tokens in a queue."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.clock = clock
        self.buckets: defaultdict[bytes, KitBucket] = defaultdict(KitBucket)
        self.tokens: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.news: list[bytes] = []

    def refusal(self, fence: Fence) -> Word | None:
        there = self.buckets[fence.bucket_id].fence
        return None if there is None or there == fence else Word.FENCED

    async def claim(self, fence: Fence, list_name: str, limit: int) -> Claimed:
        def effect() -> Claimed:
            if (no := self.refusal(fence)) is not None:
                return Claimed(no, [], [], 0, 0, False, 0)
            bucket = self.buckets[fence.bucket_id]
            taken = bucket.claimed.get(list_name, [])
            if list_name not in bucket.claimed:
                bucket.assigned.sort(key=lambda pair: pair[0])
                while len(taken) < limit and bucket.assigned and bucket.assigned[0][0] <= self.clock.wall_us():
                    taken.append(bucket.assigned.pop(0)[1])
                while len(taken) < limit and bucket.pending:
                    taken.append(bucket.pending.popleft())
                if taken:
                    bucket.claimed[list_name] = taken
            hint, bucket.hint = bucket.hint, False
            cancelled, bucket.cancelled = frozenset(bucket.cancelled), set()
            due = bucket.assigned[0][0] if bucket.assigned else 0
            return Claimed(Word.OK, list(taken), [], self.clock.wall_us(), due, hint, len(bucket.pending), cancelled)

        answer: Claimed = await self.do("claim", (fence, list_name, limit), effect)
        return answer

    async def settle(self, fence: Fence, list_names: Sequence[str], finished: Sequence[bytes]) -> Word:
        def effect() -> Word:
            self.news += finished
            if (no := self.refusal(fence)) is not None:
                return no
            for name in list_names:
                self.buckets[fence.bucket_id].claimed.pop(name, None)
            return Word.OK

        word: Word = await self.do("settle", (fence, list(list_names), list(finished)), effect)
        return word

    async def spill(self, fence: Fence, outcomes: Sequence[bytes], list_names: Sequence[str]) -> Word:
        def effect() -> Word:
            if (no := self.refusal(fence)) is not None:
                return no
            bucket = self.buckets[fence.bucket_id]
            bucket.spilled += outcomes
            for name in list_names:
                bucket.claimed.pop(name, None)
            return Word.OK

        word: Word = await self.do("spill", (fence, list(outcomes), list(list_names)), effect)
        return word

    async def assign(self, fence: Fence, items: Sequence[tuple[int, bytes]]) -> Word:
        def effect() -> Word:
            if (no := self.refusal(fence)) is not None:
                return no
            bucket = self.buckets[fence.bucket_id]
            if bucket.state is not BucketState.ACTIVE:
                return Word.CLOSED
            bucket.assigned += [(due_us, decode_entry(item)) for due_us, item in items]
            self.tokens.put_nowait(fence.bucket_id)
            return Word.OK

        word: Word = await self.do("assign", (fence, list(items)), effect)
        return word

    async def claimed_lists(self, fence: Fence) -> tuple[Word, list[str]]:
        answer: tuple[Word, list[str]] = await self.do(
            "claimed_lists", (fence,), lambda: (Word.OK, sorted(self.buckets[fence.bucket_id].claimed))
        )
        return answer

    async def read_claimed(self, fence: Fence, list_name: str) -> Claimed:
        def effect() -> Claimed:
            entries = self.buckets[fence.bucket_id].claimed.get(list_name, [])
            return Claimed(Word.OK, list(entries), [], self.clock.wall_us(), 0, False, 0)

        answer: Claimed = await self.do("read_claimed", (fence, list_name), effect)
        return answer

    async def close_intake(self, fence: Fence) -> Word:
        def effect() -> Word:
            self.buckets[fence.bucket_id].state = BucketState.COMPLETING
            return self.refusal(fence) or Word.OK

        word: Word = await self.do("close_intake", (fence,), effect)
        return word

    async def close_if_empty(self, fence: Fence) -> Word:
        def effect() -> Word:
            bucket = self.buckets[fence.bucket_id]
            if bucket.pending or bucket.assigned or bucket.claimed or bucket.spilled:
                return Word.NOT_EMPTY
            bucket.state = BucketState.READY_TO_DELETE
            return self.refusal(fence) or Word.OK

        word: Word = await self.do("close_if_empty", (fence,), effect)
        return word

    async def read_page(self, fence: Fence, limit: int) -> Page:
        def effect() -> Page:
            bucket = self.buckets[fence.bucket_id]
            if bucket.spilled:
                return Page(Word.OK, "spilled", "", [], bucket.spilled[:limit])
            for name, entries in sorted(bucket.claimed.items()):
                return Page(Word.OK, "claimed", name, list(entries), [])
            if bucket.pending:
                return Page(Word.OK, "pending", "", list(bucket.pending)[:limit], [])
            entries = [entry for _, entry in bucket.assigned][:limit]
            return Page(Word.OK, "assigned" if entries else "", "", entries, [])

        page: Page = await self.do("read_page", (fence, limit), effect)
        return page

    async def remove_page(self, fence: Fence, page: Page) -> Word:
        def effect() -> Word:
            bucket = self.buckets[fence.bucket_id]
            if page.kind == "spilled":
                del bucket.spilled[: len(page.raw)]
            if page.kind == "claimed":
                bucket.claimed.pop(page.list_name, None)
            bucket.pending = deque(entry for entry in bucket.pending if entry not in page.entries)
            bucket.assigned = [pair for pair in bucket.assigned if pair[1] not in page.entries]
            return Word.OK

        word: Word = await self.do("remove_page", (fence, page), effect)
        return word

    async def wait_wake(self, bucket_ids: Sequence[bytes], timeout_seconds: float) -> bytes | None:
        self.calls.append(("wait_wake", (list(bucket_ids), timeout_seconds)))
        if self.script["wait_wake"]:
            raise Unavailable("wait_wake: down") if self.script["wait_wake"].popleft() is DOWN else AssertionError
        return await self.tokens.get()


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Let the loop turn until the condition holds."""
    try:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 (any change of state may end it, not one event)
                await asyncio.sleep(0)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


async def turns(count: int = 200) -> None:
    """Let the loop turn: enough for everything that can happen without a further event."""
    for _ in range(count):
        await asyncio.sleep(0)


class Kit:
    """The working half of an agent over small stores."""

    def __init__(self, handlers: Handlers, agent: AgentSettings | None = None) -> None:
        self.clock = HandClock()
        self.master = KitMaster()
        self.master.now_us = self.clock.wall_us()
        self.store = KitStore(self.clock)
        self.holdings = Holdings(ME)
        self.trust()
        self.working = Working(
            ClusterSettings(),
            agent or AgentSettings(),
            self.master,  # type: ignore[arg-type]  # the part of the port that working uses
            self.store,  # type: ignore[arg-type]
            self.holdings,
            handlers,
            self.clock,
            Telemetry(),
            EventLog(),
            "me",
        )
        self._run: asyncio.Task[None] | None = None

    def trust(self, lease_seconds: float = 1e6) -> None:
        """A renewal of the lease, now."""
        self.holdings.trust(term(self.clock.now, lease_seconds))

    def expire(self) -> None:
        """The lease is past its hard deadline, and not yet fenced."""
        self.clock.now = self.holdings.hard_until + 1.0

    def bucket(self, priority: int = 3) -> Holding:
        """One more bucket, with nothing in it."""
        holding = Holding(Fence(BucketId(new_id()), 1, ME), "default", priority, "default")
        self.store.buckets[holding.fence.bucket_id].fence = holding.fence
        self.working.open(holding)
        return holding

    def submit(self, holding: Holding, entries: Iterable[Entry]) -> None:
        """A producer's submit."""
        self.store.buckets[holding.fence.bucket_id].pending.extend(entries)
        self.store.tokens.put_nowait(holding.fence.bucket_id)

    def lists(self, holding: Holding) -> dict[str, list[Entry]]:
        """Claimed lists that lie in the store."""
        return self.store.buckets[holding.fence.bucket_id].claimed

    def rescue(self, holding: Holding) -> None:
        """Another agent takes the bucket: mark in the master, fence in the store."""
        self.master.others.add(holding.fence.bucket_id)
        bucket = self.store.buckets[holding.fence.bucket_id]
        bucket.fence = Fence(holding.fence.bucket_id, holding.fence.epoch + 1, AgentId(b"other-rescuer..."))

    async def settled(self) -> None:
        """Until everything submitted to our buckets is over and the claimed lists are gone."""
        await until(lambda: not any(map(self._busy, self.holdings.buckets)), "the end of all jobs")
        await until(self.working.is_idle, "the end of all writes")
        async with asyncio.timeout(10):
            await self.working.reporter.wait_settled()

    def _busy(self, bucket_id: bytes) -> bool:
        bucket = self.store.buckets[bucket_id]
        return bool(bucket.pending or bucket.claimed)

    async def __aenter__(self) -> Kit:
        self._run = asyncio.ensure_future(self.working.run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._run is not None
        failure = self._run.exception() if self._run.done() and not self._run.cancelled() else None
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)
        await self.working.aclose()
        if failure is not None:
            raise failure
