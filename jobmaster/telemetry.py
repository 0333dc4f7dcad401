"""Every metric of a process, listed once. The only importer of prometheus_client.

Hot paths add to plain attributes (``telemetry.jobs_claimed += n``): no lock, no label lookup, no library call. A collector
reads them at a scrape. What another object counts anyway is read from it at that moment (``read_from``).
One ``Telemetry`` per process, made by the composition root; there is no global registry.

The number of series is bounded: ``HANDLERS_MAX`` names of handlers have series of their own, and a metric whose labels come
from jobs has at most ``metric_values.SERIES_MAX`` (``GROUPS_MAX`` lanes and priorities). What comes later is counted under
``other``. A scrape encodes its text on the event loop.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmaster import __version__
from jobmaster.metric_values import Histogram, Histograms, Labels, NameLimit, Tallies, Tally
from jobmaster.model.schedule import FireOutcome

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

JOB_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
HANDLER_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 1800.0)
"""Fewer bounds: there is one histogram for each handler."""

HANDLERS_MAX = 100
"""Names of handlers with series of their own."""
GROUPS_MAX = 100
"""Lanes and priorities with a histogram of their own."""


class Kind(StrEnum):
    """What a metric is to its reader."""

    COUNTER = "counter"
    """Only grows."""
    GAUGE = "gauge"
    """A present value."""
    HISTOGRAM = "histogram"
    """How values are spread."""


class Metric(NamedTuple):
    """One metric: its public name and its help text."""

    name: str
    kind: Kind
    help: str
    label: str | None = None
    """Name of its label, if it has one, or names with commas between them; the values come from small closed sets (states,
    periodic tasks), or their number is bounded."""
    bounds: tuple[float, ...] = ()

    @property
    def served(self) -> str:
        """The name in the exposition, which is the one for queries, alerts and pages."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


class RunOutcome(StrEnum):
    """How an attempt ended, as ``jobmaster_handler_runs`` counts it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The job has FAILED, for another reason than its time-out."""
    RETRIED = "retried"
    """It failed for another reason than its time-out, and the job is tried again."""
    TIMED_OUT = "timed_out"
    """Stopped at its time-out, whether the job is tried again or not."""
    SNOOZED = "snoozed"
    CANCELLED = "cancelled"


class RenewalResult(StrEnum):
    """What became of a renewal of the lease, as ``jobmaster_lease_renewals`` counts it."""

    OK = "ok"
    LATE = "late"
    """Answered after the lease had ended."""
    FAILED = "failed"
    WITHHELD = "withheld"
    """Not sent: the process made no progress, or its store did not answer."""


GROUP_LABELS = "lane, priority"
KIND_LABELS = f"handler, {GROUP_LABELS}"
FAILURE_LABELS = f"{KIND_LABELS}, reason"

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

