"""Changes of one job that waits: due time, priority, lane.

A job that waits in the master is changed by one compare-and-set on its row. A job that lies in a bucket is recalled first:
its copy leaves the bucket, then the row goes back to the master under its own identity, with the new values. The other order
would let the copy start meanwhile. A crash between the two leaves a row without a copy, which anti-entropy gives back.
A job without a row gets one first, under the identity of its copy: then it is a job in a bucket like any other, and no step
takes its only trace away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict

from jobmaster.client.bucket_directory import BucketDirectory, BucketHandle
from jobmaster.client.lookup import SCAN_JOBS_MAX, JobLookup, not_found, view_of
from jobmaster.client.options import check_priority, due_time_us
from jobmaster.client.submit_router import SubmitRouter
from jobmaster.clock import Clock
from jobmaster.handlers import check_lane
from jobmaster.model import ids
from jobmaster.model.errors import (
    ConfigError,
    Conflict,
    InputError,
    InvalidDueTime,
    JobMasterError,
    OutcomeUnknown,
    Unavailable,
)
from jobmaster.model.ids import Identity
from jobmaster.model.job import Entry, Headers, JobState, NewJob, Priority, PriorityLabel
from jobmaster.model.job_change import ChangedRow, ChangeEffect, JobChange, NewValues
from jobmaster.model.job_view import JobView, moment
from jobmaster.ports import ChangeMaster, ChangeStore, Recall
from jobmaster.rules.backoff import backoff_delays
from jobmaster.settings.model import Limits

TRY_SECONDS = 3.0
"""How long a job is waited for that is on its way into a bucket, or out of one."""
HINT_SECONDS = 2.0
"""Agents get a hint about a job that is due within this time; for others the leader's scan is early enough."""
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.005, 0.25


class ChangeOptions(TypedDict, total=False):
    """What a change sets. What is left out stays as it is."""

    at: datetime
    """Due at this time (aware). A time in the past means now."""
    after: float | timedelta
    """Due this many seconds from now by this machine's clock."""
    priority: Priority | int | PriorityLabel
    lane: str


def due_options(at: datetime | None, after: float | timedelta | None) -> ChangeOptions:
    """The options of a change of the due time."""
    options = ChangeOptions()
    if at is not None:
        options["at"] = at
    if after is not None:
        options["after"] = after
    return options


def check_change_options(options: Mapping[str, Any], limits: Limits, now_us: int) -> NewValues:
    """What a change sets, checked.

    Raises:
        InputError: an unknown option, none at all, or a wrong value. InvalidDueTime for times, as of a submit.
    """
    unknown = options.keys() - ChangeOptions.__annotations__.keys()
    if unknown:
        raise InputError(
            f"a change has no option {', '.join(sorted(map(repr, unknown)))}",
            hint=f"valid are {', '.join(ChangeOptions.__annotations__)}",
        )
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        raise InputError("the change sets nothing", hint="give at or after, priority, or lane")
    due_us = due_time_us(given.get("at"), given.get("after"), now_us, limits)
    return NewValues(
        due_us if given.keys() & {"at", "after"} else None,
        check_priority(given.get("priority")),
        check_lane(given["lane"]) if "lane" in given else None,
    )


