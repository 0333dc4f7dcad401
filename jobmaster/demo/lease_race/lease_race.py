"""The race that fencing is for: an owner wakes up after its job was rescued and finished, and tries to record its own end.

A claims a job and runs it. Its lease runs out in the master while it sleeps (its own clock stands still: it has looked at it,
found the lease good, and was stopped before it wrote). B writes the death certificate, takes the bucket, gives the job back
and finishes it. A wakes and records: the row refuses it, the refusal is counted on the line of A's assignment, A's bucket is
another's, A's renewal meets the certificate, A leaves. The master's clock is the only one that passes by itself: a lease of
200 ms is waited for by asking, renewal by renewal, whether it is over. (The drill of Faultline, on both stores.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import NamedTuple, TypeVar
from uuid import UUID

import msgspec

from jobmaster.audit import AuditScope, audit
from jobmaster.client.cluster import Cluster
from jobmaster.client.receipts import JobReceipt
from jobmaster.clock import SystemClock
from jobmaster.codec import decode_json
from jobmaster.demo.lease_race.actors import Actor
from jobmaster.demo.lease_race.ground import LEASE_SECONDS, PERSIST_WITHIN_SECONDS, books_of
from jobmaster.demo.lease_race.hand_clock import HandClock
from jobmaster.demo.lease_race.handlers import LATE, NAME, RESCUED
from jobmaster.demo.lease_race.story import Step, Story
from jobmaster.handlers import Handlers, JobContext
from jobmaster.model.job import JobState, JobView
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import open_master, open_stores
from jobmaster_agents.event_log import Fields
from jobmaster_agents.state.ownership import FENCED_EXIT_CODE

_T = TypeVar("_T")
STEP_SECONDS = 60.0
"""A step that takes longer ends the drill; it only turns a hang into an error."""

_RENEWALS_MAX = 12
"""More steps than its lease has: by then it was told, or it would have fenced itself for want of an answer."""


class Course(NamedTuple):
    """One run of the drill."""

    shift_seconds: float = 0.0
    """Wall clock of A and of the producer; B's is off by as much the other way."""
    known: bool = True
    """Whether the master has a row of the job (PROCESSING) before A falls asleep."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the books say afterwards."""

    ok: bool
    off: list[str]
    """What is not as it must be, one sentence each."""
    concluding_lines: int
    token: int
    """Of the concluding line."""
    stale_refused: int
    """Refusals counted on the line of A's assignment."""
    events: int
    invariants: dict[str, int]
    """Violations by number."""
    clock_shift_seconds: float
    known_to_master: bool
    seconds: float


