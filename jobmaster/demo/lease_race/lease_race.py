"""The race that fencing prevents: an owner wakes up after its job was rescued and finished, and tries to record its outcome.

Agent A claims a job and runs it. A's lease ends in the master while A sleeps: its own clock does not advance, as if it were
stopped after it checked the lease and before it wrote. Agent B writes the death certificate, evacuates the bucket and
finishes the job. A wakes and records: the row refuses the outcome, the refusal is counted on the line of A's assignment,
A's bucket belongs to another agent, A's renewal is refused, and A exits. Only the master's clock runs by itself: the drill
sends renewals until the lease of 200 ms is over. (The drill of Faultline, on both stores.)
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
from jobmaster.demo.lease_race.drill_agent import DrillAgent
from jobmaster.demo.lease_race.drill_cluster import LEASE_SECONDS, PERSIST_WITHIN_SECONDS, open_readers
from jobmaster.demo.lease_race.event_trace import EventTrace, Step
from jobmaster.demo.lease_race.handlers import LATE, NAME, RESCUED
from jobmaster.demo.lease_race.manual_clock import ManualClock
from jobmaster.handlers import Handlers, JobContext
from jobmaster.model.job import JobState
from jobmaster.model.job_view import JobView
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import open_master, open_stores
from jobmaster_agents.event_log import Fields
from jobmaster_agents.state.ownership import FENCED_EXIT_CODE

_T = TypeVar("_T")
STEP_SECONDS = 60.0
"""Time limit of a step: it turns a hang into an error."""

_RENEWALS_MAX = 12
"""More steps than a lease has: by then A got its answer, or fenced itself without one."""


class RaceOptions(NamedTuple):
    """Options of one run of the drill."""

    shift_seconds: float = 0.0
    """Wall clock of A and of the producer; B's is off by as much the other way."""
    known: bool = True
    """Whether the master has a row of the job (PROCESSING) before A falls asleep."""


class RaceResult(msgspec.Struct, frozen=True, kw_only=True):
    """What master and stores hold after the run."""

    ok: bool
    off: list[str]
    """Failed expectations, one sentence each."""
    concluding_lines: int
    token: int
    """Token of the concluding line."""
    stale_refused: int
    """Refusals counted on the line of A's assignment."""
    events: int
    invariants: dict[str, int]
    """Violations by number."""
    clock_shift_seconds: float
    known_to_master: bool
    seconds: float


class _BlockedHandler:
    """The handler of the first owner: it runs until ``awake`` is set."""

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
            self.over.set()  # the waiting task is resumed after the outcome of this run was built
            return LATE

        return work


