"""``Cluster.bulk``: one change of every job that fits a filter. The leader makes it, page by page."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Unpack
from uuid import UUID

import msgspec

from jobmaster.client.jobs.changes import ChangeOptions, check_change_options
from jobmaster.client.jobs.job_filters import JobFilters, checked_filter
from jobmaster.clock import new_id
from jobmaster.handlers import check_name
from jobmaster.model import ids
from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import InputError, NotFound, OutcomeUnknown, WaitTimeout
from jobmaster.model.flow.bulk_operation import (
    ELIGIBLE,
    IMPLIED,
    BulkKind,
    BulkPreview,
    BulkState,
    BulkView,
    NewBulk,
    SkipCause,
)
from jobmaster.model.job_change import NewValues
from jobmaster.model.job_view import JobFilter

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster

BulkName = BulkKind | Literal["retry", "cancel", "reschedule", "delete"]
BulkRef = BulkView | UUID | str | bytes
"""A bulk operation: its view, or its id."""
LIMIT, LIMIT_MAX = 100, 1000
COUNTED_MAX = 10_000
"""Jobs at which a preview ends its count, unless it is asked for more."""
REASON_CHARS_MAX = 1000
_READS, _READS_MAX, _READS_GROWTH, _FOUND_MAX = 1000, 64_000, 4, 5000
_LOOK_SECONDS, _LOOK_SECONDS_MAX = 0.05, 1.0
_IN_STORES = frozenset({BulkKind.CANCEL, BulkKind.RESCHEDULE})
"""Kinds whose jobs may be in a bucket alone."""


class BulkOperations:
    """The bulk operations of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._master = cluster.master.bulk

    async def preview(
        self,
        kind: BulkName,
        /,
        *,
        change: ChangeOptions | None = None,
        at_most: int = COUNTED_MAX,
        **filters: Unpack[JobFilters],
    ) -> BulkPreview:
        """Count the jobs that an operation would try to change now, and those that it would leave alone, by the cause.
        Nothing is changed. What is decided for each job when a page is made is not known: ``REFUSED``, ``SIGNAL`` of a
        retry, ``CHANGED``. Such jobs count as eligible.

        Args:
            at_most: jobs at which the count ends (``capped``).
            change, filters: as of ``start``.

        Raises:
            InputError: as of ``start``.
        """
        new = await self._checked(kind, change, filters, "client", "")
        if type(at_most) is not int or at_most < 1:
            raise InputError(f"'at_most' must be a whole number from 1 on, not {at_most!r}")
        lowest, reads, eligible, skipped = new.lowest, _READS, 0, dict[SkipCause, int]()
        while lowest <= new.highest and (left := at_most - eligible - sum(skipped.values())) > 0:
            limit = min(left, _FOUND_MAX)
            bounds = (new.kind, new.chosen, new.change, lowest, new.highest)
            step = await self._master.find(*bounds, reads=reads, limit=limit, payload=False)
            for job in step.jobs:
                if job.skip is None:
                    eligible += 1
                else:
                    skipped[job.skip] = skipped.get(job.skip, 0) + 1
            if step.read_to is None:
                break
            lowest = ids.following(step.jobs[-1].id if len(step.jobs) == limit else step.read_to)
            reads = min(reads * _READS_GROWTH, _READS_MAX)
        capped = eligible + sum(skipped.values()) >= at_most
        return BulkPreview(kind=new.kind, eligible=eligible, skipped=skipped, capped=capped, unsearched=new.unsearched)

    async def start(
        self,
        kind: BulkName,
        /,
        *,
        change: ChangeOptions | None = None,
        reason: str = "",
        actor: str = "client",
        **filters: Unpack[JobFilters],
    ) -> BulkView:
        """Request one change of every job with a row in the master that fits the filter and whose id was made up to now. The
        leader makes it, page by page; operations are worked on one after another. The ids of a batch or a workflow are
        reserved when it begins: a later job of it is changed, too, if it fits and the operation has not passed its id.

        A job is changed at most once, however often a leader dies. One that changes its state meanwhile is compared again.

        Args:
            kind: ``retry`` runs jobs again, as ``Cluster.retry`` does with one, but never a retry of a retry: a job that has
                been retried is left alone. ``cancel`` as ``Cluster.cancel``. ``reschedule`` changes jobs that wait in the
                master. ``delete`` deletes arguments, results, errors, tags, metadata and logs of jobs that have ended;
                their rows stay until retention drops them, because they refuse late copies of their jobs.
            change: of a ``reschedule``: ``at`` or ``after``, ``priority``, ``lane``.
            reason: for the list of the operations and the operator's log; at most 1000 characters.
            actor: likewise; 1 to 200 printable characters.
            filters: see ``JobFilters``; at least one of them. Without ``state``: the states that the kind can change, of a
                retry ``FAILED``.

        Raises:
            InputError: no filter, a state that the kind cannot change, or a value that no job can have; nothing was stored.
            OutcomeUnknown: it may have been stored: see ``list``.
        """
        new = await self._checked(kind, change, filters, actor, reason)
        try:
            await self._master.start(new)
        except OutcomeUnknown:
            await self._master.start(new)
        return await self.get(new.id)

    async def get(self, operation: BulkRef) -> BulkView:
        """An operation as it is now.

        Raises:
            NotFound: there is no such operation, or it was forgotten.
        """
        wanted = _id_of(operation)
        found = await self._master.list(wanted)
        if not found:
            raise NotFound(
                f"there is no bulk operation {ids.text(wanted)}", hint="jobmaster bulk list shows those that there are"
            )
        return found[0]

    async def list(
        self,
        *,
        state: BulkState | str | Sequence[BulkState | str] | None = None,
        before: BulkRef | None = None,
        limit: int = LIMIT,
    ) -> builtins.list[BulkView]:
        """Operations, the newest first; one page of at most ``limit`` (1 to 1000). The next page is that with
        ``before=page[-1]``.

        Raises:
            InputError: a state that there is not, or a limit out of bounds.
        """
        if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
            raise InputError(f"'limit' must be a whole number from 1 to {LIMIT_MAX}, not {limit!r}")
        states = [state] if isinstance(state, str) else builtins.list(state or ())
        return await self._master.list(
            states=[_state(each) for each in states], before=None if before is None else _id_of(before), limit=limit
        )

    async def cancel(self, operation: BulkRef, *, actor: str = "client") -> BulkView:
        """End an operation. What it has changed stays so; no page is written after the answer. Safe to repeat.

        Returns: the operation as it is now; one that had ended before is left as it is.
        """
        wanted = _id_of(operation)
        try:
            await self._master.cancel(wanted, check_name(actor, "'actor'"))
        except OutcomeUnknown:
            await self._master.cancel(wanted, actor)
        return await self.get(wanted)

    async def wait(
        self,
        operation: BulkRef,
        *,
        timeout: float | None = None,
        on_progress: Callable[[BulkView], object] | None = None,
    ) -> BulkView:
        """Wait until an operation has ended, however.

        Args:
            on_progress: called with each look at it, also the last one; up to a second apart.

        Raises:
            WaitTimeout: it has not within ``timeout`` seconds; it goes on.
            NotFound: there is no such operation.
        """
        pause = _LOOK_SECONDS
        try:
            async with asyncio.timeout(timeout):
                while True:
                    view = await self.get(operation)
                    if on_progress is not None:
                        on_progress(view)
                    if view.state.final:
                        return view
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, _LOOK_SECONDS_MAX)
        except TimeoutError:
            raise WaitTimeout(
                f"bulk operation {ids.text(_id_of(operation))} has not ended within {timeout:g} s",
                hint="it goes on; without a leader of this version it waits",
            ) from None

    async def _checked(
        self, kind: BulkName, change: ChangeOptions | None, filters: JobFilters, actor: str, reason: str
    ) -> NewBulk:
        """The operation, checked."""
        cluster = self._cluster
        wanted = _kind(kind)
        queries = cluster.master.queries
        chosen = await checked_filter(queries, cluster.handlers, filters, f"a bulk {wanted}")
        if chosen == JobFilter():
            raise InputError(f"a bulk {wanted} needs a filter", hint="give handler, tag, state, since or another one")
        chosen = _with_states(wanted, chosen)
        new = await self._change(wanted, change)
        actor = check_name(actor, "'actor'")
        if len(reason) > REASON_CHARS_MAX or "\0" in reason:
            raise InputError(f"'reason' must be at most {REASON_CHARS_MAX} characters without U+0000")
        lowest, highest = await self._bounds(chosen)
        unsearched = await self._unsearched(chosen) if wanted in _IN_STORES else 0
        return NewBulk(new_id(), wanted, chosen, new, lowest, highest, actor, reason, unsearched)

    async def _bounds(self, chosen: JobFilter) -> tuple[bytes, bytes]:
        """The ids between which the jobs lie: none of them was made after now."""
        queries = self._cluster.master.queries
        now_us = await queries.now_us()
        lowest, highest = chosen.lowest, min(chosen.highest, ((now_us // 1000 + 1) << 80).to_bytes(16, "big"))
        highest = highest or bytes(16)  # a filter that no id fits; no job has this one
        if chosen.batch is not None:
            ranges = await queries.id_ranges(chosen.batch.bytes, None) or [(highest, highest)]
            lowest, highest = max(lowest, ranges[-1][0]), min(highest, ranges[0][1])
        return lowest, highest

    async def _change(self, kind: BulkKind, change: ChangeOptions | None) -> NewValues:
        if kind is not BulkKind.RESCHEDULE:
            if change:
                raise InputError(f"a bulk {kind} takes no change", hint="a bulk reschedule does")
            return NewValues()
        cluster = self._cluster
        new = check_change_options(change or {}, cluster.settings.limits, cluster._clock.wall_us())
        if new.lane is not None:
            await cluster._router().check_served(new.lane)
        return new

    async def _unsearched(self, chosen: JobFilter) -> int:
        return sum(
            bucket.state is not BucketState.READY_TO_DELETE
            and chosen.lane in (None, bucket.lane)
            and chosen.priority in (None, bucket.priority)
            for bucket in await self._cluster.master.queries.list_buckets()
        )


def _with_states(kind: BulkKind, chosen: JobFilter) -> JobFilter:
    if not chosen.states:
        return msgspec.structs.replace(chosen, states=tuple(sorted(IMPLIED[kind])))
    if wrong := [state.value for state in chosen.states if state not in ELIGIBLE[kind]]:
        raise InputError(
            f"a bulk {kind} cannot change jobs that are {', '.join(sorted(wrong))}",
            hint=f"it can be asked for {', '.join(sorted(ELIGIBLE[kind]))}",
        )
    return chosen


def _kind(value: object) -> BulkKind:
    try:
        return BulkKind(str(value))
    except ValueError:
        raise InputError(f"{value!r} is no kind of a bulk operation", hint=f"valid are {', '.join(BulkKind)}") from None


def _state(value: object) -> BulkState:
    try:
        return BulkState(str(value).upper())
    except ValueError:
        raise InputError(
            f"{value!r} is no state of a bulk operation", hint=f"valid are {', '.join(BulkState)}"
        ) from None


def _id_of(operation: object) -> bytes:
    if isinstance(operation, BulkView):
        return operation.id_bytes
    try:
        if not isinstance(operation, UUID | str | bytes):
            raise TypeError("not an id")
        return ids.parse(operation)
    except (ValueError, TypeError):
        raise InputError(f"{operation!r} is no bulk operation", hint="give its view or its id") from None
