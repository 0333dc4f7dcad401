"""Every guard left out, one at a time: the simulation must notice. A switch is a name for the simulated statements to leave
out, or other code in the place of the product's own; the product has no hook for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobmaster.agentstore.errors import OutOfMemory
from jobmaster.client.bulk import BulkSubmit
from jobmaster.client.jobs.changes import JobChanger
from jobmaster.client.locks import held_lock
from jobmaster.client.lookup import SCAN_JOBS_MAX
from jobmaster.master import buckets
from jobmaster.master.driver.batches import NOTHING, Batch, ids_of
from jobmaster.master.flow.limits import Limits
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import JobMasterError, Unavailable
from jobmaster.model.flow.limit import LimitUse
from jobmaster.model.ids import Fence, Identity
from jobmaster.model.job import Entry, ErrorInfo, InFlightRow
from jobmaster.model.job_change import JobChange, NewValues
from jobmaster.model.job_view import JobView
from jobmaster.ports import Admission, Written
from jobmaster.rules.batching import BatchSize
from jobmaster.rules.lease import Term
from jobmaster.rules.ownership import OwnershipStatus, ownership_status
from jobmaster_agents.buckets import ownership_check
from jobmaster_agents.buckets.graceful_shutdown import GracefulShutdown
from jobmaster_agents.buckets.memory_recovery import MemoryRecovery, RecoveryResult
from jobmaster_agents.buckets.pause_watch import PauseWatch
from jobmaster_agents.execute.cancellation import Cancellation
from jobmaster_agents.execute.executor import Executor
from jobmaster_agents.fetch.claimer import Claimer
from jobmaster_agents.lease.heartbeat import Heartbeat, StoreBeat
from jobmaster_agents.outcomes import bucket_enqueuer, in_flight, kept
from jobmaster_agents.outcomes.bucket_enqueuer import _Put
from jobmaster_agents.outcomes.outcome_builder import OutcomeBuilder, StopCause, is_at_most_once
from jobmaster_agents.outcomes.writer import OutcomeWriter
from jobmaster_agents.rescue.rescuer import Rescuer, StoreRescuer
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase, by_bucket
from jobmaster_agents.state.ownership import OwnedBucket, Ownership
from jobmaster_agents.state.pauses import Pauses
from jobmaster_agents.state.store_reachability import StoreReachability
from jobmaster_agents.state.time_limits import complete_seconds
from tests.simulation.faults import scenarios
from tests.simulation.faults.scenarios import Scenario
from tests.simulation.history import History, Result
from tests.simulation.runtime.patches import Patch
from tests.simulation.store.intake_functions import IntakeFunctions
from tests.simulation.workload.batches import fill_batches
from tests.simulation.workload.clients import COMPLETE_SECONDS

SEEDS_MAX = 2000


@dataclass(frozen=True)
class Ablation:
    """What is left out."""

    about: str
    without: frozenset[str] = frozenset()
    patches: Callable[[], list[Patch]] = field(default=list)
    scenario: Scenario | None = None
    """Faults that need the guard, where drawn ones seldom do."""
    limited: bool | None = None
    """There are jobs with limits in every history."""
    has_unique: bool = False
    """Every history has jobs with unique keys."""
    has_breaker: bool = False
    """Every history has jobs with a circuit breaker."""
    has_bulk: bool = False
    """Every history has bulk operations."""
    has_move: bool = False
    """In every history the jobs move to the master of another cluster."""

    def run(self, seed: int) -> Result:
        """One history without the guard."""
        return self._history(seed, self.scenario, self.without).run(self.patches())

    def with_every_guard(self, seed: int, *, scenario: bool = False) -> Result:
        """The same jobs with it, and with the same faults if asked for."""
        return self._history(seed, self.scenario if scenario else None, frozenset()).run()

    def _history(self, seed: int, scenario: Scenario | None, without: frozenset[str]) -> History:
        return History(
            seed,
            without=without,
            scenario=scenario,
            limited=self.limited,
            has_unique=self.has_unique,
            has_breaker=self.has_breaker,
            has_bulk=self.has_bulk,
            has_move=self.has_move,
        )


def _confused() -> list[Patch]:
    write = Batch.write

    async def refused_is_refused(self: Batch[Any], rows: Sequence[Any]) -> Written:
        answer = await write(self, rows)
        return answer if answer.bucket_ok else Written(True, NOTHING, refused=frozenset(ids_of(rows)))

    return [(Batch, "write", refused_is_refused)]


def _deleted_first() -> list[Patch]:
    write_copy = OutcomeWriter._write_copy

    async def delete_then_write(self: OutcomeWriter, jobs: Sequence[ClaimedJob]) -> None:
        for owned, mine in by_bucket(jobs):
            over = {
                job.claimed_list.name
                for job in mine
                if all(j.safe or j.phase is JobPhase.ENDED for j in job.claimed_list.jobs)
            }
            try:
                await self._store.settle(owned.fence, sorted(over), [])
            except JobMasterError:
                continue
        await write_copy(self, jobs)

    return [(OutcomeWriter, "_write_copy", delete_then_write)]


def _kept_starts_are_forgotten() -> list[Patch]:
    def may_leave_memory(job: ClaimedJob) -> bool:
        return job.kept and job.phase is JobPhase.ENDED and job.followers is None

    return [(kept, "_may_leave_memory", may_leave_memory)]


def _never_read_again() -> list[Patch]:
    async def nothing(self: Claimer) -> None:
        return None

    return [(Claimer, "adopt_unknown_lists", nothing)]


def _trusting() -> list[Patch]:
    trust = Ownership.trust

    def for_ever(self: Ownership, term: Term) -> None:
        trust(self, Term(1e9, 1e9, 1e9))

    def any_time(self: Heartbeat, sent: float, lease_seconds: float) -> bool:
        self._ownership.trust(Term(0.0, 0.0, 0.0))
        return True

    return [(Ownership, "trust", for_ever), (Heartbeat, "_extend", any_time)]


def _retired_is_lost() -> list[Patch]:
    """Buckets leave memory together, at the end of the exit; the master's word on a retired one is that it is not theirs; and
    an owner may declare any bucket of its own LOST."""
    complete = GracefulShutdown.complete

    async def together(
        self: GracefulShutdown,
        claimers: Sequence[Claimer],
        grace_seconds: float,
        reason: str,
        on_retired: Callable[[Claimer], None],
    ) -> list[bytes]:
        left = await complete(self, claimers, grace_seconds, reason, lambda claimer: None)
        for claimer in claimers:
            if claimer.owned.fence.bucket_id not in left:
                on_retired(claimer)
        return left

    sources_of = buckets.sources_of

    def any_state(to: BucketState) -> list[str]:
        return [*sources_of(to), "READY_TO_DELETE"] if to is BucketState.LOST else sources_of(to)

    def not_retired(bucket: Bucket | None, fence: Fence) -> OwnershipStatus:
        found = ownership_status(bucket, fence)
        return OwnershipStatus.LOST if found is OwnershipStatus.RETIRED else found

    return [
        (GracefulShutdown, "complete", together),
        (ownership_check, "ownership_status", not_retired),
        (buckets, "sources_of", any_state),
    ]


def _forgotten() -> list[Patch]:
    async def nothing(self: MemoryRecovery, owned: OwnedBucket) -> RecoveryResult:
        return RecoveryResult(0, 0)

    return [(MemoryRecovery, "write", nothing)]


def _in_memory_alone() -> list[Patch]:
    def stop_what_is_here(self: Cancellation, job_ids: Iterable[bytes]) -> list[bytes]:
        for job in filter(None, map(self._present, job_ids)):
            if not job.cancelled:
                self._stop(job, StopCause.CANCEL)
        return []

    return [(Cancellation, "requested", stop_what_is_here)]


def _one_rescuer() -> list[Patch]:
    make = Rescuer.__init__

    def one_after_the_other(self: Rescuer, by_store: Mapping[str, StoreRescuer]) -> None:
        make(self, by_store)
        turn = asyncio.Lock()
        for each in by_store.values():
            each._lock = turn

    def always(self: StoreReachability, store: str) -> bool:
        return store in self._stores

    def never(self: StoreReachability, store: str) -> float | None:
        return None

    return [
        (Rescuer, "__init__", one_after_the_other),
        (StoreReachability, "answers", always),
        (StoreReachability, "silent_seconds", never),
    ]


def _beats_need_room() -> list[Patch]:
    call = IntakeFunctions.call

    def without_beats(self: IntakeFunctions, verb: str, keys: Sequence[bytes], args: Sequence[Any]) -> list[Any]:
        if self.full and verb == "beat":
            raise OutOfMemory("beat: out of memory")
        return call(self, verb, keys, args)

    async def refused(self: StoreBeat) -> None:
        try:
            await self._store.beat(self._agent_id, 1.0)
        except OutOfMemory as error:
            raise Unavailable(error.message) from None

    return [(IntakeFunctions, "call", without_beats), (StoreBeat, "_beat", refused)]


def _locks_for_ever() -> list[Patch]:
    def endless(present: Term | None, sent: float, replied: float, lease_seconds: float) -> Term:
        return Term(1e9, 1e9, 1e9)

    return [(held_lock, "renewed", endless)]


def _as_large() -> list[Patch]:
    def as_it_is(self: BatchSize, rows: int, size: int) -> None:
        return None

    return [(BatchSize, "timed_out", as_it_is)]


def _opens_unread() -> list[Patch]:
    tick = PauseWatch.tick

    async def unread(self: PauseWatch) -> float:
        if not self.read_once.is_set():
            self.read_once.set()
            return 3600.0  # the next renewal shows the version
        return await tick(self)

    return [(PauseWatch, "tick", unread)]


def _memory_goes_on() -> list[Patch]:
    def nothing(self: Executor) -> None:
        return None

    return [(Executor, "give_back_paused", nothing)]


def _claimed_goes_on() -> list[Patch]:
    def all_of_them(self: Executor, jobs: Iterable[ClaimedJob]) -> list[ClaimedJob]:
        return list(jobs)

    return [(Executor, "_unpaused", all_of_them)]


def _every_job_starts() -> list[Patch]:
    collect = Pauses._collect

    def without_breakers(self: Pauses) -> None:
        collect(self)
        self.barred = frozenset()

    return [(Pauses, "_collect", without_breakers)]


def _snoozes_are_attempts() -> list[Patch]:
    def used_up(
        self: OutcomeBuilder, job: ClaimedJob, info: ErrorInfo, started: float, ended: float, after: float | None
    ) -> None:
        self._fail_attempt(job, info, started, ended, after)

    return [(OutcomeBuilder, "snoozed", used_up)]


def _failures_are_retried() -> list[Patch]:
    def tried_again(self: OutcomeBuilder, job: ClaimedJob, info: ErrorInfo, started: float, ended: float) -> None:
        self._fail_attempt(job, info, started, ended)

    return [(OutcomeBuilder, "failed", tried_again)]


def _slow_once() -> list[Patch]:
    """The owner sets a deadline for every job whose headers or handler have one; those of ``once`` have one here."""

    def of_every_job(job: ClaimedJob) -> float | None:
        return complete_seconds(job) or (COMPLETE_SECONDS if is_at_most_once(job) else None)

    return [(in_flight, "complete_seconds", of_every_job)]


def _unanswered_is_not_done() -> list[Patch]:
    def given_up(put: _Put) -> Sequence[Entry]:
        put.until = None
        return put.entries

    return [(_Put, "left", property(given_up)), (bucket_enqueuer, "_PUTS", 1)]


def _row_before_recall() -> list[Patch]:
    async def row_first(
        self: JobChanger, view: JobView, identity: Identity, new: NewValues, actor: str
    ) -> JobChange | None:
        row = await self._master.changes.hold_recalled(view.id_bytes, identity, new, actor)
        handle = await self._lookup.bucket(identity.bucket_id)
        if handle is not None:
            store = self._stores[handle.store_handle.name]
            await store.recall(view.id_bytes, identity, view.due_us or 0, SCAN_JOBS_MAX)
        return None if row is None else await self._changed(view.id_bytes, row)

    return [(JobChanger, "_recall", row_first)]


def _denials_ignored() -> list[Patch]:
    admit = Limits.admit

    async def all_of_them(
        self: Limits, fence: Fence, rows: Sequence[InFlightRow], uses: Mapping[bytes, Sequence[LimitUse]]
    ) -> Admission:
        answer = await admit(self, fence, rows, uses)
        return Admission(answer.written._replace(accepted=answer.written.accepted | answer.denied.keys()), {})

    return [(Limits, "admit", all_of_them)]


def _settled_with_an_id() -> list[Patch]:
    def nothing(self: BulkSubmit) -> None:
        return None

    return [(BulkSubmit, "lowest_unsettled", nothing)]


ABLATIONS = {
    "identity on the row": Ablation(
        "an outcome or in-flight write asks whether the row is in flight, not whose it is", frozenset({"identity"})
    ),
    "bucket lock of binding writes": Ablation(
        "binding writes read the bucket as their statement saw it when it began, and lock nothing",
        frozenset({"bucket lock"}),
        scenario=scenarios.statements_that_meet,
    ),
    "two kinds of refusal": Ablation("a refusal by the bucket is taken for one by the row", patches=_confused),
    "certificate": Ablation(
        "buckets are lost by a join on a stale lease, without a compare-and-set on the agent",
        frozenset({"certificate"}),
    ),
    "commit before delete": Ablation(
        "claimed lists are deleted before the outcomes are committed", patches=_deleted_first
    ),
    "re-reading of lists": Ablation(
        "lists in the store that memory does not know are not looked for",
        patches=_never_read_again,
        scenario=scenarios.claims_without_answers,
    ),
    "self-fence": Ablation(
        "an agent trusts its lease for ever", patches=_trusting, scenario=scenarios.agents_that_stand_still
    ),
    "rescuer's recheck": Ablation(
        "a rescuer moves every entry it finds, whatever its row says", frozenset({"rescuer's recheck"})
    ),
    "sweep": Ablation("a rescue ends without giving back the rows that still name the bucket", frozenset({"sweep"})),
    "salvage": Ablation(
        "an owner forgets what it holds of a bucket that its store has lost",
        patches=_forgotten,
        scenario=scenarios.emptied_stores,
    ),
    "retired is not lost": Ablation(
        "an owner that completes takes a bucket that it has retired, and the master does not count any more, for a lost one",
        patches=_retired_is_lost,
    ),
    "cancel of what waits": Ablation(
        "an owner that hears of a cancel request stops what it has in memory, and nothing else",
        patches=_in_memory_alone,
    ),
    "one rescuer for each store": Ablation(
        "one rescue for all stores, which asks a silent one again and again", patches=_one_rescuer
    ),
    "beats of a full store": Ablation("a store at its `maxmemory` takes no beats", patches=_beats_need_room),
    "halving of what timed out": Ablation(
        "a batch that the master did not finish in its time is sent again as it is", patches=_as_large
    ),
    "pauses before the first bucket": Ablation(
        "an agent opens its buckets before it has read the pauses", patches=_opens_unread
    ),
    "pause of what waits in memory": Ablation(
        "an agent confirms a pause and starts what it covers and what had been claimed before",
        patches=_memory_goes_on,
        scenario=scenarios.pauses_of_full_memories,
    ),
    "pause of what is claimed": Ablation(
        "an agent starts what it claims, whatever is paused", patches=_claimed_goes_on
    ),
    "a snooze is no attempt": Ablation("a run that puts its job off uses up an attempt", patches=_snoozes_are_attempts),
    "a decided failure is the end": Ablation(
        "a job that its handler fails, or its rules give up, is tried again", patches=_failures_are_retried
    ),
    "one start of a slow job": Ablation(
        "a job that must not be started twice has a complete_time, and is given to another agent after it",
        frozenset({"one start"}),
        _slow_once,
    ),
    "most reassigns": Ablation(
        "a job whose every run is too slow is given to one agent after the other",
        frozenset({"most reassigns"}),
        scenario=scenarios.jobs_never_in_time,
    ),
    "rows of puts without an answer": Ablation(
        "jobs whose put was not answered are given back although their copies may lie in the bucket",
        patches=_unanswered_is_not_done,
        scenario=scenarios.puts_without_answers,
    ),
    "recall before the row": Ablation(
        "a client that changes a job holds its row first, and recalls its copy second",
        patches=_row_before_recall,
        scenario=scenarios.changes_without_recall,
    ),
    "identity of what was recalled": Ablation(
        "the row of a recalled job is held whatever its assignment is by then",
        frozenset({"identity of a recall"}),
        scenario=scenarios.changes_executed_late,
    ),
    "fires are compared and set": Ablation(
        "a fire is decided by a schedule's row and lines as the statement saw them when it began",
        frozenset({"schedule compare-and-set"}),
        scenario=scenarios.statements_that_meet,
    ),
    "lines of missed fires": Ablation(
        "fires that the misfire rule gives up leave no line", frozenset({"misfire lines"})
    ),
    "superseded definitions": Ablation(
        "the definition of a schedule that an agent declares replaces that of every agent that started earlier",
        frozenset({"superseded definitions"}),
        scenario=scenarios.deploy_taken_back,
    ),
    "number of a lock's renewal": Ablation(
        "the holder of a lock renews it by its name alone", frozenset({"lock fence"})
    ),
    "end of a lock": Ablation("a lock is taken from a holder whose ttl is not over", frozenset({"lock expiry"})),
    "second look at an action": Ablation(
        "a program that has got the lock of an action does not look again whether it is done",
        frozenset({"second look"}),
    ),
    "loss of a lock": Ablation("a program trusts its lock until a renewal is refused", patches=_locks_for_ever),
    "lock of a workflow": Ablation(
        "of two steps that end at once, each sees the other one as it was before",
        frozenset({"join lock"}),
        scenario=scenarios.orders,
    ),
    "every end of a step": Ablation(
        "what follows a step is decided where agents record outcomes, and not where a rescue or a cancel ends it",
        frozenset({"every end"}),
        scenario=scenarios.orders,
    ),
    "cancel of the steps that run": Ablation(
        "the cancel of a workflow begins nothing more, and leaves the jobs of its steps alone",
        frozenset({"cancel cascade"}),
        scenario=scenarios.orders,
    ),
    "one end of a batch": Ablation(
        "a conclusion asks whether the jobs of a batch have ended, and not whether the batch has",
        frozenset({"batch conclusion"}),
        scenario=fill_batches,
    ),
    "what a producer has settled": Ablation(
        "a producer takes jobs for stored as soon as they have an id, and its successor passes over them",
        patches=_settled_with_an_id,
        scenario=fill_batches,
    ),
    "count of a batch": Ablation(
        "the tallies of the agents end a batch, and no count of its jobs",
        frozenset({"batch count"}),
        scenario=fill_batches,
    ),
    "jobs of a batch that retention takes": Ablation(
        "rows leave the master uncounted, whatever their batch still waits for",
        frozenset({"batch drop"}),
        scenario=fill_batches,
    ),
    "lock of a signal's key": Ablation(
        "a signal, and a job that begins to wait for it, see what was there when their statements began",
        frozenset({"signal lock"}),
        scenario=scenarios.jobs_and_signals_that_meet,
    ),
    "lock of the key of a step's signal": Ablation(
        "a signal, and a step that begins to wait for it, see what was there when their statements began",
        frozenset({"signal lock of a step"}),
        scenario=scenarios.jobs_and_signals_that_meet,
    ),
    "id of a signal": Ablation(
        "a signal that is sent again under its id is delivered again",
        frozenset({"signal id"}),
        scenario=scenarios.jobs_and_signals_that_meet,
    ),
    "count of permits after their lock": Ablation(
        "an admission counts the permits that it saw when it began: no lock, or the count in the statement that locks",
        frozenset({"permit lock"}),
        scenario=scenarios.statements_that_meet,
        limited=True,
    ),
    "count of what is lent": Ablation(
        "permits that are lent to agents are free for admissions and other agents",
        frozenset({"lent permits"}),
        limited=True,
    ),
    "loans of the dead": Ablation(
        "a death certificate ends the loans of its agent, whose runs go on while its store confirms its buckets",
        frozenset({"loans of the dead"}),
        scenario=scenarios.borrowers_cut_off,
        limited=True,
    ),
    "sequence of a loan": Ablation(
        "a question for permits that comes late counts, and its answer is about another moment",
        frozenset({"sequence of a loan"}),
        scenario=scenarios.questions_that_come_late,
        limited=True,
    ),
    "what a loan keeps": Ablation(
        "an agent whose share is less than it has in use is left with its share",
        frozenset({"what a loan keeps"}),
        scenario=scenarios.questions_that_come_late,
        limited=True,
    ),
    "no start without a permit": Ablation(
        "an agent starts the jobs that were denied a permit", patches=_denials_ignored, limited=True
    ),
    "a start that is sent again": Ablation(
        "an admission does not ask whether a job has begun: it waits for the permit that it has itself",
        frozenset({"begun"}),
        limited=True,
    ),
    "weight of permits": Ablation(
        "a job takes one permit, whatever its weight", frozenset({"permit weight"}), limited=True
    ),
    "order of ordering keys": Ablation(
        "a job of an ordering key starts when no other one runs, in the order of their arrival",
        frozenset({"order of keys"}),
        limited=True,
    ),
    "breakers are compared and set": Ablation(
        "a breaker changes its state by numbers that an agent has read before the last change",
        frozenset({"breaker compare-and-set"}),
        scenario=scenarios.rival_leaders,
        has_breaker=True,
    ),
    "one choice of trials": Ablation(
        "two agents that both take themselves for the leader choose trials side by side",
        frozenset({"one choice of trials"}),
        scenario=scenarios.rival_leaders,
        has_breaker=True,
    ),
    "bound of trials": Ablation(
        "a half-open breaker lets every job through", frozenset({"bound of trials"}), has_breaker=True
    ),
    "results of the dead": Ablation(
        "what an agent has counted for a breaker is lost with it", frozenset({"results of the dead"}), has_breaker=True
    ),
    "trials alone start": Ablation(
        "an agent starts jobs of a breaker that is not closed", patches=_every_job_starts, has_breaker=True
    ),
    "hold of a unique key": Ablation(
        "a submit takes a unique key whose job lives", frozenset({"unique key"}), has_unique=True
    ),
    "lock of a unique key": Ablation(
        "two submits of a unique key decide by what they saw when they began",
        frozenset({"unique lock"}),
        has_unique=True,
    ),
    "mark of a replaced job": Ablation(
        "an agent that puts off a job which was replaced meanwhile writes the headers that it has",
        frozenset({"mark of the replaced"}),
        has_unique=True,
    ),
    "cursor of a bulk operation": Ablation(
        "a page is written although another one was written since its leader has looked",
        frozenset({"cursor of a bulk operation"}),
        has_bulk=True,
    ),
    "end of a bulk operation": Ablation(
        "a page is written although its operation was cancelled meanwhile",
        frozenset({"end of a bulk operation"}),
        has_bulk=True,
    ),
    "quiet before a page": Ablation(
        "jobs move to another master while agents of the old one have buckets, or may open some",
        frozenset({"open buckets", "leases"}),
        has_move=True,
    ),
    "leases before a page": Ablation(
        "jobs move to another master while an agent that does not know the mode may open a bucket",
        frozenset({"leases"}),
        has_move=True,
    ),
    "locks of a page": Ablation(
        "jobs that move are not locked from the look at their rows until they are MOVED",
        frozenset({"lock of a page"}),
        has_move=True,
    ),
    "a page in doubt": Ablation(
        "a cluster is active again while jobs may be in both masters", frozenset({"page in doubt"}), has_move=True
    ),
    "rows that are there": Ablation(
        "a page that is sent again replaces the rows that the other master has of it",
        frozenset({"rows that are there"}),
        has_move=True,
    ),
    "a kept start": Ablation(
        "a job whose start was written leaves memory when its outcome is kept: a second copy starts under the same row",
        patches=_kept_starts_are_forgotten,
        scenario=scenarios.second_copies_in_an_outage,
    ),
    "watermark": Ablation("what lies below the floor may be written again", frozenset({"watermark"})),
}

KNOWN_SEEDS = {
    "a page in doubt": 38,
    "a start that is sent again": 95,
    "beats of a full store": 14,
    "breakers are compared and set": 9,
    "count of a batch": 50,
    "count of permits after their lock": 2,
    "cursor of a bulk operation": 215,
    "end of a bulk operation": 155,
    "every end of a step": 2,
    "fires are compared and set": 5,
    "halving of what timed out": 11,
    "jobs of a batch that retention takes": 9,
    "leases before a page": 199,
    "lines of missed fires": 22,
    "locks of a page": 6,
    "loss of a lock": 5,
    "mark of a replaced job": 17,
    "number of a lock's renewal": 234,
    "one choice of trials": 25,
    "one end of a batch": 9,
    "one rescuer for each store": 7,
    "one start of a slow job": 22,
    "pause of what is claimed": 3,
    "pauses before the first bucket": 37,
    "re-reading of lists": 2,
    "results of the dead": 25,
    "retired is not lost": 17,
    "salvage": 5,
    "second look at an action": 158,
    "self-fence": 11,
    "two kinds of refusal": 5,
    "watermark": 14,
    "what a loan keeps": 10,
    "what a producer has settled": 15,
}
"""A seed that has noticed it, where that took more than a few. The tests begin their search there; the command does not, and
prints the seed that it has found."""
