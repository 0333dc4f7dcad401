"""The working half of an agent: all parts between a bucket's lists and the master's rows, wired together once.

Owns the life of a bucket inside this process: it is opened, worked on, forgotten after a loss, completed when the agent
leaves. The other half (lease, rescue, leader) never handles a job.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING

import msgspec

from jobmaster.clock import Clock
from jobmaster.encryption import cipher_of
from jobmaster.handlers import Handlers
from jobmaster.handlers.lifespan import OpenLifespans, needs_lifespans
from jobmaster.master.transactions import Transactions
from jobmaster.metric_values import Labels
from jobmaster.model.flow.batch import RANGE_BYTES
from jobmaster.model.job import Entry, RunMode
from jobmaster.ports import ReplyStatus, WorkerMaster, WorkerStore
from jobmaster.settings.model import AgentSettings, ClusterSettings, WorkerStart
from jobmaster.telemetry import Telemetry
from jobmaster_agents.breakers.results import BreakerResults, handlers_by_breaker, rules_of
from jobmaster_agents.buckets.graceful_shutdown import GracefulShutdown
from jobmaster_agents.buckets.memory_recovery import MemoryRecovery
from jobmaster_agents.call_retry import RepeatedLog, UntilAnswered
from jobmaster_agents.event_log import LOGGER_NAME, Event, EventLog, relay
from jobmaster_agents.execute.cancellation import Cancellation
from jobmaster_agents.execute.dispatch import Dispatcher
from jobmaster_agents.execute.executor import Executor
from jobmaster_agents.execute.log_records import keep_logs, keep_records
from jobmaster_agents.execute.process_pool.pool import ProcessPool
from jobmaster_agents.execute.process_pool.protocol import Logged, ProcessJob, Progressed
from jobmaster_agents.execute.process_pool.worker_output import LineRate, split_logged
from jobmaster_agents.execute.process_pool.worker_process import WorkerLimits
from jobmaster_agents.execute.thread_pool import ThreadPool
from jobmaster_agents.execute.transactional.runner import TransactionalRunner
from jobmaster_agents.execute.transactional.settlement import TransactionSettlement
from jobmaster_agents.fetch.claimer import Claimer, PrefetchLimit
from jobmaster_agents.fetch.due_fetcher import DueFetcher
from jobmaster_agents.fetch.wake_listener import WakeListener
from jobmaster_agents.outcomes.handler_log import HandlerLog
from jobmaster_agents.outcomes.in_flight import InFlightRows, InFlightWriter
from jobmaster_agents.outcomes.job_log import JobLogWriter
from jobmaster_agents.outcomes.kept import KeptOutcomes
from jobmaster_agents.outcomes.kept_replay import KeptReplay
from jobmaster_agents.outcomes.outcome_builder import OutcomeBuilder, OutcomeSink, StopCause
from jobmaster_agents.outcomes.run_progress import RunProgressWriter
from jobmaster_agents.outcomes.writer import OutcomeWriter
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase, JobTable
from jobmaster_agents.state.limited_starts import LimitedStarts
from jobmaster_agents.state.ownership import OwnedBucket, Ownership
from jobmaster_agents.state.pauses import Pauses
from jobmaster_agents.state.progress import Progress
from jobmaster_agents.state.time_limits import trace_fields_of

if TYPE_CHECKING:
    from jobmaster.tracing.tracing import Tracing
    from jobmaster_agents.execute.run_spans import RunSpans


class BucketWorker:
    """Claimers, executor and outcome writer of one process.

    Args:
        list_prefix: names of claimed lists start with it; unique per incarnation.
        transactions: connections for handlers' transactions; ``None``: no handler uses any.
        tracing: spans of runs; ``None``: there are none.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        agent: AgentSettings,
        master: WorkerMaster,
        store: WorkerStore,
        ownership: Ownership,
        handlers: Handlers,
        clock: Clock,
        telemetry: Telemetry,
        log: EventLog,
        list_prefix: str,
        transactions: Transactions | None = None,
        progress: Progress | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        if tracing is not None and settings.observability.traces.calls:
            master, store = _with_spans(master, store, tracing)
        self._settings = settings
        self._agent = agent
        self._store = store
        self._ownership = ownership
        self._handlers = {handler.name: handler for handler in handlers}
        self.job_table = JobTable()
        sealing = settings.encryption
        cipher = cipher_of(sealing.keys, sealing.active, sealing.require)
        self._clock = clock
        self._log = log
        self._telemetry = telemetry
        self._list_prefix = list_prefix
        self._progress = progress = progress or Progress(clock.boottime)
        self._group: asyncio.TaskGroup | None = None
        self._workers_leave = False
        """Worker processes have something to do at their end: lifespans to leave, spans to export."""
        self.claimers: dict[bytes, Claimer] = {}
        self._claim_failures = RepeatedLog("claim", log)
        self._claimed_before = 0
        """Jobs that the claimers of closed buckets had claimed: a counter must not fall."""
        self._conflicts_before = 0
        self.limits = LimitedStarts(clock.boottime)
        self.breaker_rules = rules_of(handlers)
        self.pauses = Pauses(handlers_by_breaker(handlers))
        self.memory_recovery = MemoryRecovery(master.outcomes, lambda: ownership.may_commit(clock.boottime()))
        self.outcome_writer = OutcomeWriter(
            master.outcomes,
            store,
            ownership,
            self.job_table,
            clock,
            self.forget,
            log,
            telemetry,
            progress,
            on_promoted=self._enqueue,
            limits=self.limits,
        )
        self.in_flight = InFlightRows(
            master.outcomes,
            self.job_table,
            self.outcome_writer,
            self._stop,
            self.waits_elsewhere,
            self._started_at,
            clock,
            progress,
            self.limits,
            master.limits,
        )
        self.breaker_results = BreakerResults(self.outcome_writer, self.pauses) if self.breaker_rules else None
        sink: OutcomeSink = self.breaker_results or self.outcome_writer
        spans: RunSpans | None = None
        if tracing is not None:
            sink = spans = _spans(tracing, ownership.agent_id, sink, self.job_table, clock)
            spans.surround(self._handlers)
            self._workers_leave = True
        for handler in handlers if cipher is not None else ():
            handler.use_cipher(cipher)
        handler_log = HandlerLog(telemetry, log, clock.boottime)
        self.outcome_builder = OutcomeBuilder(
            sink,
            settings.jobs,
            settings.limits,
            settings.thresholds.transient_threshold_seconds,
            clock,
            random.Random(random.getrandbits(64)),
            on_policy_problem=handler_log.policy_problem,
        )
        self.run_progress = RunProgressWriter(master.outcomes, telemetry)
        self.outcome_builder.progress_sink = self.run_progress
        self.job_log = JobLogWriter(master.job_logs, telemetry)
        self.outcome_builder.log_sink = self.job_log
        self.outcome_writer.on_batch = self.job_log.hurry
        if keep_logs(handlers):
            keep_records()
        self._line_rate = LineRate(clock.boottime)
        pool = ProcessPool(
            settings.handlers,
            agent.isolated_processes,
            result_bytes=settings.limits.result_bytes,
            error_bytes=settings.limits.error_bytes,
            logger=logging.getLogger(LOGGER_NAME),
            clock=clock,
            limits=WorkerLimits(
                jobs_per_worker=agent.isolated_jobs,
                growth_bytes=agent.isolated_growth_bytes,
                lifespan_seconds=agent.lifespan_timeout_seconds if needs_lifespans(handlers) else 0.0,
            ),
            log_level=_log_level(settings),
            provides=agent.provides,
            on_output=self._printed,
            on_report=self._reported,
            access=msgspec.msgpack.encode(transactions.access) if transactions is not None else b"",
            traces=settings.observability.traces if tracing is not None else None,
            forks=agent.isolated_start is WorkerStart.FORK,
        )
        settlement = TransactionSettlement(master.outcomes, self.outcome_writer, self.outcome_builder, clock, telemetry)
        settlement.on_success = [each.succeeded for each in (self.breaker_results, spans) if each is not None]
        transactional = TransactionalRunner(transactions, settlement, self.outcome_builder, ownership, clock, telemetry)
        if tracing is not None:
            transactional.trace_context = tracing.context
        threads = ThreadPool(agent.threads, clock.boottime)
        self.threads_exhausted = threads.exhausted
        """Set when every thread, or every slot of the loop, is stuck in a handler that was given up: the process is to be
        replaced."""
        telemetry.read_from("threads_stuck", lambda: threads.quarantined)
        self._pool = pool
        self._dispatcher = Dispatcher(
            threads,
            pool,
            self.outcome_builder,
            ownership,
            clock,
            self.in_flight.authorise,
            thread_jobs=agent.threads,
            process_jobs=agent.isolated_processes,
            transactional=transactional,
            transactional_jobs=settings.master.transactions,
            limits=self.limits,
            on_overdue=handler_log.overdue,
            on_detached=self._given_up,
            on_failure=self._fail,
            spans=spans,
        )
        self.executor = Executor(
            agent,
            settings.thresholds.age_boost_seconds,
            clock,
            ownership,
            self.outcome_builder,
            self._dispatcher,
            self.in_flight.authorise,
            self._room,
            on_overdue=handler_log.overdue,
            on_detached=self._given_up,
            limits=self.limits,
            pauses=self.pauses,
        )
        self.executor.reweigh_tenants(settings.tenants)
        self.due_fetcher = DueFetcher(
            master.onboarding,
            self.outcome_writer.bucket_enqueuer,
            self.executor,
            ownership,
            settings.thresholds,
            clock,
            self.forget,
            list(self._handlers),
            progress,
        )
        self.outcome_writer.on_continued = self.due_fetcher.kick
        self.outcome_writer.bucket_enqueuer.on_repetition_end = self.due_fetcher.kick
        self.outcome_writer.step_scope = self.due_fetcher.step_scope
        self.outcome_writer.take_next = self._take_next
        self.cancellation = Cancellation(
            master.outcomes, store, self.job_table, self.outcome_writer, self._stop, self._room, telemetry, progress
        )
        self.wake_listener = WakeListener(store, self.claimers, progress, log)
        self.kept_outcomes = KeptOutcomes(
            store, ownership, self.job_table, self.outcome_writer, clock, self.forget, log, progress
        )
        self.kept_replay = KeptReplay(
            master.outcomes, store, ownership, self.outcome_writer, self.forget, telemetry, log, progress
        )
        self.graceful_shutdown = GracefulShutdown(
            master,
            store,
            self.job_table,
            self.executor,
            self.outcome_writer,
            self.kept_replay,
            self.outcome_builder,
            clock,
        )
        self.in_flight_writer = InFlightWriter(
            self.job_table,
            self.in_flight,
            self.executor.running_before,
            self._started_at,
            clock,
            settings.thresholds.persist_within_seconds,
        )
        ownership.on_lost.append(self._lost)
        ownership.on_suspended.append(self.in_flight.put_off)
        self._observe(telemetry)

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Work until cancelled. An exception in one part ends all parts: the lease makes that safe."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self.outcome_writer.run(), name="jobmaster-outcome-writer")
                group.create_task(self.in_flight.run(), name="jobmaster-in-flight")
                group.create_task(self.kept_outcomes.run(), name="jobmaster-kept-outcomes")
                group.create_task(self.kept_replay.run(), name="jobmaster-kept-replay")
                group.create_task(self.executor.run(), name="jobmaster-executor")
                group.create_task(self.wake_listener.run(), name="jobmaster-wake-listener")
                group.create_task(self.due_fetcher.run(), name="jobmaster-due-fetcher")
                group.create_task(self.cancellation.run(), name="jobmaster-cancellation")
                for claimer in self.claimers.values():
                    group.create_task(claimer.run(), name="jobmaster-claimer")
        finally:
            self._group = None

    def use_lifespans(self, lifespans: OpenLifespans) -> None:
        """Handlers get the resources of these lifespans, which are open."""
        self.outcome_builder.resources = lifespans.resources
        self._workers_leave = self._workers_leave or lifespans.needed

    def warm_processes(self) -> None:
        """Start worker processes before the first job that needs one; to import the handlers takes them a while."""
        if any(handler.options.mode is RunMode.PROCESS for handler in self._handlers.values()):
            self._pool.warm(self._agent.isolated_warm)

    def open(self, owned: OwnedBucket) -> None:
        """Serve a bucket that this agent owns in the master and that is open in the store."""
        bucket_id = owned.fence.bucket_id
        owned.paused = self.pauses.cover_bucket(owned)
        self._ownership.add(owned)
        self.executor.open(owned)
        self.cancellation.open(owned)
        claimer = Claimer(
            owned,
            self._store,
            self._ownership,
            self.job_table,
            self.executor,
            self.outcome_writer,
            self.outcome_builder,
            self._handlers,
            self._clock,
            self.due_fetcher,
            self.cancellation,
            self.forget,
            list_prefix=self._list_prefix,
            prefetch_limit=PrefetchLimit.of(self._agent, owned),
            store_settings=self._settings.stores[owned.store],
            log=self._log,
            repeated_log=self._claim_failures,
            progress=self._progress,
        )
        claimer.claim_seconds = self._telemetry.claim_seconds
        self.claimers[bucket_id] = claimer
        self.due_fetcher.open(owned)
        self.wake_listener.changed()
        if self._group is not None:
            self._group.create_task(claimer.run(), name="jobmaster-claimer")

    @property
    def until_answered(self) -> UntilAnswered:
        """Calls to the master, repeated until it answers."""
        return self.outcome_writer.until_answered

    def _take_next(self, owned: OwnedBucket, entries: Sequence[Entry], clock_us: int) -> bool:
        claimer = self.claimers.get(owned.fence.bucket_id)
        return claimer is not None and claimer.owned is owned and claimer.take(entries, clock_us)

    def backlog(self, bucket_id: bytes) -> int:
        """Jobs of a bucket that wait in memory or run."""
        return self.executor.backlog(bucket_id)

    def activity(self, lane: str, priority: int) -> tuple[int, bool] | None:
        """Jobs claimed so far from the buckets of a lane and priority, and whether any job is there; ``None``: no such
        bucket."""
        claimers = [c for c in self.claimers.values() if (c.owned.lane, c.owned.priority) == (lane, priority)]
        if not claimers:
            return None
        busy = any(self.backlog(claimer.owned.fence.bucket_id) or claimer.waiting for claimer in claimers)
        return sum(claimer.claimed for claimer in claimers), busy

    async def complete(self, bucket_ids: Sequence[bytes], grace_seconds: float, reason: str) -> list[bytes]:
        """Bring buckets to their graceful end; returns those left to the rescue."""
        claimers = [self.claimers[bucket_id] for bucket_id in bucket_ids if bucket_id in self.claimers]
        for claimer in claimers:
            self.due_fetcher.close(claimer.owned.fence.bucket_id)

        def retired(claimer: Claimer) -> None:
            bucket_id = claimer.owned.fence.bucket_id
            self._close(bucket_id)
            self._ownership.retire(bucket_id)
            self._log.info(Event.BUCKET_CLOSED, {"bucket": bucket_id, "reason": reason})

        return await self.graceful_shutdown.complete(claimers, grace_seconds, reason, retired)

    async def aclose(self) -> None:
        """End slots, threads and worker processes."""
        await self.executor.aclose()
        await self._dispatcher.aclose(
            timeout_seconds=0.5, kill=not self._workers_leave or self._ownership.fenced.is_set()
        )

    # ------------------------------------------------------------ losing buckets

    def forget(self, bucket_id: bytes, why: str, reply: ReplyStatus | None = None) -> None:
        """An answer of a store or of the master shows another owner: no job of the bucket may be settled or recorded.

        The reason may be the new epoch of a frozen bucket (the answer to our own unfreezing was lost): its row is read first.
        """
        owned = self._ownership.get(bucket_id)
        if owned is not None and owned.frozen:
            owned.note_reply(reply)
            self._ownership.write_refused(owned, why)
        else:
            self._ownership.lose(bucket_id, why, reply)

    def _lost(self, owned: OwnedBucket, why: str) -> None:
        bucket_id = owned.fence.bucket_id
        dropped, promoted = self.job_table.forget(bucket_id)
        waiting = self.claimers[bucket_id].waiting if bucket_id in self.claimers else 0
        alive = {job.entry.id for job in promoted}
        alone = self.memory_recovery.keep(owned, [job for job in dropped if job.entry.id not in alive])
        # Outcomes that are kept there and not in memory any more; at most so many, a lost answer counts twice.
        let_go = max(owned.kept - sum(job.kept for job in dropped), 0)
        owned.at_risk = waiting + alone + let_go
        for job in dropped:
            if job.phase is JobPhase.RUNNING:
                self.executor.stop_job(job, StopCause.SUPERSEDED)
            job.phase = JobPhase.GONE
        self._close(bucket_id)
        self._telemetry.buckets_lost += 1
        self._log.warning(Event.BUCKET_FORGOTTEN, {"bucket": bucket_id, "reason": why, "jobs": len(dropped)})
        if promoted:
            self.executor.enqueue(promoted)

    def _close(self, bucket_id: bytes) -> None:
        self.executor.close(bucket_id)
        self.due_fetcher.close(bucket_id)
        self.cancellation.close(bucket_id)
        claimer = self.claimers.pop(bucket_id, None)
        if claimer is not None:
            claimer.ended = True
            claimer.wake()
            self._claimed_before += claimer.claimed
            self._conflicts_before += claimer.conflicting
        self.wake_listener.changed()

    # ------------------------------------------------------------ freeze and unfreeze

    def freeze(self, owned: OwnedBucket) -> None:
        """Claim, start and onboard no job of the bucket any more; running jobs are recorded."""
        owned.freeze()
        self._dispatcher.take_back(owned)
        self.executor.set_slots()

    def unfreeze(self, owned: OwnedBucket, epoch: int) -> None:
        """The bucket goes on under a new epoch. Jobs with a row under the old one end under it; jobs that were only queued
        under it go back to the master."""
        predecessor = owned.advance_epoch(epoch)
        for job in self.job_table.keep_old_identity(owned, predecessor):
            self.outcome_builder.release(job)
        self.resume(owned)

    def resume(self, owned: OwnedBucket) -> None:
        """Work that waited for the check of the bucket goes on."""
        bucket_id = owned.fence.bucket_id
        self.executor.set_slots()
        self.executor.take_queued(bucket_id)  # they would be queued twice
        self.executor.enqueue([job for job in self.job_table.of_bucket(bucket_id) if job.phase is JobPhase.QUEUED])
        self.due_fetcher.kick(bucket_id)
        if (claimer := self.claimers.get(bucket_id)) is not None:
            claimer.wake(lists=True)

    # ------------------------------------------------------------ pauses

    def apply_pauses(self) -> None:
        """The pauses have changed: what they cover does not start any more, and what was resumed goes on."""
        for claimer in self.claimers.values():
            claimer.owned.paused = self.pauses.cover_bucket(claimer.owned)
        if cancelled := self.pauses.cancelled_ranges:
            self.cancellation.requested(
                [job.entry.id for job in self.job_table if job.entry.id[:RANGE_BYTES] in cancelled]
            )
        self.executor.give_back_paused()
        self.due_fetcher.apply_pauses(self.pauses)
        for claimer in self.claimers.values():
            claimer.wake()

    # ------------------------------------------------------------ reload of the configuration

    def retune(self, settings: ClusterSettings, agent: AgentSettings) -> None:
        """Apply the settings that can change while jobs run: slots, buffers, defaults of jobs; the log level of worker
        processes that start from now on."""
        self._settings, self._agent = settings, agent
        self._pool.set_log_level(_log_level(settings))
        self.executor.set_slots(agent)
        self.outcome_builder.defaults = settings.jobs
        self.executor.reweigh_tenants(settings.tenants)
        for claimer in self.claimers.values():
            claimer.prefetch_limit = PrefetchLimit.of(agent, claimer.owned)
            claimer.wake()

    # ------------------------------------------------------------ signals between the parts

    def spawn(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run a task beside the parts; its failure ends the process like theirs. Nothing is started once they have ended."""
        if self._group is not None:
            self._group.create_task(work(), name="jobmaster-replace")

    def cancel(self, job_ids: Sequence[bytes]) -> None:
        """Cancel requests that came with a renewal."""
        self.cancellation.requested(job_ids)

    def waits_elsewhere(self, job: ClaimedJob) -> bool:
        """True for a job that its slot has passed on and that waits for a thread, a worker process or a task."""
        return self._dispatcher.is_waiting(job)

    def _started_at(self, job: ClaimedJob) -> float | None:
        return self.executor.started_at(job)

    def _stop(self, job: ClaimedJob, cause: StopCause) -> None:
        self.executor.stop_job(job, cause)

    def _enqueue(self, jobs: Sequence[ClaimedJob]) -> None:
        self.executor.enqueue(jobs)

    def _fail(self, error: BaseException) -> None:
        self.executor.fail(error)

    def _reported(self, job: ProcessJob, report: Progressed | Logged) -> None:
        """What a handler in a worker process has reported."""
        if isinstance(report, Progressed):
            self.run_progress.note(job.job_id, job.token, report.progress)
        else:
            for line in report.lines:
                self.job_log.keep(job.job_id, line, report.lowest)

    def _printed(self, line: str, pid: int, job: ProcessJob | None) -> None:
        if (left_out := self._line_rate.admit()) is None:
            return
        fields: dict[str, object] = {"worker": pid}
        if job is not None:
            fields = {"job": job.job_id, "handler": job.handler, "attempt": job.attempt, **fields}
        printed, logged = split_logged(line)
        counted: dict[str, object] = {"left_out": left_out} if left_out else {}
        if printed.strip():
            claimed = None if job is None else self.job_table.get(job.job_id)
            traced = {} if claimed is None else trace_fields_of(claimed.entry.headers)
            self._log.info(Event.HANDLER_OUTPUT, {**fields, "line": printed, **traced, **counted})
            counted = {}
        if logged is not None:
            # Ours come first, and win.
            relay(logged.level, logged.logger, logged.message, {**fields, **logged.extra, **fields, **counted})

    def _given_up(self, job: ClaimedJob, cause: StopCause, seconds: float) -> None:
        fields = {"job": job.entry.id, "handler": job.entry.handler, "reason": cause.value, "seconds": seconds}
        self._log.error(Event.HANDLER_GIVEN_UP, {**fields, **trace_fields_of(job.entry.headers)})
        if self._stuck() >= self._agent.max_running:
            self.threads_exhausted.set()

    def _stuck(self) -> int:
        return self.executor.stuck + self._dispatcher.stuck

    def _room(self, bucket_id: bytes) -> None:
        claimer = self.claimers.get(bucket_id)
        if claimer is not None:
            claimer.wake()
        self.due_fetcher.has_room(bucket_id)

    def _claimed(self) -> int:
        return self._claimed_before + sum(claimer.claimed for claimer in self.claimers.values())

    def _slots(self) -> dict[Labels, float]:
        agent = self._agent
        return {
            (RunMode.ASYNC,): agent.slots_at_once(),
            (RunMode.THREAD,): agent.threads,
            (RunMode.PROCESS,): agent.isolated_processes,
        }

    def _observe(self, telemetry: Telemetry) -> None:
        outcome_writer, executor, outcome_builder = self.outcome_writer, self.executor, self.outcome_builder
        telemetry.read_from("jobs_running", lambda: executor.running)
        telemetry.read_from("jobs_queued", lambda: sum(map(executor.backlog, self.claimers)) - executor.running)
        telemetry.read_from("jobs_started", lambda: executor.finished + executor.running)
        telemetry.read_from("handlers_stuck", self._stuck)
        telemetry.read_from("jobs_aside", lambda: sum(map(executor.deferred, self.claimers)))
        telemetry.read_from("pauses_in_force", lambda: len(self.pauses.subjects))
        telemetry.read_from("outcomes_waiting", lambda: outcome_writer.backlog)
        telemetry.read_from("jobs_claimed", self._claimed)
        telemetry.read_from("jobs_onboarded", lambda: self.due_fetcher.onboarded)
        telemetry.read_from("onboarded_behind_cursor", lambda: self.due_fetcher.behind)
        telemetry.read_from("jobs_retried", lambda: outcome_builder.retried)
        telemetry.read_from(
            "jobs_conflicting", lambda: self._conflicts_before + sum(p.conflicting for p in self.claimers.values())
        )
        telemetry.read_from("jobs_duplicate", lambda: self.job_table.duplicates)
        telemetry.read_from("jobs_refused", lambda: outcome_writer.refused)
        telemetry.read_from("jobs_abandoned", lambda: outcome_builder.abandoned)
        telemetry.read_from("jobs_not_sealed", lambda: outcome_builder.not_sealed)
        telemetry.read_from("jobs_quarantined", lambda: outcome_writer.quarantined)
        telemetry.read_from("outcomes_moved_to_store", lambda: self.kept_outcomes.kept)
        telemetry.read_from("batches_fenced", lambda: outcome_writer.fenced_batches)
        telemetry.read_from("buckets_owned", lambda: len(self._ownership.buckets))
        telemetry.read_series("slots", self._slots)
        telemetry.serve(sorted(self._handlers))


def _spans(tracing: Tracing, agent_id: bytes, sink: OutcomeSink, job_table: JobTable, clock: Clock) -> RunSpans:
    # Imported here: OpenTelemetry is imported only where traces are on.
    from jobmaster_agents.execute.run_spans import RunSpans

    return RunSpans(tracing, agent_id, sink, job_table, clock)


def _with_spans(master: WorkerMaster, store: WorkerStore, tracing: Tracing) -> tuple[WorkerMaster, WorkerStore]:
    from jobmaster_agents.execute.call_spans import with_spans

    return with_spans(master, store, tracing)


def _log_level(settings: ClusterSettings) -> str | None:
    """Of the root logger of worker processes; ``None``: it is the application's."""
    return settings.observability.log_level if settings.observability.root_logging else None