METRICS: dict[str, Metric] = {
    # the life of jobs in this process
    "jobs_submitted": Metric(
        "jobmaster_jobs_submitted", _C, "Jobs taken over from callers of this process, by level reached.", "level"
    ),
    "jobs_claimed": Metric("jobmaster_jobs_claimed", _C, "Jobs taken from buckets into memory."),
    "claim_seconds": Metric(
        "jobmaster_claim_seconds", _H, "One claim of a bucket's jobs, all tries.", None, STEP_SECONDS
    ),
    "jobs_onboarded": Metric("jobmaster_jobs_onboarded", _C, "Jobs moved from the master into buckets."),
    "onboarded_behind_cursor": Metric(
        "jobmaster_onboarded_behind_cursor",
        _C,
        "Jobs that a look from the oldest due time found before the place where later looks had begun.",
    ),
    "jobs_started": Metric("jobmaster_jobs_started", _C, "Handlers started."),
    "jobs_ended": Metric("jobmaster_jobs_ended", _C, "Outcomes of its jobs in the master, by final state.", "state"),
    "jobs_failed": Metric(
        "jobmaster_jobs_failed",
        _C,
        "Outcomes other than success in the master, by what they ended with.",
        FAILURE_LABELS,
    ),
    "attempts_failed": Metric(
        "jobmaster_attempts_failed",
        _C,
        "Failed attempts in the master, tried again or not, time-outs included, by what they ended with.",
        FAILURE_LABELS,
    ),
    "jobs_retried": Metric("jobmaster_jobs_retried", _C, "Failed attempts that will be tried again."),
    "jobs_snoozed": Metric(
        "jobmaster_jobs_snoozed", _C, "Attempts after which their handler put the job off, in the master.", KIND_LABELS
    ),
    "attempts_overdue": Metric(
        "jobmaster_attempts_overdue", _C, "Attempts that ran longer than `warn_after` of their handler.", KIND_LABELS
    ),
    "jobs_held": Metric("jobmaster_jobs_held", _C, "Jobs given back to the master unrun (flush, release, spill)."),
    "jobs_not_accepted": Metric(
        "jobmaster_jobs_not_accepted",
        _C,
        "Jobs given to other agents because they waited longer than their `accept_time`.",
    ),
    "jobs_duplicate": Metric("jobmaster_jobs_duplicate", _C, "Second copies of an id seen in memory."),
    "jobs_conflicting": Metric("jobmaster_jobs_conflicting", _C, "Second copies of an id with another payload."),
    "jobs_refused": Metric("jobmaster_jobs_refused", _C, "Writes refused by their row: another assignment, or final."),
    "jobs_abandoned": Metric(
        "jobmaster_jobs_abandoned", _C, "At most once: stopped when this agent left, not started again."
    ),
    "jobs_not_sealed": Metric(
        "jobmaster_jobs_not_sealed", _C, "Jobs that failed unrun: `encryption.require` asks for a seal, they had none."
    ),
    "jobs_quarantined": Metric(
        "jobmaster_jobs_quarantined", _C, "Entries refused because of their id, and quarantined."
    ),
    "outcomes_moved_to_store": Metric(
        "jobmaster_outcomes_moved_to_store", _C, "Outcomes kept in the store while the lease was in doubt."
    ),
    "outcomes_kept": Metric("jobmaster_outcomes_kept", _G, "Outcomes kept in own buckets that wait for the master."),
    "outcomes_applied": Metric(
        "jobmaster_outcomes_applied", _C, "Kept outcomes written to the master after it was back."
    ),
    "batches_fenced": Metric("jobmaster_batches_fenced", _C, "Writes refused by a bucket's lock or a store's fence."),
    "transactions": Metric("jobmaster_transactions", _C, "Transactions of handlers, by how they ended.", "result"),
    "jobs_running": Metric("jobmaster_jobs_running", _G, "Handlers running now."),
    "threads_stuck": Metric("jobmaster_threads_stuck", _G, "Threads in handlers that were given up and do not end."),
    "handlers_stuck": Metric(
        "jobmaster_handlers_stuck", _G, "Async handlers that were given up (cancelled, and they go on) and do not end."
    ),
    "progress_dropped": Metric(
        "jobmaster_progress_dropped",
        _C,
        "Reports of handlers that were dropped, because those of too many runs waited.",
    ),
    "log_lines_dropped": Metric(
        "jobmaster_log_lines_dropped",
        _C,
        "Lines of job logs that were dropped, because too many waited or the master refused them.",
    ),
    "jobs_queued": Metric("jobmaster_jobs_queued", _G, "Claimed jobs waiting for a slot."),
    "outcomes_waiting": Metric("jobmaster_outcomes_waiting", _G, "Outcomes on their way to the master."),
    "job_wait_seconds": Metric(
        "jobmaster_job_wait_seconds",
        _H,
        "Due (or submitted) to started, of jobs that ended.",
        GROUP_LABELS,
        JOB_SECONDS,
    ),
    "job_run_seconds": Metric(
        "jobmaster_job_run_seconds", _H, "Started to ended, of attempts whose outcome is committed.", None, JOB_SECONDS
    ),
    "handler_runs": Metric(
        "jobmaster_handler_runs",
        _C,
        "Attempts whose outcome is committed, by handler (100 names, then `other`): succeeded, failed (for good), retried, "
        "timed_out (tried again or not), snoozed, cancelled.",
        "handler, outcome",
    ),
    "handler_run_seconds": Metric(
        "jobmaster_handler_run_seconds",
        _H,
        "Started to ended, of attempts whose outcome is committed, by handler (100 names, then `other`).",
        "handler",
        HANDLER_SECONDS,
    ),
    "slots": Metric(
        "jobmaster_slots",
        _G,
        "Jobs of this process that may run at once: async (all jobs, in the slots of its buckets), thread and process (of "
        "handlers of that mode).",
        "kind",
    ),
    "jobs_aside": Metric("jobmaster_jobs_aside", _G, "Claimed jobs whose start waits for the master to answer."),
    "outcome_write_seconds": Metric(
        "jobmaster_outcome_write_seconds", _H, "One batch of outcomes to the master, all tries.", None, STEP_SECONDS
    ),
    # leases
    "beats": Metric("jobmaster_store_beats", _C, "Heartbeats in the agent store, by result.", "result"),
    "renewals": Metric("jobmaster_lease_renewals", _C, "Lease renewals in the master, by result.", "result"),
    "lease_seconds_left": Metric("jobmaster_lease_seconds_left", _G, "Seconds of trust left in the own lease."),
    "renewal_seconds": Metric(
        "jobmaster_lease_renewal_seconds", _H, "One renewal of the lease in the master, answered.", None, STEP_SECONDS
    ),
    "clock_ahead_seconds": Metric(
        "jobmaster_clock_ahead_seconds", _G, "This machine's wall clock against the master's; behind: negative."
    ),
    "suspended": Metric(
        "jobmaster_suspended", _G, "1 while the master does not answer and work goes on from the store."
    ),
    "suspensions": Metric("jobmaster_suspensions", _C, "Times the master did not answer and the store took over."),
    "buckets_owned": Metric("jobmaster_buckets_owned", _G, "Buckets held by this process."),
    "buckets_frozen": Metric("jobmaster_buckets_frozen", _G, "Own buckets that an operator has stopped."),
    "buckets_lost": Metric("jobmaster_buckets_lost", _C, "Own buckets lost to another owner."),
    "jobs_at_risk": Metric(
        "jobmaster_jobs_at_risk",
        _C,
        "Jobs without a row, last seen in an own bucket that its store lost or rolled back.",
    ),
    "jobs_salvaged": Metric(
        "jobmaster_jobs_salvaged",
        _C,
        "Jobs without a row that this process wrote to the master when its store had lost their bucket.",
    ),
    "loop_stalls": Metric("jobmaster_loop_stalls", _C, "Renewals withheld because the process made no progress."),
    # rescue
    "agents_certified": Metric("jobmaster_agents_certified_dead", _C, "Death certificates written by this process."),
    "buckets_taken": Metric("jobmaster_buckets_taken", _C, "Lost buckets taken for draining."),
    "buckets_drained": Metric("jobmaster_buckets_drained", _C, "Lost buckets drained to the end."),
    "drains_superseded": Metric(
        "jobmaster_drains_superseded", _C, "Drains refused because another agent took the bucket."
    ),
    "drains_postponed": Metric(
        "jobmaster_drains_postponed", _C, "Drains put off because a store or the master failed."
    ),
    "jobs_moved": Metric("jobmaster_jobs_moved", _C, "Jobs of lost buckets given back to the master."),
    "jobs_rescued": Metric("jobmaster_jobs_rescued", _C, "Of these: claimed or in flight under a dead agent."),
    "jobs_given_up": Metric(
        "jobmaster_jobs_given_up",
        _C,
        "Rescued and ended as FAILED: abandoned (at most once) or too often (agent_lost).",
    ),
    "drain_refusals": Metric(
        "jobmaster_drain_refusals", _C, "Entries of lost buckets refused by their row: settled before."
    ),
    "entries_put_aside": Metric(
        "jobmaster_entries_put_aside", _C, "Entries of lost buckets that the master cannot store, kept in quarantine."
    ),
    "drain_seconds": Metric("jobmaster_drain_seconds", _H, "One lost bucket, taken to closed.", None, STEP_SECONDS),
    # anti-entropy
    "anti_entropy_seconds": Metric(
        "jobmaster_anti_entropy_seconds", _H, "One comparison of a bucket with its rows.", None, STEP_SECONDS
    ),
    "rows_released": Metric("jobmaster_rows_released", _C, "In-flight rows without a copy, given back."),
    "rows_without_memory": Metric(
        "jobmaster_rows_without_memory", _C, "PROCESSING rows that no agent ran (a failover, or a defect of ours)."
    ),
    "buckets_resurrected": Metric("jobmaster_buckets_resurrected", _C, "Keys in a store of buckets the master forgot."),
    # leader
    "leading": Metric("jobmaster_leading", _G, "1 while this process holds the leader's lease."),
    "elections_won": Metric("jobmaster_elections_won", _C, "Times this process became leader."),
    "hints": Metric("jobmaster_hints", _C, "Owners notified that HELD jobs are due."),
    "batches_ended": Metric("jobmaster_batches_ended", _C, "Batches that this process ended, by their state.", "state"),
    "bulk_jobs": Metric("jobmaster_bulk_jobs", _C, "Jobs that bulk operations have changed, by the kind.", "kind"),
    "batches_found": Metric(
        "jobmaster_batches_found",
        _C,
        "Of these: found by the leader, because no agent had noted the last end of a job.",
    ),
    "fires": Metric(
        "jobmaster_schedule_fires",
        _C,
        "Fires of schedules that this process decided, by what became of them.",
        "outcome",
    ),
    "fire_late_seconds": Metric(
        "jobmaster_schedule_fire_late_seconds",
        _H,
        "Due time of a fire to its job in the master, 0 when it was made ahead.",
        None,
        STEP_SECONDS,
    ),
    "breaker_changes": Metric(
        "jobmaster_breaker_changes",
        _C,
        "Changes of circuit breakers that this process has made, by the new state.",
        "state",
    ),
    "handlers_unserved": Metric(
        "jobmaster_handlers_unserved", _G, "Handlers of overdue jobs that no agent with a bucket for them has."
    ),
    "pauses_in_force": Metric("jobmaster_pauses_in_force", _G, "Pauses that this process obeys."),
    "jobs_paused": Metric(
        "jobmaster_jobs_paused", _G, "Due jobs that pauses keep in the master, counted by the leader each minute."
    ),
    "stores_silent": Metric(
        "jobmaster_stores_silent", _G, "Agent stores of the configuration that do not answer this process."
    ),
    "backlog_jobs": Metric(
        "jobmaster_backlog_jobs",
        _G,
        "Jobs of the cluster that could run and wait, by the leader, every 5 s: in stores (pending; assigned, if due), in "
        "the master (held_due, up to 100,000). Jobs in the memory of agents are in `jobmaster_jobs_queued`.",
        f"{GROUP_LABELS}, where",
    ),
    "oldest_due_seconds": Metric(
        "jobmaster_oldest_due_seconds",
        _G,
        "For how long the oldest of these jobs has been due, by the leader, every 5 s; 0: there is none.",
        GROUP_LABELS,
    ),
    "held_jobs": Metric(
        "jobmaster_held_jobs",
        _G,
        "HELD jobs in the master, due or not, by the leader, every 5 s: up to 100,000 due ones and 100,000 others.",
        GROUP_LABELS,
    ),
    "groups_unserved": Metric("jobmaster_groups_unserved", _G, "Lanes and priorities with due jobs and no bucket."),
    "orphans_returned": Metric("jobmaster_orphans_returned", _C, "In-flight rows of no live bucket, given back."),
    "rows_forgotten": Metric(
        "jobmaster_rows_forgotten", _C, "Rows beside jobs (agents, keys, logs) past their retention."
    ),
    "jobs_expired": Metric("jobmaster_jobs_expired", _C, "HELD jobs past their expiry."),
    "jobs_unconfirmed": Metric("jobmaster_jobs_unconfirmed", _C, "Jobs whose confirmation has not come in time."),
    "jobs_reassigned": Metric(
        "jobmaster_jobs_reassigned", _C, "Running jobs given to another agent after their `complete_time`."
    ),
    "jobs_too_slow": Metric(
        "jobmaster_jobs_too_slow", _C, "Jobs that FAILED because they were reassigned too often (`jobs.max_reassigns`)."
    ),
    "buckets_dropped": Metric("jobmaster_buckets_dropped", _C, "Tombstones of retired buckets deleted."),
    # what the supervisor counts for the place of this process; it goes on when the process is replaced
    "place_deaths": Metric(
        "jobmaster_supervisor_deaths", _C, "Former processes in this one's place that did not leave in order."
    ),
    "place_kills": Metric(
        "jobmaster_supervisor_kills", _C, "Of these: killed by the supervisor at the end of the lease or the grace."
    ),
    "place_refusals": Metric("jobmaster_supervisor_refusals", _C, "Of these: refused before they were registered."),
    "place_crash_loops": Metric(
        "jobmaster_supervisor_crash_loops", _C, "Of these: the third or a later death in a row."
    ),
    "place_deaths_in_a_row": Metric(
        "jobmaster_supervisor_deaths_in_a_row", _G, "Deaths in a row before this process; from 3 on a crash loop."
    ),
    "place_certificates": Metric(
        "jobmaster_supervisor_certificates", _C, "Death certificates that the supervisor had written for them."
    ),
    "place_certificates_failed": Metric(
        "jobmaster_supervisor_certificates_failed", _C, "Death certificates that it could not have written in time."
    ),
    "build_info": Metric("jobmaster_build_info", _G, "1, by the version of the program.", "version, python"),
    # periodic tasks
    "periodic_task_ticks": Metric("jobmaster_periodic_task_ticks", _C, "Ticks of periodic tasks.", "task"),
    "periodic_task_failures": Metric(
        "jobmaster_periodic_task_failures", _C, "Ticks of periodic tasks that failed.", "task"
    ),
}


