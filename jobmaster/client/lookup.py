"""Get, cancel and confirm one job, also one without a row: read the receipt's bucket first, else all live buckets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from jobmaster.client.bucket_directory import BucketDirectory, BucketHandle
from jobmaster.codec import encode_value
from jobmaster.model import ids
from jobmaster.model.errors import Conflict, InputError, InvalidArguments, JobMasterError, NotFound
from jobmaster.model.ids import Identity
from jobmaster.model.job import IN_FLIGHT_STATES, Entry, JobState, NewJob, Priority
from jobmaster.model.job_view import JobView
from jobmaster.ports import FIND_IDS_MAX, FindStore, LookupMaster, LookupStore, Requests
from jobmaster.settings.model import Limits

SCAN_JOBS_MAX = 20_000
"""Jobs that one bucket looks through for one id."""
FINDS_MAX = 8
"""Buckets of one store read in one write: their scans follow one another, and the store runs no other command meanwhile."""


class JobLookup:
    """``get`` and ``cancel``."""

    def __init__(self, master: LookupMaster, stores: Mapping[str, LookupStore], buckets: BucketDirectory) -> None:
        self._master = master
        self._stores = stores
        self._buckets = buckets

    async def get(self, job_id: bytes, bucket_id: bytes | None = None) -> JobView:
        """The job's row, or its entry in a bucket as ``SAVE_PENDING`` (``ASSIGNED`` when it came from the master), or as
        ``QUEUED`` when an agent has it in memory.

        Raises:
            NotFound: neither has it. It may be in an agent's hands for a moment (``persist_within``): ``wait_saved`` waits.
        """
        view = await self._master.queries.get(job_id)
        if view is None:
            found = await self.find_copy(job_id, bucket_id)
            # Between the two looks it may have got its row.
            view = await self._master.queries.get(job_id) if found is None else await self._of_copy(*found)
        if view is None:
            raise not_found(job_id)
        return view

    async def _of_copy(self, entry: Entry, handle: BucketHandle) -> JobView:
        try:
            claimed = await self.is_claimed(entry, handle)
        except JobMasterError:
            claimed = False
        return view_of(entry, handle, claimed)

    async def is_claimed(self, entry: Entry, handle: BucketHandle) -> bool:
        """True when an agent has this copy in memory."""
        return await self._stores[handle.store_handle.name].is_claimed(handle.id, entry.id, SCAN_JOBS_MAX)

    async def existing(self, job_ids: Sequence[bytes]) -> set[bytes]:
        """Those of many jobs that have a row, or a copy in a bucket of a store that answers."""
        await self._buckets.fresh()
        await self._buckets.renew()
        found: set[bytes] = set()
        for start in range(0, len(job_ids), FIND_IDS_MAX):
            part = job_ids[start : start + FIND_IDS_MAX]
            rows = await self._master.queries.states(part)
            found |= rows.keys()
            if rest := [job_id for job_id in part if job_id not in rows]:
                found |= (await copies(self._stores, rest, self._buckets.all_handles())).keys()
                found |= (await self._master.queries.states(rest)).keys()  # it may have got its row meanwhile
        return found

    async def cancel(self, job_id: bytes, bucket_id: bytes | None = None, *, actor: str) -> JobState:
        """Request the cancellation; the state after the request. A job in flight has a flag then and ends as CANCELLED
        unless it finishes first; one that waited is CANCELLED; a final one stays as it is.

        Raises:
            NotFound: neither the master nor a bucket has it.
        """
        state = await self._master.requests.cancel(job_id, tombstone=None, actor=actor)
        if state is None:
            found = await self.find_copy(job_id, bucket_id)
            if found is None:
                state = await self._master.requests.cancel(job_id, tombstone=None, actor=actor)
            else:
                entry, handle = found
                tombstone = NewJob(
                    job_id, handle.priority, handle.lane, entry.handler, entry.args, entry.headers, entry.due_us
                )
                state = await self._master.requests.cancel(job_id, tombstone=tombstone, actor=actor)
                await self._notify(handle, job_id)
            if state is None:
                raise not_found(job_id)
        if state in IN_FLIGHT_STATES:
            await self.notify_owner(job_id)
        return state

    async def notify_owner(self, job_id: bytes) -> None:
        """The owner of a job in flight reads its cancel request now, and not with its next renewal."""
        view = await self._master.queries.get(job_id)
        if view is not None and view.bucket_id is not None:
            handle = await self.bucket(view.bucket_id)
            if handle is not None:
                await self._notify(handle, job_id)

    async def bucket(self, bucket_id: bytes) -> BucketHandle | None:
        """A bucket that may hold jobs, by id; ``None``: there is none, or it lies in a store that is unknown here."""
        handle = self._buckets.handle(bucket_id)
        if handle is None:
            await self._buckets.renew()
            handle = self._buckets.handle(bucket_id)
        return handle

    async def _notify(self, handle: BucketHandle, job_id: bytes) -> None:
        """A hint only: the row decides, and the owner reads its flags with every heartbeat."""
        try:
            await self._stores[handle.store_handle.name].request_cancel(handle.id, job_id)
        except JobMasterError:
            pass

    async def find_copy(self, job_id: bytes, bucket_id: bytes | None) -> tuple[Entry, BucketHandle] | None:
        """The copy of a job in a bucket, with the bucket; ``bucket_id`` is looked into first."""
        await self._buckets.fresh()
        if bucket_id is not None and (handle := self._buckets.handle(bucket_id)) is not None:
            found = await copies(self._stores, [job_id], [handle])
            if found:
                return found[job_id]
        await self._buckets.renew()
        return (await copies(self._stores, [job_id], self._buckets.all_handles())).get(job_id)


async def confirm_run(requests: Requests, limits: Limits, confirmation: str, result: object, *, actor: str) -> None:
    """See ``Cluster.confirm_run``."""
    job_id, identity = _parse(confirmation)
    data = None if result is None else encode_value(result, "the result")
    if data is not None and len(data) > limits.result_bytes:
        raise InvalidArguments(f"the result has {len(data)} bytes, the limit is {limits.result_bytes}")
    confirmed, state = await requests.confirm(job_id, identity, data, actor)
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


async def copies(
    stores: Mapping[str, FindStore], job_ids: Sequence[bytes], handles: Iterable[BucketHandle]
) -> dict[bytes, tuple[Entry, BucketHandle]]:
    """Copies of these jobs (at most ``FIND_IDS_MAX``) in some buckets, by id. A store that does not answer shows none."""
    by_store: dict[str, list[BucketHandle]] = {}
    for handle in handles:
        by_store.setdefault(handle.store_handle.name, []).append(handle)
    found: dict[bytes, tuple[Entry, BucketHandle]] = {}
    await asyncio.gather(*(_copies_in(stores[name], job_ids, of_store, found) for name, of_store in by_store.items()))
    return found


async def _copies_in(
    store: FindStore,
    job_ids: Sequence[bytes],
    handles: Sequence[BucketHandle],
    found: dict[bytes, tuple[Entry, BucketHandle]],
) -> None:
    """The same in the buckets of one store.

    Those that take no more come last, and are left out for a while when the store gave no answer: the buckets of a store
    that is away stay in rescue until it is back, and every look would wait for it as long.
    """
    store_handle = handles[0].store_handle
    ordered = [handle for handle in handles if handle.active]
    if not store_handle.silent:
        ordered += [handle for handle in handles if not handle.active]
    for start in range(0, len(ordered), FINDS_MAX):
        page = ordered[start : start + FINDS_MAX]
        wanted = [job_id for job_id in job_ids if job_id not in found]
        if not wanted:
            return
        try:
            answers = await store.find([handle.id for handle in page], wanted, SCAN_JOBS_MAX)
        except JobMasterError:
            store_handle.gave_no_answer()
            return  # each further page would wait as long
        for handle, entries in zip(page, answers, strict=True):
            for job_id, entry in entries.items():
                found.setdefault(job_id, (entry, handle))


def view_of(entry: Entry, handle: BucketHandle, claimed: bool) -> JobView:
    """A job without a row, as its copy in a bucket shows it."""
    waiting = JobState.SAVE_PENDING if entry.token == 1 else JobState.ASSIGNED
    return JobView(
        id_bytes=entry.id,
        state=JobState.QUEUED if claimed else waiting,
        priority=Priority(handle.priority),
        lane=handle.lane,
        handler=entry.handler,
        token=entry.token,
        attempt=entry.attempt,
        rescues=entry.rescues,
        bucket_id=handle.id,
        bucket_epoch=handle.epoch,
        due_us=entry.due_us or None,
        arguments_json=entry.args,
        headers_json=entry.headers,
    )


def not_found(job_id: bytes) -> NotFound:
    """The error for an id that neither the master nor a bucket has."""
    return NotFound(
        f"there is no job {ids.text(job_id)}",
        hint="it may be in an agent's hands without a row yet, or be older than the retention",
    )
