"""Checks the promises of the protocol at every write and every start. Independent of what it checks: it calls no guard of
the product and compares everything again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jobmaster.model.flow.batch import range_of
from jobmaster.model.flow.limit import LimitUse
from jobmaster.model.ids import text
from jobmaster.model.job_change import JobChange
from jobmaster.settings.model import JobDefaults
from tests.simulation.checks.breakers import BreakerChecks
from tests.simulation.checks.limits import LimitChecks
from tests.simulation.checks.trace import Trace
from tests.simulation.master.tables import ALIVE, FINAL, OVER, Event, JobRow, ScheduleRow, Tables
from tests.simulation.runtime.event_loop import Process, SimLoop

EARLY_US = 2_000
"""Rounding."""
Identity = tuple[bytes, int, bytes | None, int | None]
GUARDED, RESOURCE = "guarded", "resource"
"""Kind of the jobs whose handler has a circuit breaker, and its name."""
Subject = tuple[str, str]
"""Kind and value of a pause."""


class PausedAt(NamedTuple):
    """A pause in force, from one change of its end to the next."""

    version: int
    began: float
    ends: float


LOCK = "import"
"""Name of the lock under which programs work."""


@dataclass
class Job:
    """What a client knows of one of its jobs."""

    id: bytes
    kind: str
    level: str = ""
    """Level of the acknowledgement; empty: never acknowledged."""
    excused: str = ""
    """A fault that its level does not cover took it."""
    guardian: Process | None = None
    """Its store has lost it, and this agent has it in memory: it is lost only with that agent."""
    starts: int = 0
    key: str = ""
    cancelled: bool = False
    cancelled_at: float | None = None
    """When the client got the acknowledgement of its cancel request."""
    flagged: bool = False
    """A row of it names a bucket and bears the request."""
    seconds: float = 0.0
    """How long its handler takes."""
    not_before_us: int = 0
    """When it is due by an acknowledged change; microseconds since 1970 by the master's clock."""
    due_unknown_us: list[int] = field(default_factory=list)
    """... and by changes of which it is unknown whether they have happened, which may still take effect."""
    fails: int = 0
    """So many attempts fail."""
    snoozes: int = 0
    """So many times its handler puts it off."""
    pause: float = 0.0
    """... for so many seconds."""
    handler: str = ""
    """Of a job with limits."""
    uses: tuple[LimitUse, ...] = ()
    """What it takes of limits."""
    earlier: tuple[bytes, ...] = ()
    """Jobs of its ordering key that were acknowledged before its submit."""

    @property
    def may_be_lost(self) -> bool:
        """By a fault that its level does not cover."""
        return bool(self.excused) or (self.guardian is not None and self.guardian.code not in (None, 0))