Reading = Callable[[], float]
Series = Mapping[Labels, float]
SeriesReading = Callable[[], Series]
Value = float | Mapping[Any, float] | Histogram | Histograms


class Telemetry:
    """The numbers of one process."""

    def __init__(self) -> None:
        self.jobs_submitted: Tally = Tally(int)
        self.jobs_claimed = 0
        self.claim_seconds = Histogram(STEP_SECONDS)
        self.jobs_onboarded = self.onboarded_behind_cursor = 0
        self.jobs_started = 0
        self.jobs_ended: Tally = Tally(int)
        self.jobs_failed, self.attempts_failed = Tallies(), Tallies()
        self.jobs_snoozed, self.attempts_overdue = Tallies(), Tallies()
        self.jobs_retried = self.jobs_held = self.jobs_duplicate = self.jobs_conflicting = 0
        self.jobs_refused = self.jobs_not_sealed = self.jobs_quarantined = self.batches_fenced = 0
        self.outcomes_moved_to_store = self.outcomes_kept = self.outcomes_applied = 0
        self.transactions: Tally = Tally(int)
        # Prometheus sees no growth in a series that begins at 1: what alerts compare begins at 0.
        self.fires: Tally = Tally(int, {outcome.value: 0 for outcome in FireOutcome})
        self.breaker_changes: Tally = Tally(int)
        self.batches_ended: Tally = Tally(int)
        self.bulk_jobs: Tally = Tally(int)
        self.fire_late_seconds = Histogram(STEP_SECONDS)
        self.jobs_running = self.threads_stuck = self.handlers_stuck = 0
        self.progress_dropped = self.log_lines_dropped = 0
        self.jobs_queued = self.outcomes_waiting = self.jobs_aside = 0
        self.job_wait_seconds = Histograms(JOB_SECONDS, GROUPS_MAX)
        self.handler_runs = Tallies()
        self.handler_run_seconds = Histograms(JOB_SECONDS, HANDLERS_MAX + 1)
        """Shown with the fewer bounds ``HANDLER_SECONDS``."""
        self.slots: Series = {}
        self.backlog_jobs, self.oldest_due_seconds, self.held_jobs = (dict[Labels, float]() for _ in range(3))
        self.outcome_write_seconds = Histogram(STEP_SECONDS)
        self.beats: Tally = Tally(int)
        self.renewals: Tally = Tally(int, {result.value: 0 for result in RenewalResult})
        self.renewal_seconds = Histogram(STEP_SECONDS)
        self.lease_seconds_left = self.clock_ahead_seconds = 0.0
        self.suspended = self.suspensions = 0
        self.buckets_owned = self.buckets_frozen = self.buckets_lost = 0
        self.loop_stalls = 0
        self.agents_certified = 0
        self.buckets_taken = self.buckets_drained = self.drains_superseded = self.drains_postponed = 0
        self.jobs_moved = 0
        self.jobs_rescued = 0
        self.jobs_given_up = self.jobs_abandoned = self.jobs_at_risk = self.jobs_salvaged = 0
        self.drain_refusals = self.entries_put_aside = 0
        self.drain_seconds = Histogram(STEP_SECONDS)
        self.anti_entropy_seconds = Histogram(STEP_SECONDS)
        self.place_deaths = self.place_kills = self.place_refusals = self.place_crash_loops = 0
        self.place_deaths_in_a_row = self.place_certificates = self.place_certificates_failed = 0
        self.rows_released = 0
        self.rows_without_memory = 0
        self.buckets_resurrected = 0
        self.leading = self.elections_won = self.hints = self.pauses_in_force = self.jobs_paused = 0
        self.groups_unserved = self.stores_silent = self.handlers_unserved = self.batches_found = 0
        self.orphans_returned = self.rows_forgotten = 0
        self.jobs_expired = self.jobs_unconfirmed = 0
        self.jobs_reassigned = self.jobs_too_slow = self.jobs_not_accepted = 0
        self.buckets_dropped = 0
        self.periodic_task_ticks: Tally = Tally(int)
        self.periodic_task_failures: Tally = Tally(int)
        self.build_info: Series = {(__version__, platform.python_version()): 1.0}
        self._handlers = NameLimit(HANDLERS_MAX)
        self._readings: dict[str, Reading | SeriesReading] = {}

    @property
    def job_run_seconds(self) -> Histogram:
        """Of all handlers. Summed at the scrape: a second histogram would cost each outcome as much as the first."""
        return Histogram.sum(JOB_SECONDS, self.handler_run_seconds.values())

    def serve(self, handlers: Iterable[str]) -> None:
        """Give names of handlers their labels before other names come, and their counters the value 0: Prometheus sees no
        growth in a series that begins at 1."""
        for name in handlers:
            for outcome in RunOutcome:
                self.handler_runs.add((self.handler_label(name), outcome), 0)

    def handler_label(self, name: str) -> str:
        """Value of the label ``handler`` for the name of a handler."""
        return self._handlers.label(name)

    def read_from(self, key: str, reading: Reading) -> None:
        """Take an unlabelled counter or gauge from the object that counts it anyway, at the moment of the scrape."""
        metric = METRICS[key]
        if metric.label is not None or metric.kind is Kind.HISTOGRAM:
            raise ValueError(f"{key} has labels or buckets: it cannot be one reading")
        self._readings[key] = reading

    def read_series(self, key: str, reading: SeriesReading) -> None:
        """Take the series of a gauge with labels from the object that has them, at the moment of the scrape."""
        metric = METRICS[key]
        if metric.label is None or metric.kind is not Kind.GAUGE:
            raise ValueError(f"{key} is no gauge with labels")
        self._readings[key] = reading

    def value(self, key: str) -> Value:
        """Present value of a metric by its key in ``METRICS``."""
        reading = self._readings.get(key)
        if reading is not None:
            return reading()
        found: Value = getattr(self, key)
        return found

    def registry(self) -> CollectorRegistry:
        """A registry of this process alone, to be served or tested."""
        # Imported late: a producer's process counts too, and should not pay for the library unless it is scraped.
        from prometheus_client import CollectorRegistry, ProcessCollector

        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self))
        ProcessCollector(registry=registry)  # processor time, memory, open files; nothing where there is no /proc
        return registry

    def exposition(self) -> bytes:
        """The numbers in the text form of Prometheus."""
        return self.negotiated("")[0]

    def negotiated(self, accept: str) -> tuple[bytes, str]:
        """The numbers as text, and the content type of that text.

        Args:
            accept: header of the request. OpenMetrics when it asks for that, otherwise the text form of Prometheus.
        """
        from prometheus_client.exposition import choose_encoder

        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is no number
            encode, content_type = choose_encoder("")
        return encode(self.registry()), content_type


class _Collector:
    """Reads a ``Telemetry`` at each scrape."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def describe(self) -> Iterable[Family]:
        return ()

    def collect(self) -> Iterator[Family]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for key, metric in METRICS.items():
            value: Any = self._telemetry.value(key)
            labels = metric.label.split(", ") if metric.label else None
            if isinstance(value, Histogram):
                value = {(): value}
            if metric.kind is Kind.HISTOGRAM:
                spread = HistogramMetricFamily(metric.name, metric.help, labels=labels)
                for place, each in sorted(value.items()):
                    spread.add_metric(list(place), each.cumulative(metric.bounds), each.total)
                yield spread
                continue
            make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
            family = make(metric.name, metric.help, labels=labels)
            if isinstance(value, Mapping):
                for label, count in sorted(value.items()):
                    family.add_metric([label] if isinstance(label, str) else list(label), count)
            else:
                family.add_metric([], value)
            yield family
