"""Composition root of one agent: builds its parts and connects them.

Parts do not import each other. Every call from one part to another is a method or a callback that is set here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from jobmaster import __version__
from jobmaster.client.bulk_operations.retried_jobs import RetriedJobs
from jobmaster.clock import Clock
from jobmaster.handlers import Handlers
from jobmaster.handlers.lifespan import OpenLifespans
from jobmaster.master.master import Master
from jobmaster.master.transactions import Transactions
from jobmaster.model.agent import Agent, AgentState
from jobmaster.model.errors import JobMasterError, Unavailable
from jobmaster.ports import DueNotices, Renewal
from jobmaster.rules import capabilities
from jobmaster.settings.agent_differences import common, declared
from jobmaster.settings.job_limits import declared_limits, unknown_limits
from jobmaster.settings.model import AgentMode, AgentSettings, ClusterSettings, OnSuspicion
from jobmaster.settings.schedules import declared_schedules
from jobmaster.settings.submit_rules import submit_rules
from jobmaster.telemetry import Telemetry
from jobmaster_agents.breakers.reporter import BreakerReporter
from jobmaster_agents.bucket_worker import BucketWorker
from jobmaster_agents.buckets.anti_entropy import AntiEntropy
from jobmaster_agents.buckets.helper_buckets import HelperBuckets
from jobmaster_agents.buckets.host_standing import HostStanding
from jobmaster_agents.buckets.lost_buckets import LostBuckets
from jobmaster_agents.buckets.ownership_check import OwnershipCheck
from jobmaster_agents.buckets.pause_watch import PauseWatch
from jobmaster_agents.buckets.provisioner import BucketProvisioner
from jobmaster_agents.buckets.refusal_watch import RefusalWatch
from jobmaster_agents.event_log import Event, EventLog, set_level
from jobmaster_agents.execute.permit_borrower import PermitBorrower
from jobmaster_agents.execute.permit_hints import PermitHints
from jobmaster_agents.fetch.accept_time import AcceptTime
from jobmaster_agents.launch.launch_order import ChildConfig
from jobmaster_agents.launch.shared_deadline import AgentPhase, arm_kernel_timer
from jobmaster_agents.leader.backlog import BacklogMonitor
from jobmaster_agents.leader.batch_watch import BatchWatch
from jobmaster_agents.leader.breaker_trials import BreakerTrials
from jobmaster_agents.leader.bulk_worker import BulkWorker
from jobmaster_agents.leader.due_listener import DueListener
from jobmaster_agents.leader.due_notifier import DueNotifier, Group
from jobmaster_agents.leader.job_retention import JobRetention
from jobmaster_agents.leader.leader import Leader, may_lead
from jobmaster_agents.leader.maintenance import ClusterMaintenance
from jobmaster_agents.leader.schedule_firing import ScheduleFiring
from jobmaster_agents.leader.suspicion_watch import SuspicionWatch
from jobmaster_agents.leader.unserved_jobs import TASK as UNSERVED
from jobmaster_agents.leader.unserved_jobs import UnservedJobsMonitor
from jobmaster_agents.lease.clock_check import ClockCheck
from jobmaster_agents.lease.heartbeat import Heartbeat, StoreBeat, attestation
from jobmaster_agents.lease.store_lease import StoreLease
from jobmaster_agents.limit_publisher import LimitPublisher
from jobmaster_agents.outcomes.batch_tally import BatchTally
from jobmaster_agents.periodic_task import PeriodicTask
from jobmaster_agents.rescue.failure_detector import FailureDetector
from jobmaster_agents.rescue.rescuer import Rescuer, StoreRescuer
from jobmaster_agents.schedule_publisher import SchedulePublisher
from jobmaster_agents.state.ownership import OwnedBucket, Ownership
from jobmaster_agents.state.progress import Progress, silence_seconds
from jobmaster_agents.state.store_reachability import StoreReachability
from jobmaster_agents.state.suspicions import Suspicions
from jobmaster_agents.store_connector import StoreConnector

LAST_REPORTS_SECONDS = 1.0
"""For the last reports and lines of handlers at a graceful exit."""
if TYPE_CHECKING:
    from jobmaster.tracing.tracing import Tracing

OWN_CERTIFICATE_SECONDS = 0.3
"""Short, because the control thread of an orphan kills the process soon after the supervisor's death."""
WORKING_MODES = (AgentMode.FULL, AgentMode.EXECUTION)
"""Modes of agents that run jobs."""


