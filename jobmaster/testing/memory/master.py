"""The master of a cluster in memory, as far as clients call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from jobmaster.handlers import Handlers
from jobmaster.model.agent import Agent, HandlerSpec
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.bucket_map import MapChanges, MapVersion, OwnerTraits
from jobmaster.model.errors import InputError
from jobmaster.model.flow.batch import range_of
from jobmaster.model.flow.tenant import TenantView, tenant_of
from jobmaster.model.ids import Fence, Identity
from jobmaster.model.job import Entry, JobState, NewJob
from jobmaster.model.job_change import ChangedRow, NewValues
from jobmaster.model.job_view import Attempt, JobFilter, JobView
from jobmaster.model.pause import Pause, PauseFollower, PauseKind, PausesInForce
from jobmaster.ports import (
    CountStep,
    EndedRow,
    JobsStep,
    SentBefore,
    SentRow,
    Written,
    WrittenPause,
)
from jobmaster.rules.capabilities import CAPABILITIES
from jobmaster.rules.failure_group import error_fingerprint
from jobmaster.rules.unserved_cause import UnservedCause
from jobmaster.testing.memory.batches import MemoryBatches
from jobmaster.testing.memory.breakers import MemoryBreakers
from jobmaster.testing.memory.bulk_operations import MemoryBulkOperations
from jobmaster.testing.memory.events import MemoryEvents
from jobmaster.testing.memory.inspection import MemoryInspection
from jobmaster.testing.memory.job_logs import MemoryJobLogs
from jobmaster.testing.memory.limits import MemoryLimits
from jobmaster.testing.memory.locks import MemoryLocks
from jobmaster.testing.memory.rows import MemoryJob, MemoryRows
from jobmaster.testing.memory.schedules import MemorySchedules
from jobmaster.testing.memory.signals import MemorySignals
from jobmaster.testing.memory.uniqueness import MemoryUniqueness
from jobmaster.testing.memory.workflows import MemoryWorkflows


class MemoryMaster:
    """``ClientMaster`` over rows in memory: one object for all parts.

    Args:
        handlers: what agents of this cluster have.
    """

    def __init__(self, rows: MemoryRows, handlers: Handlers) -> None:
        self._rows = rows
        self.limits = MemoryLimits(handlers, rows.clock)
        self._handlers = rows.handlers = handlers
        self.schedules = MemorySchedules(rows, handlers)
        self.signals = MemorySignals(rows)
        self.workflows = MemoryWorkflows()
        self.bulk = MemoryBulkOperations()
        self.events = MemoryEvents()
        self.uniqueness = MemoryUniqueness(rows)
        self.inspection = MemoryInspection(rows, self._fitting)

    @property
    def intake(self) -> MemoryMaster:
        return self

    @property
    def queries(self) -> MemoryMaster:
        return self

    @property
    def requests(self) -> MemoryMaster:
        return self

    @property
    def changes(self) -> MemoryMaster:
        return self

    @property
    def onboarding(self) -> MemoryMaster:
        return self

    @property
    def pauses(self) -> MemoryPauses:
        return MemoryPauses(self._rows)

    @property
    def breakers(self) -> MemoryBreakers:
        return self._rows.breakers

    @property
    def locks(self) -> MemoryLocks:
        return self._rows.locks

    @property
    def batches(self) -> MemoryBatches:
        return self._rows.batches

    @property
    def job_logs(self) -> MemoryJobLogs:
        return self._rows.job_logs

    # ------------------------------------------------------------ first rows

    async def insert_held(self, jobs: Sequence[NewJob]) -> Written:
        """HELD rows."""
        return self._insert(jobs, None)

    async def insert_held_in(self, connection: Any, jobs: Sequence[NewJob]) -> Written:
        """HELD rows that count when the caller's transaction is committed, if the cluster made it; else at once."""
        uncommitted = self._rows.uncommitted.get(id(connection))
        if uncommitted is None:
            return self._insert(jobs, None)
        new = [job for job in jobs if job.id not in self._rows.jobs]
        uncommitted += new
        accepted = frozenset(job.id for job in new)
        return Written(True, accepted, refused=frozenset(job.id for job in jobs) - accepted)

    @property
    def submit_sql(self) -> str:
        """There is no database to run SQL in."""
        raise InputError(
            "a cluster in memory has no SQL: it takes no connection of psycopg, SQLAlchemy or Django, and gives no statement",
            hint="use the fixture jobmaster_cluster, which has a real master",
        )

    async def insert_assigned(self, bucket_id: bytes, epoch: int, jobs: Sequence[NewJob]) -> Written:
        """ASSIGNED rows."""
        return self._insert(jobs, bucket_id)

    def _insert(self, jobs: Sequence[NewJob], bucket_id: bytes | None) -> Written:
        accepted = frozenset(job.id for job in jobs if self._rows.insert(job, bucket_id))
        return Written(True, accepted, refused=frozenset(job.id for job in jobs) - accepted)

    async def reserve_keys(
        self, scope: str, keys: Sequence[tuple[str, bytes, bytes]]
    ) -> list[tuple[str, bytes, bytes]]:
        """The holder of each key."""
        with self._rows.lock:
            return [(key, *self._rows.keys.setdefault((scope, key), (job_id, digest))) for key, job_id, digest in keys]

    async def release(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> Written:
        """No bucket is ever full."""
        raise AssertionError("a bucket in memory has room")

    # ------------------------------------------------------------ agents and buckets

    @property
    def members(self) -> MemoryMaster:
        return self

    @property
    def buckets(self) -> MemoryMaster:
        return self

    async def request_drain(self, agent_id: bytes, actor: str) -> bool:
        """There is no agent process."""
        return False

    async def freeze(
        self, bucket_ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Bucket]:
        """There is no bucket."""
        return []

    async def unfreeze(
        self, bucket_ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Bucket]:
        """There is no bucket."""
        return []

    # ------------------------------------------------------------ requests

    async def cancel(self, job_id: bytes, *, tombstone: NewJob | None, actor: str) -> JobState | None:
        """A job that waits is CANCELLED, one that runs gets a flag."""
        with self._rows.lock:
            job = self._rows.jobs.get(job_id)
            return None if job is None else job.cancel()

    async def confirm(
        self, job_id: bytes, identity: Identity, result: bytes | None, actor: str
    ) -> tuple[bool, JobState | None]:
        """Confirm the run that waits for it, in time."""
        with self._rows.lock:
            job = self._rows.jobs.get(job_id)
            if job is None:
                return False, None
            if job.entry.token == identity.token and job.state is JobState.SUCCEEDED:
                return True, job.state
            if job.entry.token != identity.token or job.state not in (JobState.WAITING, JobState.PROCESSING):
                return False, job.state
            job.state, job.result = JobState.SUCCEEDED, result
            return True, job.state

    async def note(self, actor: str, action: str, acts: Mapping[str, Mapping[str, object]]) -> None:
        """There is no operator log."""

    async def note_once(self, actor: str, action: str, subject: str, detail: Mapping[str, object]) -> None:
        """There is no operator log."""

    async def change_held(self, job_id: bytes, new: NewValues, actor: str) -> ChangedRow | None:
        """A job that waits gets the new values; it has a row then."""
        return self._rows.change(job_id, new)

    async def assign_copy(self, bucket_id: bytes, epoch: int, priority: int, lane: str, copy: Entry) -> bool:
        """Every job that waits can be changed where it is."""
        raise AssertionError("a job in memory needs no recall")

    async def hold_recalled(self, job_id: bytes, identity: Identity, new: NewValues, actor: str) -> ChangedRow | None:
        """Every job that waits can be changed where it is."""
        raise AssertionError("a job in memory needs no recall")

    # ------------------------------------------------------------ reads

    async def get(self, job_id: bytes) -> JobView | None:
        """One row."""
        job = self._row(job_id)
        return None if job is None else msgspec.structs.replace(job.view(), progress=self._rows.progress.get(job_id))

    async def states(self, job_ids: Sequence[bytes]) -> dict[bytes, JobState]:
        """States of rows."""
        return {job_id: job.state for job_id in job_ids if (job := self._row(job_id)) is not None}

    async def jobs(
        self, chosen: JobFilter, lowest: bytes, highest: bytes, *, reads: int, limit: int, payload: bool
    ) -> JobsStep:
        """Rows that fit, newest first; all of them in one step."""
        views = self._fitting(chosen, [one for one in self._rows.jobs if lowest <= one <= highest])
        return JobsStep(lowest, [_shown(view, payload) for view in views[:limit]])

    async def jobs_of(self, chosen: JobFilter, job_ids: Sequence[bytes], *, payload: bool) -> list[JobView]:
        """Those that fit, newest first."""
        return [_shown(view, payload) for view in self._fitting(chosen, job_ids)]

    async def count(self, chosen: JobFilter, lowest: bytes, highest: bytes, *, reads: int, limit: int) -> CountStep:
        """Rows that fit; all of them in one step."""
        in_range = [one for one in self._rows.jobs if lowest <= one <= highest]
        return CountStep(lowest, min(len(self._fitting(chosen, in_range)), limit))

    async def waiting_ids(self, chosen: JobFilter, limit: int) -> list[bytes] | None:
        """There are no indexes."""
        return None

    async def id_ranges(self, batch: bytes | None, workflow: bytes | None) -> list[tuple[bytes, bytes]]:
        """All ids, of which the filter chooses."""
        return [(bytes(16), b"\xff" * 16)]

    def _fitting(self, chosen: JobFilter, job_ids: Sequence[bytes]) -> list[JobView]:
        views = [job.view() for job_id in sorted(job_ids, reverse=True) if (job := self._row(job_id)) is not None]
        return [view for view in views if _fits(view, chosen)]

    async def attempts(self, job_id: bytes) -> list[Attempt]:
        """What has been recorded of one job."""
        job = self._row(job_id)
        return [] if job is None else list(job.attempts)

    async def ended(self, job_ids: Sequence[bytes]) -> dict[bytes, EndedRow]:
        """Results and errors."""
        views = {job_id: job.view() for job_id in job_ids if (job := self._row(job_id)) is not None}
        return {
            job_id: EndedRow(job_id, view.state, view.handler, view.result_json, view.error)
            for job_id, view in views.items()
        }

    async def now_us(self) -> int:
        """The clock of the rows."""
        return self._rows.clock.wall_us()

    async def sent_before(self, job_ids: Sequence[bytes], bucket_ids: Sequence[bytes]) -> SentBefore:
        """Rows of jobs that are sent again."""
        rows = {job_id: job for job_id in job_ids if (job := self._row(job_id)) is not None}
        return SentBefore(
            {
                job_id: SentRow(job.state, job.entry.handler, job.entry.args, job.bucket_id)
                for job_id, job in rows.items()
            },
            False,
        )

    async def list_buckets(self, *, states: Sequence[BucketState] = ()) -> list[Bucket]:
        """One of each lane and priority, all ACTIVE."""
        return [bucket for bucket in self._rows.buckets.values() if not states or bucket.state in states]

    async def bucket_map(self, known: MapVersion | None) -> MapChanges:
        """All of it: there are few buckets, and handlers are added at any time."""
        buckets = list(self._rows.buckets.values())
        traits = OwnerTraits(frozenset(self._handlers.names()), 1.0, CAPABILITIES)
        return MapChanges(MapVersion(0, 0), True, buckets, [([bucket.owner for bucket in buckets], traits)])

    async def agents(self, *, all_: bool = False) -> list[Agent]:
        """No agent runs."""
        return []

    async def handlers(self) -> dict[str, HandlerSpec]:
        """What agents would publish."""
        return {handler.name: handler.spec for handler in self._handlers}

    async def tenants(self, lane: str | None, limit: int) -> list[TenantView]:
        """Due jobs of tenants that wait in the master; nothing is in flight between two calls."""
        now_us = self._rows.clock.wall_us()
        waiting: dict[tuple[str, str], list[int]] = {}
        for job in self._rows.jobs.values():
            name, due_us = tenant_of(job.entry.headers), job.entry.due_us
            if name and job.state is JobState.HELD and due_us <= now_us and lane in (None, job.lane):
                waiting.setdefault((name, job.lane), []).append(due_us)
        found = [TenantView(*place, len(due), 0, min(due)) for place, due in waiting.items()]
        return sorted(found, key=lambda each: (-each.held, each.name, each.lane))[:limit]

    async def unserved_causes(self, job_ids: Sequence[bytes]) -> dict[bytes, UnservedCause]:
        """None is known."""
        return {}

    def _row(self, job_id: bytes) -> MemoryJob | None:
        job = self._rows.jobs.get(job_id)
        return None if job is None or job.state is JobState.SAVE_PENDING else job


def _shown(view: JobView, payload: bool) -> JobView:
    if payload:
        return view
    return msgspec.structs.replace(view, with_payload=False, arguments_json=b"{}", result_json=None)


def _fits(view: JobView, chosen: JobFilter) -> bool:
    headers = view.headers
    due = (chosen.due_after_us, chosen.due_before_us)
    return (
        (not chosen.states or view.state in chosen.states)
        and chosen.handler in (None, view.handler)
        and chosen.lane in (None, view.lane)
        and chosen.priority in (None, view.priority)
        and (chosen.tag is None or chosen.tag in view.tags)
        and chosen.metadata.items() <= headers.metadata.items()
        and (chosen.batch is None or (headers.batch and range_of(view.id_bytes) == range_of(chosen.batch.bytes)))
        and (chosen.workflow is None or (headers.workflow or ("",))[0] == str(chosen.workflow))
        and chosen.schedule in (None, headers.schedule)
        and (chosen.tenant is None or headers.tenant == (chosen.tenant,))
        and (due == (None, None) or (view.state is JobState.HELD and _within(view.due_us or 0, *due)))
        and _has_failed(view, chosen)
    )


def _within(us: int, first: int | None, end: int | None) -> bool:
    return (first is None or us >= first) and (end is None or us < end)


def _has_failed(view: JobView, chosen: JobFilter) -> bool:
    """Whether its error is the one that the filter names."""
    if chosen.error_type is None and chosen.error_group is None:
        return True
    if view.error is None:
        return False
    kind = view.error.type
    return chosen.error_type in (None, kind, kind.rpartition(".")[2]) and chosen.error_group in (
        None,
        error_fingerprint(view.handler, kind, view.error.message),
    )


class MemoryPauses:
    """``jobmaster.ports.Pauses`` over rows in memory. No agent runs, so there is none to wait for."""

    def __init__(self, rows: MemoryRows) -> None:
        self._rows = rows

    async def pause(
        self, kind: PauseKind, value: str, until_us: int | None, for_seconds: float | None, actor: str, reason: str
    ) -> WrittenPause | None:
        """Pause, or change a pause."""
        rows = self._rows
        with rows.lock:
            now_us = rows.clock.wall_us()
            if for_seconds is not None:
                until_us = now_us + int(for_seconds * 1e6)
            if until_us is not None and until_us <= now_us:
                return None
            before = next((one for one in rows.paused() if (one.kind, one.value) == (kind, value)), None)
            since_us = now_us if before is None else before.since_us
            rows.pauses[kind, value] = Pause(
                kind=kind, value=value, actor=actor, reason=reason, since_us=since_us, until_us=until_us
            )
            rows.pause_version += 1
            return WrittenPause(rows.pause_version, until_us)

    async def resume(self, kind: PauseKind, value: str, actor: str, reason: str) -> int | None:
        """End a pause."""
        rows = self._rows
        with rows.lock:
            in_force = any((one.kind, one.value) == (kind, value) for one in rows.paused())
            rows.pauses.pop((kind, value), None)
            if not in_force:
                return None
            rows.pause_version += 1
            return rows.pause_version

    async def in_force(self) -> PausesInForce:
        """The pauses that are not over."""
        rows = self._rows
        with rows.lock:
            return PausesInForce(rows.pause_version, (*rows.paused(), *rows.breakers.pauses()))

    async def obey(self, agent_id: bytes, version: int) -> bool:
        """No agent runs."""
        return False

    async def followers(self, version: int) -> list[PauseFollower]:
        """No agent runs."""
        return []
