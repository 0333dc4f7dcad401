"""The working half of an agent: everything between a bucket's lists and the master's rows, wired together once.

Owns the life of a bucket inside this process: opened, worked on, forgotten when it turns out to be another's, completed
when the agent leaves. The other half (lease, rescue, coordination) never sees a job.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol

import msgspec

from jobmaster.clock import Clock
from jobmaster.handlers import Handlers
from jobmaster.master.transactions import Transactions
from jobmaster.model.bucket import BucketState
from jobmaster.ports import Onboarding as OnboardingPort
from jobmaster.ports import Outcomes, StoreOwner, Word
from jobmaster.settings.model import AgentSettings, ClusterSettings
from jobmaster.telemetry import Telemetry
from jobmaster_agents.applying import Applying
from jobmaster_agents.attended import Attended, RecordMaster
from jobmaster_agents.cancelling import Cancelling
from jobmaster_agents.claiming import Capacity, Pump
from jobmaster_agents.completing import Completing, LeavingMaster
from jobmaster_agents.elsewhere import ElsewhereRunner
from jobmaster_agents.events import LOGGER_NAME, Event, EventLog
from jobmaster_agents.execution import Execution
from jobmaster_agents.holdings import Holding, Holdings
from jobmaster_agents.insisting import Told
from jobmaster_agents.isolation import IsolatedPool, WorkerLimits
from jobmaster_agents.isolation_output import LineRate
from jobmaster_agents.isolation_wire import IsolatedJob
from jobmaster_agents.onboarding import Onboarding
from jobmaster_agents.persisting import InFlight, Persisting
from jobmaster_agents.portions import LiveJob, Memory, Phase
from jobmaster_agents.reporting import Reporter
from jobmaster_agents.salvaging import SalvageMaster, Salvaging
from jobmaster_agents.spilling import Spilling
from jobmaster_agents.threads import ThreadRunner
from jobmaster_agents.verdicts import StopCause, Verdicts
from jobmaster_agents.waking import Waker


class WorkMaster(Outcomes, OnboardingPort, LeavingMaster, RecordMaster, SalvageMaster, Protocol):
    """What working needs of the master."""


class Working:
    """Buckets, pumps, slots and reports of one process.

    Args:
        list_prefix: names of claimed lists start with it; unique per incarnation.
        transactions: connections for handlers' transactions; ``None``: no handler uses any.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        agent: AgentSettings,
        master: WorkMaster,
        store: StoreOwner,
        holdings: Holdings,
        handlers: Handlers,
        clock: Clock,
        telemetry: Telemetry,
        log: EventLog,
        list_prefix: str,
        transactions: Transactions | None = None,
    ) -> None:
        self._settings = settings
        self._agent = agent
        self._store = store
        self._holdings = holdings
        self._handlers = {handler.name: handler for handler in handlers}
        self._clock = clock
        self._log = log
        self._telemetry = telemetry
        self._list_prefix = list_prefix
        self._group: asyncio.TaskGroup | None = None
        self.pumps: dict[bytes, Pump] = {}
        self._claims_told = Told("claim", log)
        self._claimed_before = 0
        """Jobs that pumps of closed buckets had claimed: a counter must not fall."""
        self._conflicts_before = 0
        self.memory = Memory()
        self.salvaging = Salvaging(master, lambda: holdings.may_commit(clock.boottime()))
        self.reporter = Reporter(master, store, holdings, self.memory, clock, self.forget, log, telemetry)
        self.in_flight = InFlight(master, self.memory, self.reporter, self._stop, self._waits_elsewhere)
        self.verdicts = Verdicts(
            self.reporter,
            settings.jobs,
            settings.limits,
            settings.thresholds.transient_threshold_seconds,
            clock,
            random.Random(random.getrandbits(64)),
        )
        self._line_rate = LineRate(clock.boottime)
        pool = IsolatedPool(
            settings.handlers,
            agent.isolated_processes,
            result_bytes=settings.limits.result_bytes,
            error_bytes=settings.limits.error_bytes,
            logger=logging.getLogger(LOGGER_NAME),
            clock=clock,
            limits=WorkerLimits(jobs_per_worker=agent.isolated_jobs, growth_bytes=agent.isolated_growth_bytes),
            on_output=self._printed,
            access=msgspec.msgpack.encode(transactions.access) if transactions is not None else b"",
        )
        attended = Attended(transactions, master, self.reporter, self.verdicts, holdings, clock, telemetry)
        threads = ThreadRunner(agent.threads, clock.boottime)
        self.threads_exhausted = threads.exhausted
        """Set when every thread is stuck in a handler that was given up, or as many handlers on the loop as may run at once:
        the process is to be replaced."""
        telemetry.read_from("threads_stuck", lambda: threads.quarantined)
        self._elsewhere = ElsewhereRunner(
            threads,
            pool,
            self.verdicts,
            holdings,
            clock,
            self.in_flight.authorise,
            thread_jobs=agent.threads,
            process_jobs=agent.isolated_processes,
            attended=attended,
            attended_jobs=settings.master.transactions,
            on_given_up=self._given_up,
        )
        self.execution = Execution(
            agent,
            settings.thresholds.age_boost_seconds,
            clock,
            holdings,
            self.verdicts,
            self._elsewhere,
            self.in_flight.authorise,
            self._room,
        )
        self.execution.on_given_up = self._given_up
        self._elsewhere.on_broken = self.execution.break_off
        self.reporter.runner = self.execution
        self.onboarding = Onboarding(
            master,
            self.reporter.assigning,
            self.execution,
            holdings,
            settings.thresholds,
            clock,
            self.forget,
            list(self._handlers),
        )
        self.cancelling = Cancelling(master, store, self.memory, self.reporter, self._stop, self._room, telemetry)
        self.waker = Waker(store, self.pumps, log)
        self.spilling = Spilling(store, holdings, self.memory, self.reporter, clock, self.forget, log)
        self.applying = Applying(master, store, holdings, self.reporter, self.forget, telemetry, log)
        self.completing = Completing(
            master, store, self.memory, self.execution, self.reporter, self.applying, self.verdicts, clock
        )
        self.persisting = Persisting(
            self.memory,
            self.in_flight,
            self.execution.running_before,
            clock,
            settings.thresholds.persist_within_seconds,
        )
        holdings.on_lost.append(self._lost)
        holdings.on_suspended.append(self.in_flight.put_off)
        self._observe(telemetry)

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Work until cancelled. An exception of any part ends all of it: the lease makes that safe."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self.reporter.run(), name="jobmaster-reporter")
                group.create_task(self.in_flight.run(), name="jobmaster-in-flight")
                group.create_task(self.spilling.run(), name="jobmaster-spilling")
                group.create_task(self.applying.run(), name="jobmaster-applying")
                group.create_task(self.execution.run(), name="jobmaster-execution")
                group.create_task(self.waker.run(), name="jobmaster-waker")
                group.create_task(self.onboarding.run(), name="jobmaster-onboarding")
                group.create_task(self.cancelling.run(), name="jobmaster-cancelling")
                for pump in self.pumps.values():
                    group.create_task(pump.run(), name="jobmaster-pump")
        finally:
            self._group = None

    def open(self, holding: Holding) -> None:
        """Serve a bucket that is ours in the master and open in the store."""
        bucket_id = holding.fence.bucket_id
        self._holdings.add(holding)
        self.execution.open(holding)
        self.cancelling.open(holding)
        pump = Pump(
            holding,
            self._store,
            self._holdings,
            self.memory,
            self.execution,
            self.reporter,
            self.verdicts,
            self._handlers,
            self._clock,
            self.onboarding,
            self.cancelling,
            self.forget,
            list_prefix=self._list_prefix,
            capacity=Capacity.of(self._agent),
            store_settings=self._settings.stores[holding.store],
            log=self._log,
            told=self._claims_told,
        )
        pump.claim_seconds = self._telemetry.claim_seconds
        self.pumps[bucket_id] = pump
        self.onboarding.open(holding)
        self.waker.changed()
        if self._group is not None:
            self._group.create_task(pump.run(), name="jobmaster-pump")

    async def complete(self, bucket_ids: Sequence[bytes], grace_seconds: float, reason: str) -> list[bytes]:
        """Bring buckets to their graceful end; returns those left to the rescue."""
        pumps = [self.pumps[bucket_id] for bucket_id in bucket_ids if bucket_id in self.pumps]
        for pump in pumps:
            self.onboarding.close(pump.holding.fence.bucket_id)

        def retired(pump: Pump) -> None:
            bucket_id = pump.holding.fence.bucket_id
            self._close(bucket_id)
            self._holdings.retire(bucket_id)
            self._log.info(Event.BUCKET_CLOSED, {"bucket": bucket_id, "reason": reason})

        return await self.completing.complete(pumps, grace_seconds, reason, retired)

    async def aclose(self) -> None:
        """End slots, threads and worker processes."""
        await self.execution.aclose()
        await self._elsewhere.aclose(timeout_seconds=0.5)

    # ------------------------------------------------------------ losing buckets

    def forget(self, bucket_id: bytes, why: str, said: Word | None = None) -> None:
        """A store or the master says that the bucket is another's: nothing of it may be settled or recorded.

        Of a frozen one it may be the new epoch that speaks (the answer to our own unfreezing was lost): the master is asked.
        """
        holding = self._holdings.get(bucket_id)
        if holding is not None and holding.frozen:
            holding.heard(said)
            self._holdings.refused(holding, why)
        else:
            self._holdings.lose(bucket_id, why, said)

    def _lost(self, holding: Holding, why: str) -> None:
        bucket_id = holding.fence.bucket_id
        dropped, promoted = self.memory.forget(bucket_id)
        waiting = self.pumps[bucket_id].waiting if bucket_id in self.pumps else 0
        alive = {job.entry.id for job in promoted}
        alone = self.salvaging.keep(holding, [job for job in dropped if job.entry.id not in alive])
        # Outcomes that lie there and that memory has let go; at most so many, an answer that was lost counts twice.
        let_go = max(holding.kept - sum(job.spilled for job in dropped), 0)
        holding.at_risk = waiting + alone + let_go
        for job in dropped:
            if job.phase is Phase.RUNNING:
                self.execution.stop_job(job, StopCause.SUPERSEDED)
            job.phase = Phase.GONE
        self._close(bucket_id)
        self._telemetry.buckets_lost += 1
        self._log.warning(Event.BUCKET_FORGOTTEN, {"bucket": bucket_id, "reason": why, "jobs": len(dropped)})
        if promoted:
            self.execution.enqueue(promoted)

    def _close(self, bucket_id: bytes) -> None:
        self.execution.close(bucket_id)
        self.onboarding.close(bucket_id)
        self.cancelling.close(bucket_id)
        pump = self.pumps.pop(bucket_id, None)
        if pump is not None:
            pump.ended = True
            pump.ask()
            self._claimed_before += pump.claimed
            self._conflicts_before += pump.conflicting
        self.waker.changed()

    # ------------------------------------------------------------ an operator's stop

    def freeze(self, holding: Holding) -> None:
        """Claim, start and bind nothing of the bucket any more; what runs is recorded."""
        holding.freeze()
        self.execution.set_slots()

    def thaw(self, holding: Holding, epoch: int) -> None:
        """The bucket goes on under a new epoch. What has a row under the old one ends under it; what had only been queued
        there goes back to the master."""
        past = holding.step(epoch)
        for job in self.memory.step(holding, past):
            self.verdicts.release(job)
        self.resume(holding)

    def resume(self, holding: Holding) -> None:
        """Whatever stopped for a word on the bucket goes on."""
        bucket_id = holding.fence.bucket_id
        self.execution.set_slots()
        self.execution.enqueue([job for job in self.memory.of_bucket(bucket_id) if job.phase is Phase.QUEUED])
        self.onboarding.kick(bucket_id)
        if (pump := self.pumps.get(bucket_id)) is not None:
            pump.ask(lists=True)

    # ------------------------------------------------------------ a configuration that was read again

    def retune(self, settings: ClusterSettings, agent: AgentSettings) -> None:
        """What can change while jobs run: slots, buffers, defaults of jobs."""
        self._settings, self._agent = settings, agent
        self.execution.set_slots(agent)
        self.verdicts.defaults = settings.jobs
        for pump in self.pumps.values():
            pump.capacity = Capacity.of(agent)
            pump.ask()

    # ------------------------------------------------------------ signals between the parts

    def spawn(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run something beside the pumps; its failure ends the process like theirs. Nothing is begun once they have ended."""
        if self._group is not None:
            self._group.create_task(work(), name="jobmaster-replace")

    def cancel(self, job_ids: Sequence[bytes]) -> None:
        """Cancel requests that came with a renewal."""
        self.cancelling.requested(job_ids)

    def _waits_elsewhere(self, job: LiveJob) -> bool:
        return self._elsewhere.waits(job)

    def _stop(self, job: LiveJob, cause: StopCause) -> None:
        self.execution.stop_job(job, cause)

    def _printed(self, line: str, pid: int, job: IsolatedJob | None) -> None:
        if (left_out := self._line_rate.admit()) is None:
            return
        whose = {"job": job.job_id, "handler": job.handler} if job is not None else {}
        before = {"left_out": left_out} if left_out else {}
        self._log.info(Event.HANDLER_OUTPUT, {**whose, "worker": pid, "line": line, **before})

    def _given_up(self, job: LiveJob, cause: StopCause, seconds: float) -> None:
        fields = {"job": job.entry.id, "handler": job.entry.handler, "reason": cause.value, "seconds": seconds}
        self._log.error(Event.HANDLER_GIVEN_UP, fields)
        if self._stuck() >= self._agent.max_running:
            self.threads_exhausted.set()

    def _stuck(self) -> int:
        return self.execution.stuck + self._elsewhere.stuck

    def _room(self, bucket_id: bytes) -> None:
        pump = self.pumps.get(bucket_id)
        if pump is not None:
            pump.room()
        self.onboarding.room(bucket_id)

    def is_idle(self) -> bool:
        """Nothing claimed, running or on its way to the master."""
        return not len(self.memory) and not self.reporter.backlog

    def serves(self) -> list[tuple[str, int]]:
        """(lane, priority) of the buckets that take jobs."""
        held = self._holdings.buckets.values()
        return [(h.lane, h.priority) for h in held if h.state is BucketState.ACTIVE]

    def _claimed(self) -> int:
        return self._claimed_before + sum(pump.claimed for pump in self.pumps.values())

    def _observe(self, telemetry: Telemetry) -> None:
        reporter, execution, verdicts = self.reporter, self.execution, self.verdicts
        telemetry.read_from("jobs_running", lambda: execution.running)
        telemetry.read_from("jobs_queued", lambda: sum(map(execution.backlog, self.pumps)) - execution.running)
        telemetry.read_from("jobs_started", lambda: execution.finished + execution.running)
        telemetry.read_from("handlers_stuck", self._stuck)
        telemetry.read_from("jobs_aside", lambda: sum(map(execution.aside, self.pumps)))
        telemetry.read_from("outcomes_waiting", lambda: reporter.backlog)
        telemetry.read_from("jobs_claimed", self._claimed)
        telemetry.read_from("jobs_onboarded", lambda: self.onboarding.onboarded)
        telemetry.read_from("onboarded_behind_cursor", lambda: self.onboarding.behind)
        telemetry.read_from("jobs_retried", lambda: verdicts.retried)
        telemetry.read_from(
            "jobs_conflicting", lambda: self._conflicts_before + sum(p.conflicting for p in self.pumps.values())
        )
        telemetry.read_from("jobs_duplicate", lambda: self.memory.duplicates)
        telemetry.read_from("jobs_refused", lambda: reporter.refused)
        telemetry.read_from("jobs_abandoned", lambda: verdicts.abandoned)
        telemetry.read_from("jobs_quarantined", lambda: reporter.quarantined)
        telemetry.read_from("outcomes_spilled", lambda: self.spilling.spilled)
        telemetry.read_from("batches_fenced", lambda: reporter.fenced_batches)
        telemetry.read_from("buckets_owned", lambda: len(self._holdings.buckets))
