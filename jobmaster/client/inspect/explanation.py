"""Why a job does not run: what is read for the answer, and the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from jobmaster.client.lookup import SCAN_JOBS_MAX, JobLookup, copies
from jobmaster.client.submitter import SubmitChecks
from jobmaster.encryption import CannotOpen, is_sealed, opened_view
from jobmaster.handlers import Handlers
from jobmaster.model.bucket import BucketDepth, BucketState
from jobmaster.model.errors import JobMasterError
from jobmaster.model.ids import text
from jobmaster.model.inspection.explanation import Cause, Explanation, WaitCause
from jobmaster.model.inspection.views import AgentView, BucketView
from jobmaster.model.job import ErrorInfo, JobState
from jobmaster.model.job_view import JobView, moment
from jobmaster.model.pause import PauseKind, PausesInForce
from jobmaster.ports.client import InspectionMaster
from jobmaster.ports.inspection import FullLimit, InspectionStore, OrderedJob
from jobmaster.rules.pause_text import explained, remedy
from jobmaster.rules.unserved_cause import UnservedCause
from jobmaster.units import rounded_duration

AHEAD_MAX = 10_000
"""Jobs before a job that are counted at most."""
_ASKED_SECONDS = 10.0
_BATCH_BYTES = 12
_WAITING = frozenset({JobState.SAVE_PENDING, JobState.HELD, JobState.ASSIGNED, JobState.QUEUED})


class Facts(NamedTuple):
    """What was read about a job and around it."""

    view: JobView
    now_us: int
    pauses: PausesInForce
    agents: Sequence[AgentView]
    unserved: UnservedCause | None = None
    before: OrderedJob | None = None
    """The job of its ordering key that comes first."""
    ahead: int = 0
    bucket: BucketView | None = None
    depth: BucketDepth | None = None
    silent: str | None = None
    """Why its store shows nothing."""
    in_memory: bool = False
    """Its agent has claimed it."""
    limits: Sequence[FullLimit] = ()

    @property
    def owner(self) -> AgentView | None:
        """The agent that has its bucket, if it lives."""
        return next((agent for agent in self.agents if self.bucket and agent.id == self.bucket.owner), None)


class Explainer:
    """Reads what decides about one job. Made by ``Inspection``."""

    def __init__(
        self,
        master: InspectionMaster,
        stores: Mapping[str, InspectionStore],
        lookup: JobLookup,
        handlers: Handlers,
        checks: SubmitChecks,
    ) -> None:
        self._master = master
        self._stores = stores
        self._lookup = lookup
        self._handlers = handlers
        self._checks = checks

    async def explain(self, job_id: bytes, bucket_id: bytes | None) -> Explanation:
        """See ``Inspection.explain``."""
        view = await self._lookup.get(job_id, bucket_id)
        try:
            view = opened_view(self._checks.cipher, view)
        except CannotOpen:
            pass  # what is sealed is unknown
        facts = await self._facts(view)
        return Explanation(id=view.id, state=view.state, causes=tuple(causes_of(facts)))

    async def _facts(self, view: JobView) -> Facts:
        reads = self._master.inspection
        facts = Facts(view, (await reads.now()).now_us, await self._master.pauses.in_force(), [])
        if view.state.final:
            return facts
        facts = facts._replace(agents=await reads.agents(ended=False))
        if (key := view.headers.ordering_key) is not None:
            facts = facts._replace(before=await reads.ordered_before(key, view.id_bytes))
        if view.state is JobState.HELD:
            unserved = (await self._master.queries.unserved_causes([view.id_bytes])).get(view.id_bytes)
            due_us = view.due_us or facts.now_us
            ahead = await reads.ahead(view.lane, int(view.priority), due_us, AHEAD_MAX) if unserved is None else 0
            return facts._replace(unserved=unserved, ahead=ahead)
        return facts if view.bucket_id is None else await self._in_bucket(facts, view.bucket_id)

    async def _in_bucket(self, facts: Facts, bucket_id: bytes) -> Facts:
        """With the bucket of the job, its place in it, and the limits that jobs of it wait for."""
        view, reads = facts.view, self._master.inspection
        buckets = await reads.buckets(retired=True)
        facts = facts._replace(bucket=next((each for each in buckets if each.id.bytes == bucket_id), None))
        if facts.bucket is None or view.state is JobState.PROCESSING:
            return facts
        store = self._stores.get(facts.bucket.store)
        if store is None:
            facts = facts._replace(silent=f"store {facts.bucket.store} is not in the configuration of this program")
        else:
            try:
                (depth,) = await store.depths([bucket_id])
                facts = facts._replace(depth=depth, in_memory=await self._is_in_memory(view, bucket_id, depth))
            except JobMasterError as error:
                facts = facts._replace(silent=str(error))
        limits = await reads.full_limits(bucket_id, _ASKED_SECONDS)
        return facts._replace(limits=[limit for limit in limits if self._takes(view, limit)])

    async def _is_in_memory(self, view: JobView, bucket_id: bytes, depth: BucketDepth | None) -> bool:
        """Whether an agent has claimed it: its copy is in a claimed list, or in none of the bucket."""
        handle = await self._lookup.bucket(bucket_id)
        if view.state is JobState.QUEUED or handle is None:
            return view.state is JobState.QUEUED
        if (copy := (await copies(self._stores, [view.id_bytes], [handle])).get(view.id_bytes)) is not None:
            return await self._lookup.is_claimed(*copy)
        return depth is not None and depth.pending + depth.assigned <= SCAN_JOBS_MAX

    def _takes(self, view: JobView, limit: FullLimit) -> bool:
        """Whether the job needs a permit of the limit: True also where only agents know that, or its arguments are sealed."""
        handler = self._handlers.get(view.handler)
        if handler is None or is_sealed(view.arguments_json):
            return True
        try:
            uses = handler.limit_uses(view.arguments_json)
        except JobMasterError:
            return False
        return any((use.name, use.key) == (limit.name, limit.key) for use in uses)


# ------------------------------------------------------------ the answer


def causes_of(facts: Facts) -> Iterator[Cause]:
    """What keeps the job from running, the first cause first."""
    view = facts.view
    if view.state.final:
        yield _ended(view)
        return
    if view.cancel_requested:
        yield Cause(cause=WaitCause.CANCEL_REQUESTED, text="its cancellation is requested; its agent ends it")
    if view.state is JobState.PROCESSING:
        yield _running(facts)
    elif view.state is JobState.WAITING:
        yield _awaits(view)
    elif view.state in _WAITING:
        if view.state is JobState.HELD:
            yield from _not_due(facts)
        yield from _paused(facts)
        if facts.unserved is not None:
            yield _unserved(facts.unserved)
        if facts.before is not None:
            yield _ordered(facts.before, view)
        yield from map(_limited, facts.limits)
        yield from _place(facts)


def _ended(view: JobView) -> Cause:
    words = f"it has ended as {view.state.value}"
    if view.superseded_by is not None:
        words += f": job {view.superseded_by} has replaced it under its unique key"
    elif view.error is not None and view.state is not JobState.SUCCEEDED:
        words += f": {_failure(view.error)}"
    again = None if view.state is JobState.SUCCEEDED else f"jobmaster job retry {view.id} runs it again as a new job"
    return Cause(cause=WaitCause.ENDED, text=words, remedy=again, until=view.ended_at)


def _failure(error: ErrorInfo) -> str:
    """Without the message: that may contain arguments, and an explanation is shown to viewers who may not read these."""
    return error.type if error.reason == ErrorInfo("", "").reason else f"{error.type} [{error.reason}]"


def _running(facts: Facts) -> Cause:
    view, owner = facts.view, facts.owner
    at = f" at agent {owner.name} on {owner.host}" if owner is not None else ""
    for_ = f" for {rounded_duration((facts.now_us - view.changed_us) / 1e6)}" if view.changed_us else ""
    words = f"attempt {view.attempt + 1} runs{at}{for_}"
    return Cause(cause=WaitCause.RUNNING, text=words, by=owner.name if owner is not None else None)


def _awaits(view: JobView) -> Cause:
    awaited = view.headers.signal
    if awaited is not None and view.bucket_id is None:
        words = f"it waits for the signal {awaited.key!r}"
        return Cause(
            cause=WaitCause.SIGNAL, text=words, by=awaited.key, remedy=f"jobmaster signal send {awaited.key!r}"
        )
    words = "its handler has returned, and the run waits for its confirmation"
    return Cause(cause=WaitCause.CONFIRMATION, text=words, remedy="cluster.confirm_run(confirmation)")


def _not_due(facts: Facts) -> Iterator[Cause]:
    view = facts.view
    if view.due_us is None or view.due_us <= facts.now_us:
        return
    left = rounded_duration((view.due_us - facts.now_us) / 1e6)
    run_now = f"jobmaster job run-now {view.id}"
    if view.attempt and view.error is not None:
        words = f"attempt {view.attempt} has failed ({_failure(view.error)}); the next one is in {left}"
        yield Cause(cause=WaitCause.RETRY, text=words, until=moment(view.due_us), remedy=run_now)
        return
    words = f"it is held until its due time, in {left}"
    yield Cause(cause=WaitCause.DUE_LATER, text=words, until=moment(view.due_us), remedy=run_now)


def _paused(facts: Facts) -> Iterator[Cause]:
    view = facts.view
    if view.headers.batch and view.id_bytes[:_BATCH_BYTES] in facts.pauses.cancelled_ranges:
        yield Cause(cause=WaitCause.BATCH_CANCELLED, text="its batch is cancelled, and it will be cancelled with it")
    for pause in facts.pauses.pauses:
        if not pause.covers(view.handler, view.lane, view.priority.label, view.tags) or view.id_bytes in pause.trials:
            continue
        breaker = pause.kind is PauseKind.BREAKER
        yield Cause(
            cause=WaitCause.BREAKER if breaker else WaitCause.PAUSED,
            text=f"the circuit breaker {pause.value!r} is not closed: {pause.reason}"
            if breaker
            else explained([pause]),
            remedy=remedy(pause),
            until=pause.until_at,
            by=pause.value if breaker else pause.actor,
        )


def _unserved(cause: UnservedCause) -> Cause:
    if not cause.active and cause.frozen:
        kind = WaitCause.FROZEN
    elif cause.requires:
        kind = WaitCause.CAPABILITY
    elif cause.known and not cause.active:
        kind = WaitCause.NO_BUCKET
    else:
        kind = WaitCause.NO_HANDLER
    return Cause(cause=kind, text=cause.reason, remedy=cause.remedy, by=cause.group)


def _ordered(before: OrderedJob, view: JobView) -> Cause:
    job = text(before.id)
    words = f"job {job} of its ordering key {view.headers.ordering_key!r} comes first, and is {before.state.value}"
    return Cause(cause=WaitCause.ORDERING_KEY, text=words, remedy=f"jobmaster job explain {job}", by=job)


def _limited(limit: FullLimit) -> Cause:
    key = f" (key {limit.key!r})" if limit.key else ""
    taken = f"{limit.taken} of {limit.running} permits are taken" if limit.running is not None else ""
    rate = f"{limit.rate:g} may start in a second" if limit.rate is not None else ""
    facts = ", ".join(filter(None, (taken, rate)))
    words = f"the limit {limit.name!r}{key} has no permit for it: {facts}"
    return Cause(cause=WaitCause.LIMIT, text=words, remedy=f"jobmaster limit show {limit.name}", by=limit.name)


def _place(facts: Facts) -> Iterator[Cause]:
    """Where it waits, once nothing else keeps it."""
    view = facts.view
    if view.state is JobState.HELD:
        if facts.unserved is None and (view.due_us or 0) <= facts.now_us:
            ahead = f"{facts.ahead}{'+' if facts.ahead == AHEAD_MAX else ''}"
            words = f"it is due and waits in the master; {ahead} job(s) of its lane and priority are due before it"
            rate = sum(agent.statistics.ended_per_second for agent in facts.agents if agent.statistics and agent.alive)
            if facts.ahead and rate > 0:
                words += f", about {rounded_duration(facts.ahead / rate)} at the present rate of all agents"
            yield Cause(cause=WaitCause.QUEUE, text=words, ahead=facts.ahead)
        return
    bucket, owner = facts.bucket, facts.owner
    if bucket is None:
        yield Cause(
            cause=WaitCause.BUCKET_LOST, text="its bucket has no row any more; the job comes back to the master"
        )
        return
    name = f"bucket {bucket.id}"
    if bucket.state in (BucketState.LOST, BucketState.DRAINING):
        doing = "is being rescued" if bucket.state is BucketState.DRAINING else "waits for its rescue"
        yield Cause(cause=WaitCause.BUCKET_LOST, text=f"the agent of its {name} is gone; the bucket {doing}", by=name)
        return
    if bucket.state is BucketState.FROZEN:
        yield Cause(
            cause=WaitCause.FROZEN, text=f"its {name} is frozen", remedy=f"jobmaster bucket unfreeze {bucket.id}"
        )
    if not bucket.owner_leased:
        words = f"agent {bucket.owner_name or bucket.owner} of its {name} has not renewed its lease"
        yield Cause(cause=WaitCause.OWNER_SILENT, text=words, by=bucket.owner_name)
    yield _in_bucket(facts, bucket, owner)


def _in_bucket(facts: Facts, bucket: BucketView, owner: AgentView | None) -> Cause:
    agent = f"agent {bucket.owner_name or bucket.owner}"
    if facts.silent is not None:
        words = f"its place in bucket {bucket.id} is not known: {facts.silent}"
        return Cause(cause=WaitCause.STORE_SILENT, text=words, by=bucket.store)
    if facts.in_memory:
        busy = owner.statistics if owner is not None else None
        slots = f" ({busy.running} of {busy.slots} slots were busy, {busy.queued} jobs waited)" if busy else ""
        words = f"{agent} has it in memory, and starts it when a slot is free{slots}"
        return Cause(cause=WaitCause.SLOT, text=words, by=bucket.owner_name, ahead=busy.queued if busy else None)
    there = facts.depth.pending + facts.depth.assigned if facts.depth is not None else 0
    words = f"it waits in bucket {bucket.id} of {agent}, in which {there} job(s) wait"
    return Cause(cause=WaitCause.BUCKET, text=words, by=bucket.owner_name, ahead=max(there - 1, 0))