@dataclass
class Audit:
    """The promises of the protocol, checked as things happen."""

    loop: SimLoop
    trace: Trace
    hits: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    jobs: dict[bytes, Job] = field(default_factory=dict)
    master_up_since: int = 0
    clocks_jumped: bool = False
    words_lost: bool = False
    """A store has forgotten data, and with it perhaps for whom it stood."""
    now_us: Callable[[], int] = lambda: 0
    """The master's clock."""
    terminate: Callable[[set[bytes]], None] = lambda agents: None
    is_elsewhere: Callable[[bytes], bool] = lambda job_id: False
    """Whether a job has moved to the master of another cluster, or is on its way."""
    concluded: dict[bytes, str] = field(default_factory=dict)
    """Archived jobs and how they ended."""
    forgotten: set[bytes] = field(default_factory=set)
    """Jobs whose newest rows a failover has forgotten."""
    acknowledged_workflows: set[bytes] = field(default_factory=set)
    loans_forgotten: dict[tuple[str, str, bytes], int] = field(default_factory=dict)
    """The most permits that an agent was lent of a limit and a failover has forgotten."""
    forgotten_workflows: set[bytes] = field(default_factory=set)
    """Workflows whose start a failover has forgotten."""
    forgotten_keys: set[str] = field(default_factory=set)
    """Keys that were given to a job, and a failover has forgotten to which."""
    _owners: dict[tuple[bytes, int], bytes] = field(default_factory=dict)
    _epochs: dict[bytes, int] = field(default_factory=dict)
    _leaders: dict[int, bytes] = field(default_factory=dict)
    _dead_by_lease: set[bytes] = field(default_factory=set)
    _emptied: set[bytes | None] = field(default_factory=set)
    """Buckets that a rescuer has begun to empty. Until then the store may stand for an owner that is certified dead."""
    _ended: dict[bytes, str] = field(default_factory=dict)
    _replaced: dict[str, set[str]] = field(default_factory=dict)
    """Definitions of each schedule that a later one of an agent has replaced."""
    _fires: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """Newest job of each fire of a schedule."""
    _cancelled_held: dict[bytes, int] = field(default_factory=dict)
    """Jobs that were cancelled while they were HELD, and the token that they had."""
    _authorised: set[Identity] = field(default_factory=set)
    _pauses: dict[Subject, list[PausedAt]] = field(default_factory=dict)
    lock_revoked: bool = False
    """An operator has taken the lock from its holder, or a failover has forgotten who holds it."""
    _lock_fence: int = 0
    _fence_on_its_way: int = -1
    """The last number before a failover: the answer that gave it may come after it."""
    _lock_taken_at: float = 0.0
    _ended_batches: set[bytes] = field(default_factory=set)
    _callbacks: dict[tuple[bytes, str], bytes] = field(default_factory=dict)
    """Newest job of each callback of a batch."""
    failovers: int = 0
    _actions_done: set[str] = field(default_factory=set)
    """Versions of the action that runs once."""
    _pauses_forgotten: bool = False
    """A failover has forgotten commits, and with them perhaps who has paused and resumed what."""
    _registered: dict[bytes, float] = field(default_factory=dict)
    _obeyed: dict[bytes, int] = field(default_factory=dict)
    _fenced_starts: set[Identity] = field(default_factory=set)
    _reassigns: Counter[bytes] = field(default_factory=Counter)
    breakers: BreakerChecks = field(init=False)

    def __post_init__(self) -> None:
        self.breakers = BreakerChecks(self.broken)
        self.limits = LimitChecks(self.broken, lambda: self.loop.now, self.forgotten)

    def broken(self, rule: str, what: str) -> None:
        """A promise is broken."""
        self.violations.append(f"{rule}: {what}")
        self.trace.note(self.loop.now, "AUDIT", rule, what)

    # ------------------------------------------------------------ rows

    def wrote(self, before: JobRow | None, after: JobRow) -> None:
        """A row is written."""
        self.trace.note(self.loop.now, "row", after.id.hex()[-6:], f"{after.state} token {after.token}")
        job_id = after.id
        if job_id in self.forgotten:
            return
        if before is None and job_id in self.concluded and after.state != "CANCELLED":
            self.broken("I1", f"{text(job_id)} was archived as {self.concluded[job_id]} and has a row again")
        if before is not None:
            if before.state in OVER:
                self.broken("I1", f"{text(job_id)} was {before.state} and becomes {after.state}")
            if after.token < before.token:
                self.broken("I3", f"token of {text(job_id)} falls from {before.token} to {after.token}")
            if b'"superseded_by"' in before.headers and b'"superseded_by"' not in after.headers:
                self.broken("I9", f"{text(job_id)} was replaced and does not name the job that has its key")
            if before.state == "HELD" and after.state == "CANCELLED":
                self._cancelled_held[job_id] = before.token
            if before.cancel_requested and after.state == "HELD":
                self.broken("cancel", f"{text(job_id)} is HELD although its cancellation was requested")
        in_no_bucket = after.state in ("HELD", "WAITING")  # no handler of a history asks for a confirmation
        if in_no_bucket != (after.bucket_id is None) and after.state not in OVER:
            self.broken("I7", f"{text(job_id)} is {after.state} and names bucket {after.bucket_id!r}")
        if after.state == "SUCCEEDED" and after.result != b"%d" % after.token:
            self.broken("I4", f"{text(job_id)} has token {after.token} and the result of {after.result!r}")
        if job_id not in self.jobs:
            self.broken("unexpected", f"{text(job_id)} was never submitted")
        elif after.cancel_requested and after.bucket_id is not None:
            self.jobs[job_id].flagged = True

    def holds_once(self, tables: Tables, handler: str, key: str) -> None:
        """A submit of a unique key that is held while a job lives has been decided."""
        mark = f'"unique_key":"{key}"'.encode()
        live = [
            row for row in tables.jobs.values()
            if row.handler == handler and row.state not in FINAL and mark in row.headers
            and b'"superseded_by"' not in row.headers and row.id not in self.forgotten
        ]  # fmt: skip
        if len(live) > 1 and not self.breakers.forgotten:
            self.broken("I9", f"{len(live)} jobs hold the unique key {key}")

    def fired(self, tables: Tables, schedule: str, nominal_us: int, job_id: bytes) -> None:
        """The master makes the job of a fire, which is as good as acknowledged."""
        before = self._fires.get((schedule, nominal_us))
        if before is not None and before not in self.forgotten:
            row = tables.jobs.get(before)
            if (self.concluded.get(before) if row is None else row.state) != "CANCELLED":
                self.broken("I10", f"two jobs of schedule {schedule} for {nominal_us}")
        self._fires[schedule, nominal_us] = job_id
        self.jobs[job_id] = Job(job_id, "fire", level="master")

    def batch_ends(self, tables: Tables, batch_id: bytes, reason: str) -> None:
        """A batch gets its final state: once, and not before its jobs unless there is a reason."""
        self.trace.note(self.loop.now, "batch", batch_id[:12].hex()[-6:], f"ends {reason}")
        self.hits["batch ends"] += 1
        if batch_id in self._ended_batches:
            self.broken("I12", f"batch {text(batch_id)} ends for a second time")
        self._ended_batches.add(batch_id)
        if reason:
            return
        for job, state in self._of_batch(tables, batch_id):
            if job.level and state not in FINAL and not job.may_be_lost:
                self.broken("I12", f"batch {text(batch_id)} ends while {text(job.id)} is {state or 'without a row'}")

    def called_back(self, batch_id: bytes, occasion: str, job_id: bytes) -> None:
        """The master makes a callback of a batch, which is as good as acknowledged."""
        before = self._callbacks.get((batch_id, occasion))
        if before is not None and before not in self.forgotten:
            self.broken("I12", f"two callbacks of {occasion} of batch {text(batch_id)}")
        self._callbacks[batch_id, occasion] = job_id
        self.jobs[job_id] = Job(job_id, "callback", level="master")

    def _of_batch(self, tables: Tables, batch_id: bytes) -> list[tuple[Job, str]]:
        """Its jobs and their states; those in the lake, too."""
        ranges = {lowest for lowest, of in tables.batch_ranges.items() if of == batch_id}
        return [
            (job, tables.jobs[job.id].state if job.id in tables.jobs else self.concluded.get(job.id, ""))
            for job in self.jobs.values()
            if range_of(job.id) in ranges
        ]

    def _batches_are_counted(self, tables: Tables) -> None:
        for row in tables.batches.values():
            if row.counts is None or row.reason:
                continue
            jobs = self._of_batch(tables, row.id)
            states = Counter(state for _, state in jobs)
            found = tuple(states[state] for state in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"))
            known = not any(job.id in self.forgotten for job, _ in jobs)
            if known and (found != row.counts[:4] or sum(row.counts) != row.size):
                self.broken("I12", f"batch {row.name} of {row.size} jobs has counted {row.counts}, found {found}")

    def defined(self, tables: Tables, before: ScheduleRow | None, after: ScheduleRow) -> None:
        """A definition is put. One that was replaced may not come back while a living agent declares the present one."""
        replaced = self._replaced.setdefault(after.name, set())
        if before is None or before.retired or "api" in (before.source, after.source):
            replaced.clear()
        elif before.digest != after.digest:
            agents = tables.agents
            declared = any(
                before.digest in digests and agent_id in agents and agents[agent_id].state in ALIVE
                for agent_id, digests in tables.digests.items()
            )
            if not declared:
                replaced.clear()
                self.hits["definition of the agents that are left"] += 1
            elif after.digest in replaced:
                self.broken("definition", f"that of {after.name} goes back and forth while agents declare both")
            else:
                replaced.add(before.digest)

    def called_off(self, job_id: bytes) -> None:
        """The master requests the cancellation of the job of a fire or of a step."""
        self.jobs[job_id].cancelled = True

    def began_step(self, tables: Tables, job_id: bytes, name: str, before: Collection[bytes]) -> None:
        """The master makes the job of a step, which is as good as acknowledged.

        Args:
            before: jobs of the steps that it waits for.
        """
        if job_id in self.jobs:
            if job_id not in self.forgotten:
                self.broken("I15", f"step {name} gets the job {text(job_id)} twice")
            return
        for parent in before:
            row = tables.jobs.get(parent)
            if parent not in self.forgotten and (row is not None and row.state not in FINAL):
                self.broken("I15", f"step {name} begins, and {text(parent)} before it has not ended")
        job = self.jobs[job_id] = Job(job_id, "failing step" if name.startswith("fails") else "step", level="master")
        job.seconds = 0.4 if name.startswith("slow") else 0.0

    def cancelled_steps(self, tables: Tables, job_ids: Collection[bytes]) -> None:
        """A workflow was cancelled, and with it the jobs of its steps."""
        for row in filter(None, map(tables.jobs.get, sorted(job_ids))):
            if row.state not in FINAL and not row.cancel_requested:
                self.broken("I15", f"{text(row.id)} is a step of a cancelled workflow, and has no cancel request")

    def accepted(self, statement: str, row: JobRow, token: int, bucket_id: bytes | None, epoch: int | None) -> None:
        """A write about an existing row was accepted."""
        if row.id not in self.forgotten and row.identity != (token, bucket_id, epoch):
            self.broken("I4", f"{statement} of token {token} is accepted on {text(row.id)}, which has {row.token}")

    def bound(self, tables: Tables, statement: str, bucket_id: bytes, epoch: int, owner: bytes | None) -> None:
        """A write has bound a job to a bucket."""
        bucket = tables.buckets.get(bucket_id)
        lawful = bucket is not None and bucket.epoch == epoch and bucket.state in ("ACTIVE", "COMPLETING")
        if not lawful or (owner is not None and bucket is not None and bucket.owner != owner):
            state = "gone" if bucket is None else f"{bucket.state} with epoch {bucket.epoch}"
            self.broken("rule C", f"{statement} binds a job to epoch {epoch} of a bucket that is {state}")

    def reassigned(self, job_id: bytes) -> None:
        """A job whose run is too slow goes to another agent."""
        self._reassigns[job_id] += 1
        if self._reassigns[job_id] > JobDefaults().max_reassigns and job_id not in self.forgotten:
            self.broken("too slow", f"{text(job_id)} is reassigned for the {self._reassigns[job_id]}. time")

    def authorised(self, job_id: bytes, token: int, bucket_id: bytes, epoch: int) -> None:
        """The master has accepted that this assignment runs."""
        self._authorised.add((job_id, token, bucket_id, epoch))

    # ------------------------------------------------------------ agents and buckets

    def renewed(self, agent_id: bytes) -> None:
        """A lease is prolonged."""

    def certified(self, agent_id: bytes, *, by_lease: bool) -> None:
        """A death certificate."""
        self.hits["certificate by lease" if by_lease else "certificate by proof"] += 1
        self._ended[agent_id] = "DEAD"
        if by_lease:
            self._dead_by_lease.add(agent_id)

    def emptying(self, bucket_id: bytes | None) -> None:
        """A rescuer looks at the first page of a bucket."""
        self._emptied.add(bucket_id)

    def retired(self, agent_id: bytes) -> None:
        """A clean exit."""
        self.hits["clean exit"] += 1
        self._ended[agent_id] = "RETIRED"

    def led(self, agent_id: bytes, epoch: int) -> None:
        """An agent holds the leader's lease."""
        if self._leaders.setdefault(epoch, agent_id) != agent_id:
            self.broken("I13", f"two leaders with epoch {epoch}")

    def bucket_event(self, tables: Tables, event: Event) -> None:
        """A bucket has moved."""
        self.trace.note(self.loop.now, "bucket", event.bucket_id.hex()[-6:], f"{event.after} epoch {event.epoch}")
        self.hits[f"bucket {event.before or 'none'} -> {event.after}"] += 1
        if event.epoch < self._epochs.get(event.bucket_id, 0):
            self.broken("I3", f"epoch of bucket {text(event.bucket_id)} falls to {event.epoch}")
        self._epochs[event.bucket_id] = event.epoch
        if event.actor and self._owners.setdefault((event.bucket_id, event.epoch), event.actor) != event.actor:
            self.broken("I6", f"two owners of bucket {text(event.bucket_id)} under epoch {event.epoch}")
        if event.after != "LOST" or event.before is None:
            return
        ended = self._ended.get(event.actor)
        if event.reason.endswith("lease ran out") and ended is None:
            self.broken("certificate", f"bucket {text(event.bucket_id)} is LOST and its owner has no certificate")
        if event.before == "READY_TO_DELETE" and event.actor:
            self.broken("I14", f"bucket {text(event.bucket_id)} is LOST although its owner had emptied and closed it")
        if ended == "RETIRED" and event.before != "READY_TO_DELETE":
            self.broken("I14", f"bucket {text(event.bucket_id)} is LOST although its owner left in order")

    def failover(self, before: Tables, after: Tables) -> None:
        """A standby without the newest commits is the master now."""
        archived = {job_id for job_id in self.concluded if after.floor <= job_id < before.floor}
        for job_id in archived:
            del self.concluded[job_id]  # with rows that the new master may never have had
        for job_id in archived | before.jobs.keys() | after.jobs.keys():
            if job_id in archived or before.jobs.get(job_id) != after.jobs.get(job_id):
                self.forgotten.add(job_id)
                if job_id in self.jobs:
                    self.jobs[job_id].excused = "failover"
        for of, loan in before.permit_loans.items():
            if after.permit_loans.get(of) != loan:
                self.loans_forgotten[of] = max(loan.permits, self.loans_forgotten.get(of, 0))
        self.forgotten_workflows |= before.workflows.keys() - after.workflows.keys()
        self.forgotten_keys |= {key for _, key in before.keys.keys() - after.keys.keys()}
        for job_id, _ in before.quarantine.keys() - after.quarantine.keys():
            if job_id in self.jobs:
                self.jobs[job_id].excused = "failover"
        for bucket_id in before.buckets.keys() | after.buckets.keys():
            if before.buckets.get(bucket_id) != after.buckets.get(bucket_id):
                there = after.buckets.get(bucket_id)
                self._epochs[bucket_id] = 0 if there is None else there.epoch
                for key in [key for key in self._owners if key[0] == bucket_id and key[1] >= self._epochs[bucket_id]]:
                    del self._owners[key]
        self._ended_batches = {
            each for each in self._ended_batches if before.batches.get(each) == after.batches.get(each)
        }
        self._leaders.clear()
        self._replaced.clear()
        self._pauses_forgotten = self.breakers.forgotten = True
        lock = after.locks.get(LOCK)
        self._lock_fence = self._fence_on_its_way = 0 if lock is None else lock.fence
        self.lock_revoked = True
        self.failovers += 1
        for agent_id in [each for each in self._ended if after.agents.get(each) != before.agents.get(each)]:
            del self._ended[agent_id]
            self._dead_by_lease.discard(agent_id)

    # ------------------------------------------------------------ locks

    @property
    def failed_over(self) -> bool:
        """A standby without the newest commits has become the master."""
        return self._pauses_forgotten

    def lock_taken(self, fence: int) -> None:
        """A program holds the lock."""
        if fence <= self._lock_fence and fence != self._fence_on_its_way:
            self.broken("lock", f"number {fence} is given after {self._lock_fence}")
        self._lock_fence, self._lock_taken_at = fence, self.loop.now

    def works_under_lock(self, fence: int, ttl_seconds: float) -> None:
        """A program has checked its lock and works on."""
        self.hits["work under a lock"] += 1
        if fence == self._lock_fence:
            return
        # An operator and a jump of the master's clock end a lock early: its holder reads that with its next renewal.
        early = self.lock_revoked or self.clocks_jumped
        if not early or self.loop.now - self._lock_taken_at > ttl_seconds:
            self.broken("lock", f"a program works under number {fence} after {self._lock_fence} was given")

    # ------------------------------------------------------------ actions that run once

    def action_begins(self, version: str) -> None:
        """A program begins to run a version of the action."""
        if version in self._actions_done and self._is_known(version):
            self.broken("once", f"version {version} runs again after it was recorded as done")

    def action_done(self, version: str, *, here: bool) -> None:
        """A program reads that a version is done; ``here``: it has recorded a run of its own."""
        self.hits["once: done here" if here else "once: done elsewhere"] += 1
        self._actions_done.add(version)

    def _is_known(self, version: str) -> bool:
        """No failover has forgotten commits about this version, nor its lock."""
        return int(version.split()[1]) == self.failovers

    # ------------------------------------------------------------ pauses

    def paused(self, subject: Subject, version: int, seconds: float | None) -> None:
        """A pause is committed, or another end of it."""
        ends = float("inf") if seconds is None else self.loop.now + seconds
        before = self._pauses.get(subject, [])
        if before and before[-1].ends <= self.loop.now:
            before = []
        self._pauses[subject] = [*before, PausedAt(version, self.loop.now, ends)]

    def resumed(self, subject: Subject) -> None:
        """A pause is over."""
        self._pauses.pop(subject, None)

    def registered(self, agent_id: bytes) -> None:
        """An agent has its row."""
        self._registered.setdefault(agent_id, self.loop.now)

    def obeys(self, agent_id: bytes, version: int) -> None:
        """An agent has confirmed a version of the pauses."""
        self._obeyed[agent_id] = version

    def _obeys_no_pause(self, process: Process, subject: Subject) -> bool:
        """True when the agent has confirmed a pause in force of this subject, or was registered after it."""
        changes = self._pauses.get(subject)
        if not changes or self._pauses_forgotten or self.loop.now >= changes[-1].ends:
            return False
        if self.clocks_jumped and any(pause.ends < float("inf") for pause in changes):
            return False
        obeyed = self._obeyed.get(process.agent_id, 0)
        registered = self._registered.get(process.agent_id, 0.0)
        self.hits["start while something is paused"] += 1
        # An agent that has not read a later end obeys until the end that it knows.
        known = [pause.ends for pause in changes if obeyed >= pause.version or registered > pause.began]
        return bool(known) and self.loop.now < known[-1]

    # ------------------------------------------------------------ runs

    def started(
        self, process: Process, identity: Identity, subjects: Sequence[Subject], *, fenced: bool, once: bool
    ) -> None:
        """A handler is called.

        Args:
            subjects: the pauses that would cover the job.
        """
        job_id, token = identity[:2]
        self.trace.note(self.loop.now, process.name, "starts", job_id.hex()[-6:], f"token {token}")
        job = self.jobs.get(job_id)
        if job is None:
            self.broken("unexpected", f"{text(job_id)} runs and was never submitted")
            return
        job.starts += 1
        if self.is_elsewhere(job_id):
            self.broken("move", f"{text(job_id)} is started while the master of another cluster has it")
        # (A submit that its client had given up may bring a second copy into any bucket.)
        early = token > 1 and self.now_us() < job.not_before_us - EARLY_US
        if early and not (job_id in self.forgotten or self.hits["fault: wall clocks jump"] or self.words_lost):
            self.broken("change", f"{text(job_id)} is started before the time to which a client has put it")
        if job.kind == GUARDED:
            self.breakers.started(RESOURCE, job_id, self._obeyed.get(process.agent_id, 0))
        for subject in subjects:
            if self._obeys_no_pause(process, subject):
                self.broken(
                    "pause", f"{text(job_id)} is started by an agent that obeys the pause of {' '.join(subject)}"
                )
        given_back = token > 1 and token == self._cancelled_held.get(job_id)
        if given_back and not (job_id in self.forgotten or self.words_lost):
            self.broken("cancel", f"{text(job_id)} is started from a copy that was given back, and cancelled as HELD")
        # (Of a copy straight from a client a second one may come at any time, from a call that it had given up.)
        asked_at = job.cancelled_at if job.flagged and token > 1 and job_id not in self.forgotten else None
        if asked_at is not None and self._renewed_at(process) > asked_at:
            self.broken("cancel", f"{text(job_id)} is started by an agent that has been told of its cancellation")
        overtaken = process.agent_id in self._dead_by_lease and identity[2] in self._emptied
        if overtaken and not (self.clocks_jumped or self.words_lost):
            self.broken("lease", f"{text(job_id)} is started by a dead agent in a bucket that is being emptied")
        if not (fenced or once) or job_id in self.forgotten:
            return
        if once and job.starts > 1:
            self.broken("at most once", f"{text(job_id)} is started for the {job.starts}. time")
        if identity not in self._authorised:
            self.broken("fenced", f"{text(job_id)} is started with token {token} without an accepted write")
        if identity in self._fenced_starts:
            self.broken("fenced", f"{text(job_id)} is started twice with token {token}")
        self._fenced_starts.add(identity)

    def _renewed_at(self, process: Process) -> float:
        """When the newest renewal was sent of which this agent has the answer."""
        held = process.parts.ownership
        if held.suspended or held.term is None:
            return 0.0
        sent: float = 2.0 * held.term.soft_until - held.term.trusted_until
        booted: float = process.parts._clock.boottime() - self.loop.now
        return sent - booted

    def acknowledged(self, job: Job, level: str) -> None:
        """A client got the acknowledgement of its job."""
        self.trace.note(self.loop.now, "client", "acknowledged", job.id.hex()[-6:], level)
        job.level = level

    def changed(self, job: Job, answer: JobChange) -> None:
        """A client got the answer to a change."""
        self.trace.note(self.loop.now, "client", "change", job.id.hex()[-6:], answer.effect.value)
        self.hits[f"change: {answer.effect.value}"] += 1
        if answer.changed and job.kind == "put later":
            job.not_before_us = min([answer.due_us or 0, *job.due_unknown_us])

    # ------------------------------------------------------------ the end

    def final(self, tables: Tables, invalid_kinds: Collection[str]) -> None:
        """After healing: everything that was acknowledged has ended, and everything else is consistent.

        Args:
            invalid_kinds: kinds of jobs that cannot end, and are accounted for elsewhere.
        """
        for job in self.jobs.values():
            if job.kind in invalid_kinds:
                continue
            row = tables.jobs.get(job.id)
            state = row.state if row is not None else self.concluded.get(job.id, "")
            if job.level and not state and not job.may_be_lost:
                self.broken("I5", f"{text(job.id)} ({job.kind}, {job.level}) is lost")
            if state == "FAILED" and row is not None and not _may_fail(job, row):
                self.broken("outcome", f"{text(job.id)} ({job.kind}) ended as FAILED: {row.error!r}")
            if row is not None and row.state in FINAL and not _ended_as_decided(job, row):
                said = f"{row.state} after attempt {row.attempt}, {row.headers[-40:]!r}, {(row.error or b'')[:100]!r}"
                self.broken("outcome", f"{text(job.id)} ({job.kind}) ended as {said}")
            if row is not None and job.kind in DECIDED:
                self.hits[f"{job.kind}: {row.state}"] += 1
            if state == "CANCELLED" and not job.cancelled:
                self.broken("outcome", f"{text(job.id)} ended as CANCELLED without a request")
        for row in tables.jobs.values():
            if row.state not in OVER and self.jobs[row.id].kind not in invalid_kinds:
                self.broken("L1", f"{text(row.id)} is still {row.state}")
        self._batches_are_counted(tables)
        for bucket in tables.buckets.values():
            if bucket.state in ("LOST", "DRAINING"):
                self.broken("L2", f"bucket {text(bucket.id)} is still {bucket.state}")
        keyed = Counter(job.key for job in self.jobs.values()
                        if job.key and (row := tables.jobs.get(job.id)) is not None and row.state == "SUCCEEDED")  # fmt: skip
        for key, count in keyed.items():
            if count > 1 and key not in self.forgotten_keys:
                self.broken("I9", f"{count} jobs of key {key}")


DECIDED = ("snoozing", "failing", "given up")
"""Jobs whose handlers, or their rules, decide how a run ends."""


def _ended_as_decided(job: Job, row: JobRow) -> bool:
    """A job that was put off has used up one attempt, in its last run; one that was failed or given up had no second."""
    error = row.error or b""
    if job.kind not in (*DECIDED, "doomed") or b'"agent_lost"' in error:
        return True
    if job.kind == "snoozing":
        return (row.state, row.attempt) == ("SUCCEEDED", 1) and b'"snoozes":%d' % job.snoozes in row.headers
    if job.kind == "doomed":
        return row.state == "FAILED"
    reason = b'"failed"' if job.kind == "failing" else b'"given_up"'
    return (row.state, row.attempt) == ("FAILED", 1) and reason in error


def _may_fail(job: Job, row: JobRow) -> bool:
    """Jobs that may end as FAILED: those made to fail, those rescued or reassigned too often, and those that must not start
    twice."""
    error = row.error or b""
    if b'"too_slow"' in error:
        return job.kind in ("slow", "slow stopped", "never in time")
    return (
        job.kind in ("doomed", "failing", "given up", "failing step")
        or b'"agent_lost"' in error
        or (job.kind.startswith("once") and b'"abandoned"' in error)
    )
