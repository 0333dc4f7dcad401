"""Faults in an order that drawn faults rarely have: for guards that would be noticed in one history of thousands."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from jobmaster.client.cluster import Cluster
from jobmaster.codec import encode_entry
from jobmaster.model.errors import JobMasterError, OutcomeUnknown
from jobmaster.model.flow.limit import LimitUse
from jobmaster.model.job import Entry
from jobmaster.ports import FiringSchedules, LeaderBreakers
from jobmaster.settings.model import ClusterSettings, ScheduleSettings
from jobmaster_agents.leader.schedule_firing import PAGE_SCHEDULES, _proposal
from tests.simulation.checks.audit import RESOURCE, Job
from tests.simulation.faults.injector import FaultInjector, operate, pause, resume
from tests.simulation.faults.nemesis import Nemesis
from tests.simulation.master.sim_master import SimMaster
from tests.simulation.runtime.event_loop import Process
from tests.simulation.runtime.hosts import Host, SimClock
from tests.simulation.runtime.network import CallFault, Network, Server
from tests.simulation.runtime.patches import LEAD_SECONDS
from tests.simulation.store.sim_store import SimStore
from tests.simulation.workload.clients import COMPLETE_SECONDS, HANDLERS, plain
from tests.simulation.workload.limited import LIMITED, borrowing

if TYPE_CHECKING:
    from tests.simulation.history import History

Scenario = Callable[["History"], Coroutine[None, None, None]]
_ROUNDS = 4
_RESTART_LOOKS = 20
_LOOKS, _RIVALS = 200, 8
_ROUND_SECONDS, _CUT_SECONDS, _FROZEN_SECONDS = 0.2, 0.25, 0.2
_BURSTS, _BURST_JOBS, _BURST_RUN_SECONDS, _HALT_SECONDS = 8, 12, 0.3, 3.0
_LOSSES, _LOSS_SECONDS = 3, 0.3
_PAUSES, _PAUSED_SECONDS = 3, 0.6
_OUTAGES, _OUTAGE_SECONDS, _OUTAGE_RUN_SECONDS = 3, 1.6, 0.6
_LOCK_SECONDS = 0.1
_BORROWING_JOBS, _LONG_SECONDS, _BORROWER_LOOKS = 40, 2.2, 50
_FREEZES, _RIVAL_FIRINGS, _LOOKS_FOR_FIRES, _FIRES_SECONDS = 8, 2, 60, 0.02
_SLOW_JOBS, _SLOW_SECONDS = 3, 4.0
_CHANGES, _CHANGES_SECONDS, _PUT_OFF_RUN_SECONDS = 8, 1.6, 0.2
_SUBMITS_MAX, _AGAIN_SECONDS, _TRIES = 12, 0.2, 4
_UNANSWERED, _CALLED_OFF, _CALLED_OFF_SECONDS = 0.7, 12, 1.6
_DUE_SECONDS, _PUT_OFF_SECONDS = 0.6, 2.2
"""A job lies in its bucket when it is due in the shorter time, and waits in the master when it is due in the longer one."""


async def claims_without_answers(history: History) -> None:
    """Some rounds of: the stores execute claims whose replies are lost, an operator freezes the buckets before the claims are
    repeated, and lets them go on later. The claimed lists are then known to the stores alone."""
    nemesis = history.nemesis
    stores: list[Server] = list(history.stores.values())
    for _ in range(_ROUNDS):
        await asyncio.sleep(_ROUND_SECONDS)
        cut = [host.process for host in history.hosts if host.process is not None and host.process.alive]
        for process in cut:
            nemesis.cut(process, stores, CallFault.LOST_REPLY)
        await asyncio.sleep(_CUT_SECONDS)
        tables = history.master.statements.tables
        frozen = sorted(bucket.id for bucket in tables.buckets.values() if bucket.state == "ACTIVE")
        await operate(history, "freeze", frozen)
        for process in cut:
            nemesis.mend(process)
        await asyncio.sleep(_FROZEN_SECONDS)
        await operate(history, "unfreeze", frozen)


async def orders(history: History) -> None:
    """No further fault: every history has workflows."""


async def deploy_taken_back(history: History) -> None:
    """An agent starts with a newer definition of a schedule, one with the older definition restarts while that one lives, and
    then the newer program is taken back."""
    older, newer = (_declaring(history.settings, every) for every in ("1h", "2h"))
    one, two, _ = history.hosts
    for settings, host in ((older, one), (newer, two), (older, one), (older, two)):
        history.settings = settings
        await _restarted(host)
        await asyncio.sleep(0.1)


async def jobs_and_signals_that_meet(history: History) -> None:
    """Jobs begin to wait for signals that are sent at the same moment."""
    history.signallers.start()


async def statements_that_meet(history: History) -> None:
    """Every statement takes a while between its snapshot and its effect. An operator freezes all buckets now and then, and
    agents that do not lead any more decide fires of schedules beside the leader."""
    history.nemesis.lock_seconds = _LOCK_SECONDS
    async with asyncio.TaskGroup() as group:
        group.create_task(_freeze_and_unfreeze(history))
        for _ in range(_RIVAL_FIRINGS):
            group.create_task(_decide_fires(history.open_master().schedules))


async def emptied_stores(history: History) -> None:
    """Stores lose everything while agents have jobs in memory that no row shows."""
    injector = FaultInjector(history, Random(f"emptied {history.seed}"))
    async with asyncio.TaskGroup() as group:
        group.create_task(_bursts(history))
        for server in list(history.stores.values()) * _LOSSES:
            await asyncio.sleep(_LOSS_SECONDS)
            injector.empty(server)


async def second_copies_in_an_outage(history: History) -> None:
    """The master goes away while jobs run whose start was written. They end without it, and lie in their bucket once more."""
    injector = FaultInjector(history, Random(f"second copies {history.seed}"))
    stores = history.open_stores()
    for _ in range(_OUTAGES):
        buckets = [each for each in history.master.statements.tables.buckets.values() if each.state == "ACTIVE"]
        copies = [(bucket, Job(history.new_id(), "fenced", seconds=_OUTAGE_RUN_SECONDS)) for bucket in buckets]
        for repeated in (False, True):
            for bucket, job in copies:
                history.audit.jobs[job.id] = job
                with contextlib.suppress(JobMasterError):
                    await stores[bucket.store].submit(
                        bucket.id, [encode_entry(Entry(job.id, 1, "fenced", b"{}"))],
                        high_water_jobs=1000, high_water_bytes=10**6, skew_ms_max=3_600_000,
                    )  # fmt: skip
            await asyncio.sleep(_ROUND_SECONDS)
            if not repeated:
                injector.go_down(history.master, _OUTAGE_SECONDS)
                await asyncio.sleep(_OUTAGE_SECONDS - 2 * _ROUND_SECONDS)
        await asyncio.sleep(_OUTAGE_SECONDS)


async def pauses_of_full_memories(history: History) -> None:
    """A handler is paused and resumed while agents have jobs of it in memory that wait for a slot."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_bursts(history))
        for _ in range(_PAUSES):
            await asyncio.sleep(_ROUND_SECONDS)
            await pause(history, "handler", "plain", None)
            await asyncio.sleep(_PAUSED_SECONDS)
            await resume(history, "handler", "plain")