class LeaseRace:
    """The agents and the expectations of one run."""

    def __init__(self, settings: ClusterSettings, options: RaceOptions, trace: EventTrace) -> None:
        self._settings = settings
        self._options = options
        self._trace = trace
        self._began = SystemClock().boottime()
        self._blocked = _BlockedHandler()
        self._failures: list[str] = []
        self._first_event = len(trace.events)

    async def run(self) -> RaceResult:
        """Run the steps, and check master and stores."""
        options = self._options
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            producer = await self._producer(stack, ManualClock(options.shift_seconds))
            a = await DrillAgent.enter("A", self._settings, ManualClock(options.shift_seconds), self._blocked.handlers)
            stack.push_async_callback(a.close)
            a.run_claimed_jobs(group)
            receipt = await _step(self._claim_job(producer, a))
            owned = a.bucket_id
            b = await DrillAgent.enter("B", self._settings, ManualClock(-options.shift_seconds))
            stack.push_async_callback(b.close)
            b.work(group)
            await _step(self._let_lease_end(b))
            await _step(self._rescue(producer, receipt, b))
            await _step(self._wake_up(a))
            await _step(self._leave(a))
            self._expect(await b.runtime.leave(STEP_SECONDS, "the drill is over"), "B could not leave in order")
            await a.close()
            await b.close()
            view = await producer.get(receipt)
        return await self._check(view, owned)

    def _note_step(self, name: str, step: Step, fields: Fields | None = None) -> None:
        self._trace.step(name, step, fields)

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._failures.append(otherwise)

    # ------------------------------------------------------------ steps

    async def _producer(self, stack: AsyncExitStack, clock: ManualClock) -> Cluster:
        master = await open_master(self._settings, application_name="jobmaster-drill")
        stack.push_async_callback(master.close)
        stores = await open_stores(self._settings)
        for store in stores.values():
            stack.push_async_callback(store.close)
        self._clock = clock
        cluster = Cluster(self._settings, master, stores, clock=clock)
        stack.push_async_callback(cluster.close)
        return cluster

    async def _claim_job(self, producer: Cluster, a: DrillAgent) -> JobReceipt[object]:
        receipt: JobReceipt[object] = await producer.submit(
            NAME, {}, job_id=self._clock.new_id(), allow_volatile=True, allow_unregistered=True
        )
        self._note_step(
            "producer",
            Step.SUBMITTED,
            {"job": receipt.id_bytes, "bucket": receipt.bucket_id, "acknowledged": receipt.level},
        )
        self._expect(receipt.bucket_id == a.bucket_id, "the job did not go into A's bucket")
        a.claimer.wake()
        await self._blocked.running.wait()
        self._note_step("A", Step.RUNNING, {"job": receipt.id_bytes, "token": 1})
        if self._options.known:
            a.clock.turn(PERSIST_WITHIN_SECONDS)
            await a.runtime.bucket_worker.in_flight_writer.tick()
            await a.runtime.bucket_worker.outcome_writer.acknowledger.wait_idle()
            state = await producer.state(receipt)
            self._expect(state is JobState.PROCESSING, f"the row of the running job is {state}")
            self._note_step("A", Step.ROW_WRITTEN, {"job": receipt.id_bytes, "state": state})
        self._expect(a.runtime.ownership.may_commit(a.clock.boottime()), "A does not trust its own lease")
        self._note_step("A", Step.ASLEEP, {"lease_seconds": LEASE_SECONDS})
        return receipt

    async def _let_lease_end(self, b: DrillAgent) -> None:
        """B renews and runs its failure detector until it may write the certificate: A's lease must be over, and B must have
        held its own lease for as long."""
        while not b.runtime.telemetry.agents_certified:
            await b.renew()
            await b.runtime.failure_detector.tick()

    async def _rescue(self, producer: Cluster, receipt: JobReceipt[object], b: DrillAgent) -> None:
        for rescuer in b.runtime.rescuer.by_store.values():
            await rescuer.tick()
        await b.runtime.due_notifier.tick()
        drained = b.runtime.telemetry.buckets_drained
        self._expect(drained == 1, f"B drained {drained} buckets instead of A's")
        rescued = b.runtime.telemetry.jobs_rescued
        self._expect(rescued == 1, f"B counted {rescued} rescued jobs instead of 1")
        state = await producer.wait(receipt)
        view = await producer.get(receipt)
        fields = {"job": receipt.id_bytes, "token": view.token, "state": state, "rescues": view.rescues}
        self._note_step("B", Step.RESCUED_AND_FINISHED, fields)

    async def _wake_up(self, a: DrillAgent) -> None:
        """A goes on where it was stopped: the handler returns, and A sends the outcome under a lease that it trusts."""
        self._note_step("A", Step.AWAKE)
        self._blocked.awake.set()
        await self._blocked.over.wait()
        writer = a.runtime.bucket_worker.outcome_writer
        await writer.wait_settled()
        self._expect(writer.refused == 1, f"A counted {writer.refused} refused writes instead of 1")
        self._expect(not a.runtime.telemetry.jobs_ended, "A counted an outcome of its own")
        self._note_step("A", Step.RECORD_REFUSED, {"refused": writer.refused})

    async def _leave(self, a: DrillAgent) -> None:
        """A's bucket belongs to another agent, its next renewal is refused because of the certificate, and A exits."""
        ownership = a.runtime.ownership
        if ownership.buckets:
            lost = asyncio.Event()
            ownership.on_lost.append(lambda *_: lost.set())
            a.claimer.wake()
            await lost.wait()
        self._expect(not ownership.fenced.is_set(), "A was fenced before it met the certificate")
        self._expect(not await a.is_alive_in_master(), "the master still takes A for alive")
        for _ in range(_RENEWALS_MAX):
            if not ownership.fenced.is_set():
                await a.renew()
        self._expect("certificate" in ownership.fenced_why, f"A was fenced because {ownership.fenced_why}")
        self._note_step("A", Step.LEFT, {"exit_code": FENCED_EXIT_CODE, "reason": ownership.fenced_why})

    # ------------------------------------------------------------ check

    async def _check(self, view: JobView, owned: bytes) -> RaceResult:
        async with open_readers(self._settings) as (reader, stores):
            lines = await reader.report("ledger", view.id)
            bucket = (await reader.report("bucket_history", UUID(bytes=owned)))[-1]
            report = await audit(reader, stores, AuditScope(quiet_seconds=0.0, acknowledged=[view.id_bytes]))
        concluding = [line for line in lines if line["concluding"]]
        stale = [line for line in lines if line["bucket_id"].bytes == owned and line["refused_us"]]
        token = concluding[0]["token"] if concluding else 0
        refused = sum(line["refused_count"] for line in stale)
        self._expect(view.state is JobState.SUCCEEDED, f"the job ended as {view.state}")
        result = decode_json(view.result_json) if view.result_json else None
        self._expect(result == RESCUED, f"the recorded result is {result!r}")
        self._expect(len(concluding) == 1, f"{len(concluding)} concluding lines instead of 1")
        self._expect(token >= 2, f"the concluding line has token {token}")
        self._expect(refused == 1, f"{refused} refusals are counted on A's line instead of 1")
        self._expect(view.rescues == 1, f"the job counts {view.rescues} rescues instead of 1")
        closed = (bucket["to_state"], bucket["epoch"], bucket["jobs_moved"], bucket["jobs_rescued"])
        self._expect(closed == ("READY_TO_DELETE", 2, 1, 1), f"A's bucket ended as {closed}")
        self._expect(report.clean, f"invariants are violated: {report.evidence}")
        return RaceResult(
            ok=not self._failures,
            off=self._failures,
            concluding_lines=len(concluding),
            token=token,
            stale_refused=refused,
            events=len(self._trace.events) - self._first_event,
            invariants=report.violations,
            clock_shift_seconds=self._options.shift_seconds,
            known_to_master=self._options.known,
            seconds=round(SystemClock().boottime() - self._began, 3),
        )


async def _step(awaitable: Awaitable[_T]) -> _T:
    async with asyncio.timeout(STEP_SECONDS):
        return await awaitable
