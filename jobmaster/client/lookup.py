"""Get, cancel and confirm one job, also one without a row: read the receipt's bucket first, else all live buckets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from jobmaster.client.bucket_directory import BucketMap, Outlet
from jobmaster.codec import encode_value
from jobmaster.model import ids
from jobmaster.model.errors import Conflict, InputError, InvalidArguments, JobMasterError, NotFound
from jobmaster.model.ids import Identity
from jobmaster.model.job import IN_FLIGHT_STATES, Entry, JobState, JobView, NewJob, Priority
from jobmaster.ports import Queries
from jobmaster.settings.model import Limits

SCAN_JOBS_MAX = 20_000
"""Jobs that one bucket looks through for one id."""
FINDS_MAX = 8
"""Buckets of one store asked in one write: their scans follow one another, and the store serves nobody else meanwhile."""


class Finder:
    """``get`` and ``cancel``."""

    def __init__(self, master: Queries, buckets: BucketMap) -> None:
        self._master = master
        self._buckets = buckets

    async def get(self, job_id: bytes, bucket_id: bytes | None = None) -> JobView:
        """The job's row, or its entry in a bucket as ``SAVE_PENDING`` (``ASSIGNED`` when it came from the master), or as
        ``QUEUED`` when an agent has it in memory.

        Raises:
            NotFound: neither has it. It may be in an agent's hands for a moment (``persist_within``): ``confirm`` waits.
        """
        view = await self._master.get(job_id)
        if view is None:
            found = await self._find(job_id, bucket_id)
            # Between the two looks it may have got its row.
            view = await self._master.get(job_id) if found is None else await self._of_copy(*found)
        if view is None:
            raise _not_found(job_id)
        return view

    async def _of_copy(self, entry: Entry, outlet: Outlet) -> JobView:
        try:
            claimed = await outlet.watch.store.is_claimed(outlet.id, entry.id, SCAN_JOBS_MAX)
        except JobMasterError:
            claimed = False
        return _view(entry, outlet, claimed)

    async def cancel(self, job_id: bytes, bucket_id: bytes | None = None, *, actor: str) -> JobState:
        """Ask to cancel; the state after the request. A job in flight has a flag then and ends as CANCELLED unless it
        finishes first; one that waited is CANCELLED; a final one stays as it is.

        Raises:
            NotFound: neither the master nor a bucket has it.
        """
        state = await self._master.cancel(job_id, tombstone=None, actor=actor)
        if state is None:
            found = await self._find(job_id, bucket_id)
            if found is None:
                state = await self._master.cancel(job_id, tombstone=None, actor=actor)
            else:
                entry, outlet = found
                tombstone = NewJob(
                    job_id, outlet.priority, outlet.lane, entry.handler, entry.args, entry.headers, entry.due_us
                )
                state = await self._master.cancel(job_id, tombstone=tombstone, actor=actor)
                await self._tell(outlet, job_id)
            if state is None:
                raise _not_found(job_id)
        if state in IN_FLIGHT_STATES:
            await self._tell_owner(job_id)
        return state

    async def _tell_owner(self, job_id: bytes) -> None:
        view = await self._master.get(job_id)
        if view is not None and view.bucket_id is not None:
            outlet = self._buckets.outlet(view.bucket_id)
            if outlet is None:
                await self._buckets.renew()
                outlet = self._buckets.outlet(view.bucket_id)
            if outlet is not None:
                await self._tell(outlet, job_id)

    async def _tell(self, outlet: Outlet, job_id: bytes) -> None:
        """A hint only: the row decides, and the owner reads its flags with every heartbeat."""
        try:
            await outlet.watch.store.request_cancel(outlet.id, job_id)
        except JobMasterError:
            pass

    async def _find(self, job_id: bytes, bucket_id: bytes | None) -> tuple[Entry, Outlet] | None:
        await self._buckets.fresh()
        if bucket_id is not None and (outlet := self._buckets.outlet(bucket_id)) is not None:
            found = await copies([job_id], [outlet])
            if found:
                return found[job_id]
        await self._buckets.renew()
        return (await copies([job_id], self._buckets.all_outlets())).get(job_id)


async def confirm_run(master: Queries, limits: Limits, confirmation: str, result: object, *, actor: str) -> None:
    """See ``Cluster.confirm_run``."""
    job_id, identity = _parse(confirmation)
    data = None if result is None else encode_value(result, "the result")
    if data is not None and len(data) > limits.result_bytes:
        raise InvalidArguments(f"the result has {len(data)} bytes, the limit is {limits.result_bytes}")
    confirmed, state = await master.confirm(job_id, identity, data, actor)
    if confirmed:
        return
    if state is None:
        raise NotFound(f"the master has no job {ids.text(job_id)}")
    raise Conflict(
        f"job {ids.text(job_id)} cannot be confirmed for that run: it is {state.value}",
        hint="the run was given up, superseded or not confirmed in time; see `jobmaster job timeline`",
    )


def _parse(confirmation: object) -> tuple[bytes, Identity]:
    try:
        if not isinstance(confirmation, str):
            raise TypeError
        job, token, bucket, epoch = confirmation.split(":")
        return ids.parse(job), Identity(int(token), ids.parse(bucket), int(epoch))
    except (TypeError, ValueError):
        raise InputError(
            f"{confirmation!r} is no confirmation", hint="it is the value of ctx.confirmation inside the handler"
        ) from None


async def copies(job_ids: Sequence[bytes], outlets: Iterable[Outlet]) -> dict[bytes, tuple[Entry, Outlet]]:
    """Copies of these jobs (at most ``FIND_IDS_MAX``) in some buckets, by id. A store that does not answer shows none."""
    stores: dict[str, list[Outlet]] = {}
    for outlet in outlets:
        stores.setdefault(outlet.watch.name, []).append(outlet)
    found: dict[bytes, tuple[Entry, Outlet]] = {}
    await asyncio.gather(*(_copies_in(job_ids, of_store, found) for of_store in stores.values()))
    return found


async def _copies_in(
    job_ids: Sequence[bytes], outlets: Sequence[Outlet], found: dict[bytes, tuple[Entry, Outlet]]
) -> None:
    """The same in the buckets of one store.

    Those that take no more come last, and are left out for a while when the store gave no answer: the buckets of a store
    that is away stay in rescue until it is back, and every look would wait for it as long.
    """
    watch = outlets[0].watch
    ordered = [outlet for outlet in outlets if outlet.active]
    if not watch.silent:
        ordered += [outlet for outlet in outlets if not outlet.active]
    for start in range(0, len(ordered), FINDS_MAX):
        page = ordered[start : start + FINDS_MAX]
        wanted = [job_id for job_id in job_ids if job_id not in found]
        if not wanted:
            return
        try:
            answers = await watch.store.find([outlet.id for outlet in page], wanted, SCAN_JOBS_MAX)
        except JobMasterError:
            watch.gave_no_answer()
            return  # each further page would wait as long
        for outlet, entries in zip(page, answers, strict=True):
            for job_id, entry in entries.items():
                found.setdefault(job_id, (entry, outlet))


def _view(entry: Entry, outlet: Outlet, claimed: bool) -> JobView:
    waiting = JobState.SAVE_PENDING if entry.token == 1 else JobState.ASSIGNED
    return JobView(
        id=entry.id,
        state=JobState.QUEUED if claimed else waiting,
        priority=Priority(outlet.priority),
        lane=outlet.lane,
        handler=entry.handler,
        token=entry.token,
        attempt=entry.attempt,
        rescues=entry.rescues,
        bucket_id=outlet.id,
        bucket_epoch=outlet.epoch,
        due_us=entry.due_us or None,
        args=entry.args,
        headers=entry.headers,
    )


def _not_found(job_id: bytes) -> NotFound:
    return NotFound(
        f"there is no job {ids.text(job_id)}",
        hint="it may be in an agent's hands without a row yet, or be older than the retention",
    )