async def agents_that_stand_still(history: History) -> None:
    """Two agents stand still for more than two leases, one after the other, and have jobs in memory that wait for a slot."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_bursts(history))
        for host in history.hosts[:2]:
            await asyncio.sleep(2 * _ROUND_SECONDS)
            if host.process is not None and host.process.alive:
                history.loop.halt(host.process, _HALT_SECONDS)


async def borrowers_cut_off(history: History) -> None:
    """An agent that runs jobs with lent permits is cut off from the master alone, and works on under the terms of its store,
    also after its death certificate; further jobs of the limit wait in other agents."""
    master, stores = history.open_master(), history.open_stores()
    cluster = Cluster(history.settings, master, stores, handlers=LIMITED, clock=SimClock(history.loop, 13.0))
    borrower: Process | None = None
    async with asyncio.TaskGroup() as group:
        for number in range(_BORROWING_JOBS + _BORROWER_LOOKS):
            # Short ones make agents borrow; every third one runs until long after the lease of its agent. The later ones find
            # other agents.
            is_long = number < _BORROWING_JOBS and number % 3 == 0
            job = Job(history.new_id(), "limited", seconds=_LONG_SECONDS if is_long else 0.0, handler="borrowing")
            job.uses = (LimitUse("lent", "", 1),)
            group.create_task(_submitted(history, cluster, job, borrowing))
            if number < _BORROWING_JOBS:
                continue
            await asyncio.sleep(_LOCK_SECONDS / 2)
            borrower = borrower or _cut_off_borrower(history)
            if borrower is not None and history.master.statements.tables.agents[borrower.agent_id].state == "DEAD":
                # It does not hear that its buckets are fenced, and works on until the last term is over.
                history.nemesis.cut(borrower, [history.master, *history.stores.values()], CallFault.LOST_REQUEST)


async def questions_that_come_late(history: History) -> None:
    """Agents borrow permits. One of three questions is executed long after its sender has given it up and has asked again."""
    fault_of, chance = history.nemesis.call_fault, Random(f"questions {history.seed}")

    def late(process: Process | None, server: Server, what: str, *, writes: bool) -> CallFault:
        if what == "limits/lend" and not history.nemesis.quiet and chance.random() < 1 / 3:
            return CallFault.LATE
        return fault_of(process, server, what, writes=writes)

    history.nemesis.call_fault = late  # type: ignore[method-assign]
    cluster = Cluster(
        history.settings,
        history.open_master(),
        history.open_stores(),
        handlers=LIMITED,
        clock=SimClock(history.loop, 13.0),
    )
    async with asyncio.TaskGroup() as group:
        for _ in range(2 * _BORROWING_JOBS):
            job = Job(history.new_id(), "limited", seconds=chance.choice((0.0, 0.0, 0.3)), handler="borrowing")
            job.uses = (LimitUse("lent", "", 1),)
            group.create_task(_submitted(history, cluster, job, borrowing))
            await asyncio.sleep(_LOCK_SECONDS / 5)


def _cut_off_borrower(history: History) -> Process | None:
    for host in history.hosts:
        process = host.process
        if process is not None and host.serving and _runs_with_lent_permits(process):
            history.nemesis.cut(process, [history.master], CallFault.LOST_REQUEST)
            return process
    return None


def _runs_with_lent_permits(process: Process) -> bool:
    """True while a long run of the agent has a permit that was lent to it."""
    audit, table = process.history.audit, process.parts.bucket_worker.job_table
    return any(
        job.limited is not None and job.limited.borrowed and audit.jobs[job.entry.id].seconds == _LONG_SECONDS
        for job in table
    )


async def _bursts(history: History) -> None:
    """More jobs than there are slots, again and again."""
    cluster = _cluster(history, history.open_master(), history.open_stores())
    async with asyncio.TaskGroup() as group:
        for _ in range(_BURSTS):
            for _ in range(_BURST_JOBS):
                job = Job(history.new_id(), "plain", seconds=_BURST_RUN_SECONDS)
                group.create_task(_submitted(history, cluster, job))
            await asyncio.sleep(_ROUND_SECONDS)


async def _freeze_and_unfreeze(history: History) -> None:
    for _ in range(_FREEZES):
        await asyncio.sleep(_ROUND_SECONDS)
        buckets = history.master.statements.tables.buckets.values()
        frozen = sorted(bucket.id for bucket in buckets if bucket.state == "ACTIVE")
        await operate(history, "freeze", frozen)
        await operate(history, "unfreeze", frozen)


async def _decide_fires(schedules: FiringSchedules) -> None:
    for _ in range(_LOOKS_FOR_FIRES):
        await asyncio.sleep(_FIRES_SECONDS)
        with contextlib.suppress(JobMasterError):
            proposals = [_proposal(each) for each in await schedules.due(PAGE_SCHEDULES)]
            moves, fires = [move for move, _ in proposals], [fire for _, fires in proposals for fire in fires]
            if moves:
                await schedules.fire(moves, fires, LEAD_SECONDS, None)


async def rival_leaders(history: History) -> None:
    """Beside the leader more agents take themselves for it, all the time that the resource of a breaker is down."""
    await asyncio.gather(*(_look(history.open_master().breakers) for _ in range(_RIVALS)))


async def _look(breakers: LeaderBreakers) -> None:
    for _ in range(_LOOKS):
        with contextlib.suppress(JobMasterError):
            await breakers.half_open()
            for _ in range(2):
                await breakers.choose_trials(100)
                await breakers.evaluate([RESOURCE])


async def jobs_never_in_time(history: History) -> None:
    """Some jobs whose every run takes several times their ``complete_time``, wherever it is."""
    cluster = _cluster(history, history.open_master(), history.open_stores())
    for number in range(_SLOW_JOBS):
        job = Job(history.new_id(), "never in time", seconds=_SLOW_SECONDS)
        await _submitted(history, cluster, job, complete_time=COMPLETE_SECONDS, cancel_slow=number > 0)


async def changes_executed_late(history: History) -> None:
    """Clients put jobs off that lie in buckets. The copies are recalled, and the statements that hold the rows are executed
    long after, several for each job, because a client that gets no answer looks again. When a later one is executed, the job
    has come back to the master by an earlier one, or by the owner that missed the copy, and has another assignment."""
    await _put_off_jobs(history, "changes/hold_recalled", lambda chance: CallFault.LATE)


async def changes_without_recall(history: History) -> None:
    """Clients put jobs off that lie in buckets, and often have no connection to the store that has the copy."""
    await _put_off_jobs(history, "recall", lambda chance: CallFault.REFUSED if chance.random() < 0.5 else CallFault.OK)


async def puts_without_answers(history: History) -> None:
    """Most puts of assigned jobs are done and not answered, and most calls that onboard jobs do not reach the master. Clients
    cancel jobs that wait for their time meanwhile."""
    fault_of, chance = history.nemesis.call_fault, Random(f"puts {history.seed}")

    def unanswered(process: Process | None, server: Server, what: str, *, writes: bool) -> CallFault:
        if not history.nemesis.quiet and chance.random() < _UNANSWERED:
            if what == "assign":
                return CallFault.LOST_REPLY
            if what == "onboarding/onboard":
                return CallFault.REFUSED
        return fault_of(process, server, what, writes=writes)

    history.nemesis.call_fault = unanswered  # type: ignore[method-assign]
    cluster = _cluster(history, history.open_master(), history.open_stores())
    async with asyncio.TaskGroup() as group:
        for _ in range(_CALLED_OFF):
            job = Job(history.new_id(), "called off late")
            group.create_task(_called_off(history, cluster, job, chance), name="cancel")


async def _called_off(history: History, cluster: Cluster, job: Job, chance: Random) -> None:
    if not await _submitted(history, cluster, job, after=_CALLED_OFF_SECONDS):
        return
    await asyncio.sleep(_CALLED_OFF_SECONDS * chance.random())
    job.cancelled = True
    with contextlib.suppress(JobMasterError):
        await cluster.cancel(job.id)
        job.cancelled_at = history.loop.now


class FaultOfOneCall(Nemesis):
    """One kind of call has a fault, and no other one.

    Args:
        what: name of the statement or the function of a store.
        draw: its fault.
    """

    def __init__(self, history: History, chance: Random, what: str, draw: Callable[[Random], CallFault]) -> None:
        super().__init__(history.loop, history.trace, chance, faultless=True, on_crash=lambda process: None)
        self._what = what
        self._fault = draw
        self.quiet = False

    def call_fault(self, process: Process | None, server: Server, what: str, *, writes: bool) -> CallFault:
        return self._fault(self.chance) if what == self._what else CallFault.OK

    def long_wait(self) -> float:
        """In this time an owner misses a copy twice, and gives its row back."""
        return 1.2 + 1.0 * self.chance.random()


async def _put_off_jobs(history: History, what: str, draw: Callable[[Random], CallFault]) -> None:
    """Jobs that are put off while they lie in buckets, by a client of which one kind of call has a fault."""
    chance = Random(f"changes {history.seed}")
    nemesis = FaultOfOneCall(history, chance, what, draw)
    master = SimMaster(history.master, Network(history.master, nemesis, history.trace))
    stores = {
        name: SimStore(server, Network(server, nemesis, history.trace), nemesis)
        for name, server in history.stores.items()
    }
    cluster = _cluster(history, master, stores)
    async with asyncio.TaskGroup() as group:
        for _ in range(_CHANGES):
            group.create_task(_put_off(history, cluster, _CHANGES_SECONDS * chance.random()), name="change")


async def _put_off(history: History, cluster: Cluster, wait: float) -> None:
    await asyncio.sleep(wait)
    job = Job(history.new_id(), "put later", seconds=_PUT_OFF_RUN_SECONDS)
    if not await _submitted(history, cluster, job, after=_DUE_SECONDS):
        return
    for _ in range(_TRIES):
        try:
            history.audit.changed(job, await cluster.change(job.id, after=_PUT_OFF_SECONDS))
            return
        except OutcomeUnknown:
            return  # it may still take effect
        except JobMasterError:
            continue


async def _submitted(history: History, cluster: Cluster, job: Job, handler: Any = plain, **options: Any) -> bool:
    """Sent again under its id until there is an answer; False when there was none to the end."""
    history.audit.jobs[job.id] = job
    for _ in range(_SUBMITS_MAX):
        try:
            receipt = await cluster.submit(handler, {}, job_id=job.id, **options)
        except JobMasterError:
            await asyncio.sleep(_AGAIN_SECONDS)
        else:
            history.audit.acknowledged(job, str(receipt.level))
            return True
    return False


def _cluster(history: History, master: SimMaster, stores: dict[str, SimStore]) -> Cluster:
    return Cluster(history.settings, master, stores, handlers=HANDLERS, clock=SimClock(history.loop, 13.0))


def _declaring(settings: ClusterSettings, every: str) -> ClusterSettings:
    """The schedule does not fire as long as any history lasts."""
    schedule = ScheduleSettings(handler="plain", every=every, start="2040-01-01T00:00:00Z")
    return replace(settings, schedules={"declared": schedule})


async def _restarted(host: Host) -> None:
    """The agent leaves in order, if it serves, and the next one of its machine is up; or the time for that is over."""
    starts = host.starts
    if host.lifecycle is not None:
        host.lifecycle.reason = "the scenario asks"
        host.lifecycle.leave.set()
    for _ in range(_RESTART_LOOKS):
        if host.starts > starts and host.serving:
            return
        await asyncio.sleep(0.05)