class JobChanger:
    """Changes jobs that wait. Belongs to one event loop."""

    def __init__(
        self,
        master: ChangeMaster,
        stores: Mapping[str, ChangeStore],
        buckets: BucketDirectory,
        lookup: JobLookup,
        router: SubmitRouter,
        clock: Clock,
    ) -> None:
        self._master = master
        self._stores = stores
        self._buckets = buckets
        self._lookup = lookup
        self._router = router
        self._clock = clock

    async def change(self, job_id: bytes, bucket_id: bytes | None, new: NewValues, actor: str) -> JobChange:
        """Give a job new values, unless it has started; see ``Cluster.change``.

        Args:
            bucket_id: the bucket of the receipt, looked into first when the job has no row.
        """
        if new.lane is not None:
            await self._router.check_served(new.lane)
        unknown: OutcomeUnknown | None = None
        ends = self._clock.boottime() + TRY_SECONDS
        for pause in backoff_delays(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX):
            late = self._clock.boottime() + pause > ends
            try:
                answer = await self._try(job_id, bucket_id, new, actor)
            except OutcomeUnknown as error:
                if late:
                    raise
                unknown, answer = error, None
            except Unavailable:
                if unknown is not None:  # an earlier look may have changed it, or may still do so
                    raise unknown from None
                raise
            if answer is not None:
                return answer
            if late and unknown is not None:
                raise unknown
            if late:
                raise Conflict(
                    f"job {ids.text(job_id)} is between the master and a bucket, and was not changed",
                    hint="call it again: an agent brings it to one of them within a minute",
                )
            await asyncio.sleep(pause)
        raise AssertionError("the delays have no end")

    async def move_due(self, job_id: bytes, due_us: int) -> ChangeEffect:
        """Give a job that holds a unique key another due time, unless it has started."""
        return (await self.change(job_id, None, NewValues(due_us, None, None), "client")).effect

    async def hint(self, job: NewJob) -> None:
        """One owner reads what is due, for a job that was written to the master just now."""
        await self._buckets.known()
        await self._hint(job.lane, job.priority, job.handler)

    async def _try(self, job_id: bytes, bucket_id: bytes | None, new: NewValues, actor: str) -> JobChange | None:
        """One look at the job; ``None``: look again."""
        row = await self._master.changes.change_held(job_id, new, actor)
        if row is not None:
            return await self._changed(job_id, row)
        view = await self._master.queries.get(job_id)
        if view is None:
            found = await self._lookup.find_copy(job_id, bucket_id)
            if found is not None:
                return await self._change_rowless(*found, new, actor)
            view = await self._master.queries.get(job_id)
        if view is None:
            raise not_found(job_id)
        if view.state in (JobState.HELD, JobState.ASSIGNED):
            _refuse_expired(job_id, view.headers, new)
        if view.state is JobState.HELD:
            return None  # it came back to the master between the two statements
        if view.state is not JobState.ASSIGNED or view.bucket_id is None or view.bucket_epoch is None:
            _refuse_waiting(view)
            effect = ChangeEffect.ALREADY_ENDED if view.state.final else ChangeEffect.ALREADY_STARTED
            return _unchanged(view, effect)
        identity = Identity(view.token, view.bucket_id, view.bucket_epoch)
        return await self._recall(view, identity, new, actor)

    async def _change_rowless(self, copy: Entry, handle: BucketHandle, new: NewValues, actor: str) -> JobChange | None:
        """A job that lies in its bucket alone: it gets its row before its copy leaves the bucket."""
        view = view_of(copy, handle, await self._lookup.is_claimed(copy, handle))
        if view.state is JobState.QUEUED:
            return self._claimed(view)
        _refuse_expired(copy.id, view.headers, new)
        changes = self._master.changes
        if not await changes.assign_copy(handle.id, handle.epoch, handle.priority, handle.lane, copy):
            return None
        return await self._recall(view, Identity(copy.token, handle.id, handle.epoch), new, actor)

    async def _recall(self, view: JobView, identity: Identity, new: NewValues, actor: str) -> JobChange | None:
        """A job in a bucket, whose row has this identity."""
        handle = await self._lookup.bucket(identity.bucket_id)
        if handle is None:
            if (name := self._buckets.store_unknown(identity.bucket_id)) is not None:
                raise ConfigError(
                    f"job {view.id} lies in a bucket of the store {name!r}, which this configuration does not have; the job "
                    "was not changed",
                    hint=f"add stores.{name} to the configuration, as the agents have it",
                )
            return None
        job_id, store = view.id_bytes, self._stores[handle.store_handle.name]
        found = await store.recall(job_id, identity, view.due_us or 0, SCAN_JOBS_MAX)
        if found is Recall.CLAIMED:
            return self._claimed(view)
        if found is Recall.ABSENT:
            return None
        row = await self._master.changes.hold_recalled(job_id, identity, new, actor)
        return None if row is None else await self._changed(job_id, row)

    def _claimed(self, view: JobView) -> JobChange | None:
        """A job that an agent has in memory: it may start at any moment, unless it is due later. Then the agent is about to
        write it to the master."""
        if view.due_us is not None and view.due_us > self._clock.wall_us():
            return None
        return _unchanged(view, ChangeEffect.ALREADY_CLAIMED)

    async def _changed(self, job_id: bytes, row: ChangedRow) -> JobChange:
        """The answer, after an agent got a hint when the job is due."""
        unserved = False
        if row.state is JobState.HELD:
            unserved = await self._router.seems_unserved(row.lane, row.priority, row.handler)
            if row.due_us <= self._clock.wall_us() + HINT_SECONDS * 1e6:
                await self._hint(row.lane, row.priority, row.handler)
        return JobChange(
            id_bytes=job_id,
            effect=ChangeEffect.CHANGED if row.state is JobState.HELD else ChangeEffect.ALREADY_ENDED,
            state=row.state,
            due_us=row.due_us,
            priority=Priority(row.priority),
            lane=row.lane,
            unserved=unserved,
        )

    async def _hint(self, lane: str, priority: int, handler: str) -> None:
        """One owner with the fewest jobs reads what is due. A hint that is lost costs a second: the leader sends the next."""
        handles = self._buckets.serving(lane, priority, handler)
        if not handles:
            return
        handle = min(handles, key=lambda one: one.depth)
        try:
            await self._stores[handle.store_handle.name].hint(handle.id)
        except JobMasterError:
            pass


def _unchanged(view: JobView, effect: ChangeEffect) -> JobChange:
    """It was too late: the job as it is."""
    state = JobState.QUEUED if effect is ChangeEffect.ALREADY_CLAIMED else view.state
    return JobChange(
        id_bytes=view.id_bytes, effect=effect, state=state, due_us=view.due_us, priority=view.priority, lane=view.lane
    )


def _refuse_waiting(view: JobView) -> None:
    """``Conflict`` for a job that waits for a signal."""
    wait = view.headers.signal
    if view.state is JobState.WAITING and view.bucket_id is None and wait is not None:
        raise Conflict(
            f"job {view.id} waits for the signal {wait.key!r}, and was not changed",
            hint="send the signal first, or cancel the job and submit it anew",
        )


def _refuse_expired(job_id: bytes, headers: Headers, new: NewValues) -> None:
    """``InvalidDueTime`` when the job would be due after it has expired."""
    if headers.expires_us is not None and new.due_us is not None and new.due_us >= headers.expires_us:
        raise InvalidDueTime(
            f"job {ids.text(job_id)} expires at {moment(headers.expires_us):%Y-%m-%d %H:%M:%S} UTC, not after the new due "
            "time: it could never start",
            hint="give an earlier 'at' or 'after', or submit it anew with a later 'expires'",
        )