class _Gate:
    """The handler of the first owner: runs until it is let go."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.awake = asyncio.Event()
        self.over = asyncio.Event()
        self.handlers = Handlers()
        self.handlers.job(name=NAME)(self._function())

    def _function(self) -> Callable[..., object]:
        async def work(ctx: JobContext) -> str:
            self.running.set()
            await self.awake.wait()
            self.over.set()  # whoever waits for it is resumed after the verdict on this result
            return LATE

        return work


class LeaseRace:
    """The actors and the books of one run."""

    def __init__(self, settings: ClusterSettings, course: Course, story: Story) -> None:
        self._settings = settings
        self._course = course
        self._story = story
        self._began = SystemClock().boottime()
        self._gate = _Gate()
        self._off: list[str] = []
        self._first_event = len(story.events)

    async def run(self) -> Verdict:
        """Play it, and read the books."""
        course = self._course
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            producer = await self._producer(stack, HandClock(course.shift_seconds))
            a = await Actor.enter("A", self._settings, HandClock(course.shift_seconds), self._gate.handlers)
            stack.push_async_callback(a.close)
            a.work_when_told(group)
            receipt = await _step(self._claims(producer, a))
            owned = a.bucket_id
            b = await Actor.enter("B", self._settings, HandClock(-course.shift_seconds))
            stack.push_async_callback(b.close)
            b.work(group)
            await _step(self._lease_runs_out(b))
            await _step(self._rescue(producer, receipt, b))
            await _step(self._wakes(a))
            await _step(self._leaves(a))
            self._demand(await b.runtime.leave(STEP_SECONDS, "the drill is over"), "B could not leave in order")
            await a.close()
            await b.close()
            view = await producer.get(receipt)
        return await self._judge(view, owned)

    def _tell(self, name: str, step: Step, fields: Fields | None = None) -> None:
        self._story.step(name, step, fields)

    def _demand(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._off.append(otherwise)

    # ------------------------------------------------------------ steps

    async def _producer(self, stack: AsyncExitStack, clock: HandClock) -> Cluster:
        master = await open_master(self._settings, application_name="jobmaster-drill")
        stack.push_async_callback(master.close)
        stores = await open_stores(self._settings)
        for store in stores.values():
            stack.push_async_callback(store.close)
        self._clock = clock
        cluster = Cluster(self._settings, master, stores, clock=clock)
        stack.push_async_callback(cluster.close)
        return cluster

    async def _claims(self, producer: Cluster, a: Actor) -> JobReceipt[object]:
        receipt: JobReceipt[object] = await producer.submit(
            NAME, {}, job_id=self._clock.new_id(), allow_volatile=True, allow_unregistered=True
        )
        self._tell(
            "producer", Step.SUBMITTED, {"job": receipt.id, "bucket": receipt.bucket_id, "acknowledged": receipt.level}
        )
        self._demand(receipt.bucket_id == a.bucket_id, "the job did not go into A's bucket")
        a.claimer.wake()
        await self._gate.running.wait()
        self._tell("A", Step.RUNNING, {"job": receipt.id, "token": 1})
        if self._course.known:
            a.clock.turn(PERSIST_WITHIN_SECONDS)
            await a.runtime.bucket_worker.in_flight_writer.tick()
            await a.runtime.bucket_worker.outcome_writer.acknowledger.wait_idle()
            state = await producer.state(receipt)
            self._demand(state is JobState.PROCESSING, f"the row of the running job says {state}")
            self._tell("A", Step.ROW_WRITTEN, {"job": receipt.id, "state": state})
        self._demand(a.runtime.ownership.may_commit(a.clock.boottime()), "A does not trust its own lease")
        self._tell("A", Step.ASLEEP, {"lease_seconds": LEASE_SECONDS})
        return receipt

    async def _lease_runs_out(self, b: Actor) -> None:
        """B renews and judges until the master lets it write the certificate: A's lease has to be over, and B's to have
        been held for as long."""
        while not b.runtime.telemetry.agents_certified:
            await b.renew()
            await b.runtime.failure_detector.tick()

    async def _rescue(self, producer: Cluster, receipt: JobReceipt[object], b: Actor) -> None:
        for rescuer in b.runtime.rescuer.by_store.values():
            await rescuer.tick()
        await b.runtime.due_notifier.tick()
        drained = b.runtime.telemetry.buckets_drained
        self._demand(drained == 1, f"B drained {drained} buckets instead of A's")
        rescued = b.runtime.telemetry.jobs_rescued
        self._demand(rescued == 1, f"B counted {rescued} rescued jobs instead of 1")
        state = await producer.wait(receipt)
        view = await producer.get(receipt)
        fields = {"job": receipt.id, "token": view.token, "state": state, "rescues": view.rescues}
        self._tell("B", Step.RESCUED_AND_FINISHED, fields)

    async def _wakes(self, a: Actor) -> None:
        """It goes on where it was stopped: the handler returns, and the outcome leaves under a lease it believes in."""
        self._tell("A", Step.AWAKE)
        self._gate.awake.set()
        await self._gate.over.wait()
        reporter = a.runtime.bucket_worker.outcome_writer
        await reporter.wait_settled()
        self._demand(reporter.refused == 1, f"A counted {reporter.refused} refused writes instead of 1")
        self._demand(not a.runtime.telemetry.jobs_ended, "A counted an outcome of its own")
        self._tell("A", Step.RECORD_REFUSED, {"refused": reporter.refused})

    async def _leaves(self, a: Actor) -> None:
        """Its bucket is another's, its next renewal meets the certificate, and it goes."""
        ownership = a.runtime.ownership
        if ownership.buckets:
            lost = asyncio.Event()
            ownership.on_lost.append(lambda *_: lost.set())
            a.claimer.wake()
            await lost.wait()
        self._demand(not ownership.fenced.is_set(), "A was fenced before it met the certificate")
        self._demand(not await a.ask_whether_alive(), "the master still takes A for alive")
        for _ in range(_RENEWALS_MAX):
            if not ownership.fenced.is_set():
                await a.renew()
        self._demand("certificate" in ownership.fenced_why, f"A was fenced because {ownership.fenced_why}")
        self._tell("A", Step.LEFT, {"exit_code": FENCED_EXIT_CODE, "reason": ownership.fenced_why})

    # ------------------------------------------------------------ books

    async def _judge(self, view: JobView, owned: bytes) -> Verdict:
        async with books_of(self._settings) as (reader, stores):
            lines = await reader.report("ledger", UUID(bytes=view.id))
            bucket = (await reader.report("bucket_history", UUID(bytes=owned)))[-1]
            report = await audit(reader, stores, AuditScope(quiet_seconds=0.0, acknowledged=[view.id]))
        concluding = [line for line in lines if line["concluding"]]
        stale = [line for line in lines if line["bucket_id"].bytes == owned and line["refused_us"]]
        token = concluding[0]["token"] if concluding else 0
        refused = sum(line["refused_count"] for line in stale)
        self._demand(view.state is JobState.SUCCEEDED, f"the job ended as {view.state}")
        result = decode_json(view.result) if view.result else None
        self._demand(result == RESCUED, f"the recorded result is {result!r}")
        self._demand(len(concluding) == 1, f"{len(concluding)} concluding lines instead of 1")
        self._demand(token >= 2, f"the concluding line has token {token}")
        self._demand(refused == 1, f"{refused} refusals are counted on A's line instead of 1")
        self._demand(view.rescues == 1, f"the job counts {view.rescues} rescues instead of 1")
        closed = (bucket["to_state"], bucket["epoch"], bucket["jobs_moved"], bucket["jobs_rescued"])
        self._demand(closed == ("READY_TO_DELETE", 2, 1, 1), f"A's bucket ended as {closed}")
        self._demand(report.clean, f"invariants are violated: {report.evidence}")
        return Verdict(
            ok=not self._off,
            off=self._off,
            concluding_lines=len(concluding),
            token=token,
            stale_refused=refused,
            events=len(self._story.events) - self._first_event,
            invariants=report.violations,
            clock_shift_seconds=self._course.shift_seconds,
            known_to_master=self._course.known,
            seconds=round(SystemClock().boottime() - self._began, 3),
        )


async def _step(awaitable: Awaitable[_T]) -> _T:
    async with asyncio.timeout(STEP_SECONDS):
        return await awaitable