class AgentRuntime:
    """All parts of one agent, connected.

    ``stop_requested`` is set when an operator drains the agent. Signals are handled in ``run_agent``.
    """

    def __init__(
        self,
        config: ChildConfig,
        agent: AgentSettings,
        master: Master,
        store_connector: StoreConnector,
        handlers: Handlers,
        clock: Clock,
        telemetry: Telemetry,
        log: EventLog,
        transactions: Transactions | None = None,
        due_notices: DueNotices | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        settings = config.settings
        self._config = config
        self._agent = agent
        self._master = master
        self._store_connector = store_connector
        stores = store_connector.usable
        self._store = stores[agent.store]
        self._handlers = served = handlers.served_by(agent.provides)
        self._clock = clock
        self._log = log
        self.telemetry = telemetry
        self.handler_names = served.names()
        without = sorted((each for each in handlers if each.name not in served), key=attrgetter("name"))
        self.left_out = [f"{each.name} needs {', '.join(each.options.needs)}" for each in without]
        self._schedules = declared_schedules(settings, handlers) if agent.mode in WORKING_MODES else []
        self.schedule_publisher = SchedulePublisher(config.agent_id, master.schedules, self._schedules, log)
        limits = declared_limits(settings.job_limits, handlers) if agent.mode in WORKING_MODES else []
        if limits and (unknown := unknown_limits(settings.job_limits, handlers)):
            log.warning(Event.LIMITS_UNKNOWN, {"limits": unknown})
        self.limit_publisher = LimitPublisher(config.agent_id, master.limits, limits, log)
        self.stop_requested = asyncio.Event()
        self._leaving = False
        self._pauses_seen: int | None = None
        self.grace_seconds = settings.leases.grace_seconds
        """Longest time of a graceful exit; a reload may change it."""
        self.ownership = Ownership(config.agent_id)
        self.progress = Progress(clock.boottime, silence_seconds(settings))
        self.beat = StoreBeat(config.agent_id, self._store, settings.leases, clock, telemetry, log)
        attest = attestation(self.beat, self.progress)
        self.heartbeat = Heartbeat(
            self.ownership,
            master.members,
            settings.leases,
            clock,
            attest,
            self._on_renewal,
            self._publish_deadline,
            telemetry,
            log,
        )
        self.heartbeat.clock_check = ClockCheck(settings.limits.clock_skew_seconds, clock, telemetry, log)
        self.bucket_worker = BucketWorker(
            settings,
            agent,
            master,
            self._store,
            self.ownership,
            served,
            clock,
            telemetry,
            log,
            list_prefix=config.agent_id.hex()[-12:],
            transactions=transactions,
            progress=self.progress,
            tracing=tracing,
        )
        self.store_lease = StoreLease(
            self.ownership,
            self._store,
            settings.leases,
            clock,
            self.heartbeat.unanswered,
            self._store_answered_at,
            self._publish_deadline,
            self.bucket_worker.forget,
            telemetry,
            log,
        )
        self.reachability = StoreReachability(
            store_connector.every, stores, clock, self._on_store_answer, telemetry, log
        )
        store_connector.on_joined = self.reachability.joined
        self.due_notifier = DueNotifier(
            master.queries, stores, self.reachability, clock, telemetry, map_seconds=settings.leases.bucket_map_seconds
        )
        self.rescuer = Rescuer(
            {
                name: StoreRescuer(
                    self.ownership,
                    master,
                    name,
                    store,
                    self.reachability,
                    self._notify_owners,
                    clock,
                    telemetry,
                    log,
                    page_jobs=settings.thresholds.transfer_batch,
                    max_rescues=settings.jobs.max_rescues,
                    store_dead_seconds=settings.leases.store_dead_seconds,
                )
                for name, store in store_connector.every.items()
            }
        )
        self.failure_detector = FailureDetector(
            self.ownership, master.members, settings.leases, clock, self.on_death_certificate, telemetry, log
        )
        owns = agent if agent.mode in WORKING_MODES else None
        self.bucket_provisioner = BucketProvisioner(
            owns,
            master,
            self._store,
            agent.store,
            self.ownership,
            self.bucket_worker,
            self._is_stopping,
            log,
        )
        self.bucket_provisioner.host_standing = HostStanding(config.agent_id, master.members, settings.safety, log)
        self.pause_watch = PauseWatch(config.agent_id, master.pauses, self.bucket_worker, clock, log)
        self.breaker_reporter = self._make_breaker_reporter()
        self.fallback = HelperBuckets(
            self.ownership,
            master.unserved,
            self.bucket_worker,
            self._open_fallback,
            settings.thresholds.fallback_idle_seconds,
            clock,
            log,
        )
        self.lost_buckets = LostBuckets(
            self.ownership,
            master.buckets,
            self.bucket_worker.memory_recovery,
            self._on_bucket_declared_lost,
            telemetry,
            log,
        )
        self.ownership_check = OwnershipCheck(
            self.ownership, master.buckets, self._store, self.bucket_worker, telemetry, log
        )
        self.anti_entropy = AntiEntropy(
            self.ownership,
            master.onboarding,
            self._store,
            self.bucket_worker.job_table,
            self._adopt_lists,
            self.bucket_worker.outcome_writer.bucket_enqueuer.being_put,
            clock,
            telemetry,
            log,
            every_seconds=settings.leases.anti_entropy_seconds,
        )
        self.accept_time = AcceptTime(
            self.bucket_worker,
            self.ownership,
            master.queries,
            lambda: self.bucket_worker.due_fetcher.alone,
            clock,
            telemetry,
            log,
        )
        maintenance = ClusterMaintenance(
            config.agent_id, master, stores, self.reachability, settings, self.rescuer.kick, telemetry, log
        )
        unserved = UnservedJobsMonitor(master.unserved, settings.thresholds, clock, telemetry, log)
        self.suspicions = Suspicions(master, settings.safety.on_suspicion, log)
        self.refusal_watch = RefusalWatch(
            self.ownership,
            self.suspicions,
            lambda: self.bucket_worker.outcome_writer.refused,
            settings.safety,
            clock,
        )
        suspicion_watch = SuspicionWatch(master, settings.safety, self.suspicions)
        self.schedule_firing = ScheduleFiring(
            master.schedules, self.due_notifier, self._leader_epoch, clock, telemetry, log
        )
        if tracing is not None:
            self.schedule_firing.span_of_fire = tracing.fired
        self.batch_tally = BatchTally(config.agent_id, master.batches, self.due_notifier.notify, clock, telemetry, log)
        self.bucket_worker.outcome_writer.on_ended = self.batch_tally.ended
        self.bucket_worker.memory_recovery.on_ended = self.batch_tally.ended
        for rescuer in self.rescuer.by_store.values():
            rescuer.on_ended = self.batch_tally.ended
        batch_watch = BatchWatch(
            config.agent_id,
            master.batches,
            self.batch_tally.noted,
            self.due_notifier.notify,
            clock,
            telemetry,
            log,
        )
        self.breaker_trials = BreakerTrials(master.breakers, self._leads, clock, telemetry, log)
        self.leader = Leader(
            self.ownership,
            master.leadership,
            self.due_notifier,
            [
                *maintenance.tasks(),
                *unserved.tasks(),
                *self.schedule_firing.tasks(),
                *batch_watch.tasks(),
                *self.breaker_trials.tasks(),
                *suspicion_watch.tasks(),
            ],
            settings.leases,
            clock,
            self.failure_detector.kick,
            telemetry,
            log,
            weight=agent.weight,
            horizon_seconds=settings.thresholds.transient_threshold_seconds,
        )
        self.job_retention = JobRetention(config.agent_id, settings, self._leads, log)
        self.backlog = BacklogMonitor(master.queries, stores, self.reachability, self._leads, clock, telemetry)
        self.permit_hints = PermitHints(
            config.agent_id,
            master.limits,
            stores,
            self.reachability,
            lambda: self.bucket_worker.due_fetcher.alone,
            telemetry,
        )
        self.bucket_worker.limits.on_freed = self.permit_hints.freed
        self.permit_borrower = PermitBorrower(
            config.agent_id, master.limits, self.bucket_worker.limits, self.bucket_worker.executor.aside
        )
        self.leader.on_next_fire = self.schedule_firing.on_next_fire
        retried = RetriedJobs(settings, master.queries, clock)
        self.bulk_worker = BulkWorker(master.bulk, retried, self._leads, clock, telemetry, log)
        self.leader.on_bulk = self.bulk_worker.on_bulk
        self.due_listener: DueListener | None = None
        if due_notices is not None:
            self.due_listener = DueListener(due_notices, self.due_notifier, self._leads, self.leader.kicked.set)
        self.leader.on_change = self._leads_or_not

    def _leads_or_not(self) -> None:
        self.breaker_trials.changed()
        self.job_retention.kicked.set()
        self.backlog.changed()
        if self.due_listener is not None:
            self.due_listener.kicked.set()

    def _leads(self) -> bool:
        return self.leader.leads()

    def _make_breaker_reporter(self) -> BreakerReporter | None:
        """``None``: no handler has a breaker."""
        worker = self.bucket_worker
        if worker.breaker_results is None or self._agent.mode not in WORKING_MODES:
            return None
        by_handler = {
            handler.name: handler.options.breaker.rule.name
            for handler in self._handlers
            if handler.options.breaker is not None
        }
        return BreakerReporter(
            self._config.agent_id,
            self._master.breakers,
            worker.breaker_results,
            worker.breaker_rules,
            by_handler,
            self._clock,
            self.telemetry,
            self._log,
        )

    # ------------------------------------------------------------ start and end

    def periodic_tasks(self) -> list[PeriodicTask]:
        """The periodic tasks of the agent's mode."""
        periodic_tasks: list[PeriodicTask] = [
            self.heartbeat,
            self.beat,
            self.store_lease,
            self.failure_detector,
            self._store_connector,
        ]
        periodic_tasks += [self.reachability, self.due_notifier, self.batch_tally, *self.rescuer.by_store.values()]
        if self._agent.mode in WORKING_MODES:
            periodic_tasks += [
                self.bucket_worker.in_flight_writer,
                self.bucket_worker.run_progress,
                self.bucket_worker.job_log,
                self.accept_time,
                self.permit_hints,
                self.permit_borrower,
                self.anti_entropy,
                self.lost_buckets,
                self.ownership_check,
                self.pause_watch,
            ]
            if self._config.settings.safety.on_suspicion is not OnSuspicion.IGNORE:
                periodic_tasks.append(self.refusal_watch)
        if self.breaker_reporter is not None:
            periodic_tasks.append(self.breaker_reporter)
        if self._schedules:
            periodic_tasks.append(self.schedule_publisher)
        if self.limit_publisher.limits:
            periodic_tasks.append(self.limit_publisher)
        if may_lead(self._agent.mode, self._agent.weight):
            periodic_tasks += [self.leader, self.leader.maintenance, self.schedule_firing, self.breaker_trials]
            periodic_tasks += [self.bulk_worker, self.backlog]
            if self.due_listener is not None:
                periodic_tasks.append(self.due_listener)
            if self._config.settings.retention.jobs.after_seconds is not None:
                periodic_tasks.append(self.job_retention)
        return periodic_tasks

    async def register(self) -> None:
        """Write the agent's row with a fresh lease. The trusted time counts from before the call."""
        settings = self._config.settings
        lanes = list(self._agent.bucket_counts()) if self._agent.mode in WORKING_MODES else []
        specs = [handler.spec for handler in self._handlers] if lanes else []
        sent = self._clock.boottime()
        row = Agent(
            id=self._config.agent_id,
            name=self._config.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            mode=self._agent.mode.value,
            store=self._agent.store,
            weight=self._agent.weight,
            state=AgentState.ACTIVE,
            lease_us=0,
            lease_seconds=settings.leases.lease_seconds,
            started_us=0,
            share=self._agent.share,
            helps=tuple(self._agent.helps),
            settings={**common(settings), **declared(specs)},
            submit_rules=submit_rules(settings),
            clock_us=self._clock.wall_us(),
            capabilities=tuple(sorted(capabilities.CAPABILITIES)),
            slots=self._slots(),
        )
        self._publish_phase(AgentPhase.REGISTERED)
        mode = await self._master.members.register(row, lanes, specs)
        self.bucket_provisioner.begin_in(mode)
        self.heartbeat.registered(sent)
        await self.schedule_publisher.publish()
        await self.limit_publisher.publish()
        if self.breaker_reporter is not None:
            await self.breaker_reporter.declare()

    def use_lifespans(self, lifespans: OpenLifespans) -> None:
        """Handlers get the resources of these lifespans, which are open."""
        self.bucket_worker.use_lifespans(lifespans)

    async def open_all(self) -> None:
        """Open the buckets of the configuration, once the pauses are known."""
        if self._agent.mode in WORKING_MODES:
            await self.pause_watch.read_once.wait()
            self.bucket_worker.warm_processes()
        await self.bucket_provisioner.open_all()

    def set_serving(self) -> None:
        """Publish that the buckets are open."""
        self._publish_phase(AgentPhase.SERVING)

    def reload(self, data: bytes) -> None:
        """Apply the settings of a configuration reload.

        Args:
            data: the settings in force from now on, as JSON. Changes that need a restart are not in it.
        """
        settings = msgspec.json.decode(data, type=ClusterSettings)
        agent = self._agent = settings.agents[self._config.agent]
        set_level(settings.observability.log_level, root=settings.observability.root_logging)
        self.grace_seconds = settings.leases.grace_seconds
        self.bucket_worker.retune(settings, agent)
        if agent.mode in WORKING_MODES:
            self.bucket_provisioner.follow(agent, self.grace_seconds)
            self.bucket_worker.spawn(self._publish_slots)

    def _slots(self) -> int:
        return self._agent.slots_at_once() if self._agent.mode in WORKING_MODES else 0

    async def _publish_slots(self) -> None:
        with contextlib.suppress(JobMasterError, TimeoutError):  # a figure: that of the next reload is right again
            await self._master.members.publish_slots(self._config.agent_id, self._slots())

    async def leave(self, grace_seconds: float, reason: str) -> bool:
        """Graceful exit; True when no bucket and no job is left behind."""
        self._leaving = True
        self._publish_phase(AgentPhase.STOPPING)
        with contextlib.suppress(Unavailable):  # for display only; the steps below handle a silent master
            await self._master.members.announce_stopping(self._config.agent_id)
        if may_lead(self._agent.mode, self._agent.weight):
            with contextlib.suppress(Unavailable):  # otherwise the leader's lease ends a little later
                await self.leader.resign()
        left = await self.bucket_worker.complete(list(self.ownership.buckets), grace_seconds, reason)
        # A lost answer must not turn a clean exit into a death: repeat each call until it is answered or the lease ends.
        with contextlib.suppress(JobMasterError, TimeoutError):  # for display only
            async with asyncio.timeout(LAST_REPORTS_SECONDS):
                await self.bucket_worker.run_progress.tick()
                await self.bucket_worker.job_log.tick()
        until_answered = self.bucket_worker.outcome_writer.until_answered
        await until_answered("give_back", self.rescuer.give_back, refusals=False)
        # Buckets that the store has lost and that are not declared LOST yet.
        await until_answered("declare_lost", self.lost_buckets.tick, refusals=False)
        if left:
            return False
        self.heartbeat.retire()
        end = partial(self._master.members.end_agent, self._config.agent_id, dead=False, reason=reason)
        if not await until_answered("end_agent", end, refusals=False):
            return False
        self._publish_phase(AgentPhase.ENDED)
        return True

    async def write_own_certificate(self, reason: str) -> None:
        """Certify this agent dead, so that the rescue need not wait for its lease. The time is bounded; a failure is
        harmless, because the lease ends a little later.
        """
        try:
            async with asyncio.timeout(OWN_CERTIFICATE_SECONDS):
                await self._master.members.end_agent(self._config.agent_id, dead=True, reason=reason)
        except (JobMasterError, TimeoutError):
            return

    # ------------------------------------------------------------ calls between parts

    def on_death_certificate(self) -> None:
        """A death certificate was written: there are lost buckets, and the leader's lease may be vacant."""
        self.rescuer.kick()
        self.leader.on_vacancy()

    def _leader_epoch(self) -> int | None:
        return self.leader.epoch

    def _on_store_answer(self, store: str) -> None:
        """A store answers again: its lost buckets can be evacuated."""
        self.rescuer.kick((store,))

    def _store_answered_at(self) -> float | None:
        return self.beat.answered_at

    async def _notify_owners(self, groups: set[Group]) -> None:
        """Jobs of these lanes and priorities are back in the master. Owners have just died: read the bucket map again."""
        await self.due_notifier.notify(groups, afresh=True)

    def _is_stopping(self) -> bool:
        return self._leaving or self.stop_requested.is_set()

    def _open_fallback(self, groups: frozenset[Group]) -> None:
        self.bucket_provisioner.request_fallback(groups, self.grace_seconds)

    def _on_renewal(self, renewal: Renewal) -> None:
        if renewal.lost_stores:
            self.rescuer.kick(renewal.lost_stores)
        if renewal.cancel_requested:
            self.bucket_worker.cancel(renewal.cancel_requested)
        self.bucket_worker.due_fetcher.alone = renewal.agents <= 1
        self.leader.on_leader_seen(renewal.leader)
        if renewal.pauses != self._pauses_seen:  # what was resumed is due again at once
            self._pauses_seen = renewal.pauses
            self.leader.maintenance.hurry(UNSERVED)
            self.breaker_trials.changed()
        if self._agent.mode in WORKING_MODES:
            self.ownership_check.renewed(renewal)
            self.bucket_provisioner.follow_mode(renewal.mode, self.grace_seconds)
            self.fallback.renewed(renewal.helps)
            self.pause_watch.renewed(renewal.pauses, renewal.pauses_obeyed)
        if renewal.drain_requested and not self.stop_requested.is_set():
            self._log.info(Event.DRAIN_REQUESTED, {})
            self.stop_requested.set()

    def _publish_deadline(self, trusted_until: float) -> None:
        if self._config.deadline is not None:
            self._config.deadline.trusted_until = trusted_until
            arm_kernel_timer(trusted_until - self._clock.boottime())

    def _publish_phase(self, phase: AgentPhase) -> None:
        if self._config.deadline is not None:
            self._config.deadline.phase = phase

    async def _adopt_lists(self, bucket_id: bytes) -> None:
        claimer = self.bucket_worker.claimers.get(bucket_id)
        if claimer is not None:
            await claimer.adopt_unknown_lists()

    def _on_bucket_declared_lost(self, owned: OwnedBucket) -> None:
        self.bucket_provisioner.replace_soon()
        self.rescuer.kick()
