"""``submit_many``: jobs of one iterable, encoded in chunks; only the chunks under way are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, overload
from uuid import UUID

import msgspec

from jobmaster.client.bucket_choice import BucketGroup
from jobmaster.client.coalescer import CHUNK_BYTES_MAX
from jobmaster.client.handler_lookup import ResolvedHandler, check_declared, headers_for
from jobmaster.client.lost_answers import insert_held
from jobmaster.client.options import BulkOptions, CheckedOptions
from jobmaster.client.submit_router import SubmitRouter, new_job
from jobmaster.client.submitter import Submitter
from jobmaster.client.uniqueness.unique_submits import headers_with_key, no_key_and_wait, no_key_in_a_batch
from jobmaster.clock import new_id
from jobmaster.codec import ID_AT, decode_headers, encode_entry, encode_headers
from jobmaster.handlers import Call
from jobmaster.model.errors import InputError, JobMasterError, OutcomeUnknown
from jobmaster.model.flow.tenant import tenant_of
from jobmaster.model.flow.uniqueness import SubmitAnswer, UniqueRule
from jobmaster.model.ids import ID_BYTES
from jobmaster.model.job import Durability, Entry, OnFull, Receipt
from jobmaster.ports import Written
from jobmaster.rules.placement import Route
from jobmaster.settings.model import ClusterSettings

CHUNKS_MAX = 4
"""Chunks under way at once."""

Items = Iterable[Any] | AsyncIterable[Any]


class IdList(Sequence[UUID]):
    """Job ids in the order of the input within a chunk, kept as 16 bytes each: a million of them are 16 MB.

    An id is made when it is read. ``as_bytes`` gives the 16 bytes without that.
    """

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray()

    def extend(self, job_ids: Iterable[bytes]) -> None:
        self._bytes += b"".join(job_ids)

    def __len__(self) -> int:
        return len(self._bytes) // ID_BYTES

    @overload
    def __getitem__(self, index: int) -> UUID: ...

    @overload
    def __getitem__(self, index: slice) -> list[UUID]: ...

    def __getitem__(self, index: int | slice) -> UUID | list[UUID]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        start = range(len(self))[index] * ID_BYTES
        return UUID(bytes=bytes(self._bytes[start : start + ID_BYTES]))

    def __iter__(self) -> Iterator[UUID]:
        return (UUID(bytes=id_) for id_ in self.as_bytes())

    def as_bytes(self) -> Iterator[bytes]:
        """The ids as their 16 bytes."""
        data = bytes(self._bytes)
        return (data[start : start + ID_BYTES] for start in range(0, len(data), ID_BYTES))

    def __repr__(self) -> str:
        return f"<IdList of {len(self)} jobs>"


class BulkSummary:
    """The result of ``submit_many``."""

    def __init__(self) -> None:
        self.ids = IdList()
        """Ids of every acknowledged job."""
        self.by_level: dict[Durability, int] = {}
        """Acknowledged jobs by the level they reached."""
        self.by_answer: dict[SubmitAnswer, int] = {}
        """With unique keys: acknowledged submits by what they did. The id of one that found a job is that of the job."""

    @property
    def submitted(self) -> int:
        """Acknowledged jobs."""
        return len(self.ids)

    def acknowledged(self, entries: list[bytes], level: Durability) -> None:
        """Count entries that were acknowledged at ``level``."""
        self.ids.extend(_ids(entries))
        self.by_level[level] = self.by_level.get(level, 0) + len(entries)

    def answered(self, receipt: Receipt) -> None:
        """Count one submit with a unique key."""
        self.ids.extend([receipt.id])
        self.by_level[receipt.level] = self.by_level.get(receipt.level, 0) + 1
        answer = SubmitAnswer(receipt.unique_answer or SubmitAnswer.CREATED)
        self.by_answer[answer] = self.by_answer.get(answer, 0) + 1

    def __repr__(self) -> str:
        levels = ", ".join(f"{level.value}: {count}" for level, count in self.by_level.items())
        return f"<BulkSummary {self.submitted} jobs; {levels or 'none'}>"


class BulkPlaces(NamedTuple):
    """Places of jobs in the input of a bulk, from 0."""

    stored: list[int]
    unknown: list[int]
    """In the order of their ids."""


class BulkFailed(JobMasterError):
    """``submit_many`` stopped. Every job of the input is in exactly one of four groups: acknowledged (``summary.ids``),
    perhaps stored (``unknown_ids``: to know, call ``get``), read from the input but certainly not stored (``unsent`` of
    them), not read yet. The cause is the error's ``__cause__``."""

    def __init__(self, cause: Exception, summary: BulkSummary, unknown: IdList, unsent: IdList) -> None:
        first = cause.message if isinstance(cause, JobMasterError) else f"{type(cause).__name__}: {cause}"
        super().__init__(
            f"{first} (acknowledged: {summary.submitted}, unknown: {len(unknown)}, read but not stored: {len(unsent)})",
            hint=cause.hint if isinstance(cause, JobMasterError) else None,
        )
        self.exit_code = cause.exit_code if isinstance(cause, JobMasterError) else 1
        self.summary = summary
        self.unknown_ids = unknown
        self.unsent = len(unsent)
        self._unsent_ids = unsent

    def stored_places(self) -> BulkPlaces | None:
        """Which jobs of the input are stored, and which are perhaps stored; the others are not. ``None``: not known, because
        jobs had unique keys, and the ids of these are those of the jobs that hold the keys.

        Sorts all ids, so it takes about a second for a million jobs.
        """
        if self.summary.by_answer:
            return None
        # Each job that was read has an id, in the order of the input, and ids of one process only grow.
        stored, unknown = set(self.summary.ids.as_bytes()), set(self.unknown_ids.as_bytes())
        places = enumerate(sorted([*stored, *unknown, *self._unsent_ids.as_bytes()]))
        found = BulkPlaces([], [])
        for place, job_id in places:
            if job_id in stored:
                found.stored.append(place)
            elif job_id in unknown:
                found.unknown.append(place)
        return found


class _Chunk:
    """Encoded jobs of one lane and priority (and handler, where agents differ), or jobs with ordering keys."""

    __slots__ = ("entries", "group", "headers", "places", "rules", "size")

    def __init__(self, group: tuple[str, int, str], headers: bytes) -> None:
        self.group = group
        self.headers = headers
        """Of every entry, but for its unique key."""
        self.entries: list[bytes] = []
        self.places: list[tuple[str, int]] = []
        """Of jobs with ordering keys: lane and priority of every entry."""
        self.rules: list[UniqueRule] = []
        """Of every entry, or of none: its uniqueness."""
        self.size = 0


class BatchJobIds(Protocol):
    """Ids for the jobs of a batch."""

    def next(self) -> bytes | None:
        """The next id; ``None``: call ``renew`` first."""
        ...

    async def renew(self) -> None:
        """Get more ids, if need be."""
        ...


class BulkSubmit:
    """One run of ``submit_many``."""

    def __init__(
        self,
        submitter: Submitter,
        settings: ClusterSettings,
        options: BulkOptions,
        batch_ids: BatchJobIds | None = None,
        summary: BulkSummary | None = None,
    ) -> None:
        self._submitter = submitter
        self._seals = submitter.cipher is not None
        self._router: SubmitRouter = submitter.router
        self._options = options
        self._checked: CheckedOptions = submitter.checked(options)
        self._batch_ids = batch_ids
        self._new_id: Callable[[], bytes | None] = new_id
        if batch_ids is not None:
            self._new_id = batch_ids.next
            self._checked = self._checked._replace(headers=_marked(self._checked.headers))
        self._durability: Durability = self._checked.durability or settings.jobs.durability
        self._on_full: OnFull = self._checked.on_full or settings.jobs.on_full
        if self._checked.key is not None or self._checked.job_id is not None or self._checked.connection is not None:
            raise InputError("idempotency_key, job_id and connection belong to one job", hint="use submit for it")
        if self._checked.unique is not None and self._checked.unique.key is not None:
            raise InputError(
                "'unique' has one key for every job of the bulk", hint="make keys of arguments: Unique(args=[...])"
            )
        self._route = self._router.route_of(self._checked.due_us, self._durability)
        self._insert = self._router.master.intake.insert_held
        if self._checked.waits:
            self._route, self._insert = Route.HELD, self._router.master.signals.hold_waiting
        self._chunk_max = (
            settings.limits.submit_chunk_jobs if self._route is Route.BUCKET else settings.thresholds.transfer_batch
        )
        self._group_of: dict[str, tuple[str, int, str]] = {}
        self._open: dict[tuple[str, int, str], _Chunk] = {}
        self._in_order = asyncio.Lock()
        """Chunks of jobs with ordering keys are committed one after another: a later job must not be seen before an earlier
        one. The lock is given in the order of its requests."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsettled: set[_Chunk] = set()
        """Chunks that are being sent, or were sent in vain."""
        self._failure: Exception | None = None
        self.summary = summary or BulkSummary()
        self.unknown = IdList()
        """Jobs that were sent without an answer, also when the run was cancelled."""
        self._unsent = IdList()
        """Jobs that were read and are certainly not stored."""

    async def run(self, items: Items, handler: Callable[..., Any] | str | None) -> BulkSummary:
        """Submit everything; ``BulkFailed`` at the first failure, after what was under way has ended."""
        try:
            await self._read(items, handler)
            for chunk in list(self._open.values()):
                await self._send(chunk)
            self._open.clear()
        except Exception as error:
            self._failure = self._failure or error
        except BaseException:
            for task in self._tasks:
                task.cancel()
            raise
        finally:
            if self._tasks:
                await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._failure is not None:
            for chunk in self._open.values():
                self._unsent.extend(_ids(chunk.entries))
            raise BulkFailed(self._failure, self.summary, self.unknown, self._unsent) from self._failure
        return self.summary

    def lowest_unsettled(self) -> bytes | None:
        """Lowest id of the jobs that have one and are not acknowledged; ``None``: every job is."""
        chunks = (*self._open.values(), *self._unsettled)
        return min((chunk.entries[0][ID_AT] for chunk in chunks if chunk.entries), default=None)

    # ------------------------------------------------------------ reading and encoding

    async def _read(self, items: Items, handler: Callable[..., Any] | str | None) -> None:
        index = 0
        resolved = None if handler is None else await self._resolved(handler)
        if isinstance(items, AsyncIterable):
            async for item in items:
                await self._take(item, resolved, index)
                index += 1
            return
        for item in items:
            if (chunk := self._add(item, resolved, index)) is not None:
                await self._take_slow(item, resolved, index) if chunk is _SLOW else await self._send(chunk)
            index += 1

    async def _take(self, item: Any, resolved: ResolvedHandler | None, index: int) -> None:
        chunk = self._add(item, resolved, index)
        if chunk is _SLOW:
            await self._take_slow(item, resolved, index)
        elif chunk is not None:
            await self._send(chunk)

    def _add(self, item: Any, resolved: ResolvedHandler | None, index: int) -> _Chunk | None:
        """Encode one item into its open chunk. Returns the chunk when it is full, ``_SLOW`` when the handler, or a bucket
        for it, must be looked up first, or the batch needs another range of ids."""
        if resolved is None:
            handler, args = _split(item, index)
            resolved = self._submitter.handler_lookup.local(handler)
            if resolved is None:
                return _SLOW
        elif resolved.handler is None:
            return _SLOW
        else:
            args = item
        return self._append(resolved, self._encode(resolved, args, index), index)

    async def _take_slow(self, item: Any, resolved: ResolvedHandler | None, index: int) -> None:
        if self._batch_ids is not None:
            await self._batch_ids.renew()
        if resolved is None:
            handler, args = _split(item, index)
            try:
                resolved = await self._resolved(handler)
            except InputError as error:
                raise _at(error, index) from error
        else:
            args = item
        data = self._encode(resolved, args, index)
        if resolved.handler is None:
            try:
                await self._submitter.handler_lookup.check(
                    resolved, data, allow_unregistered=self._checked.allow_unregistered
                )
            except InputError as error:
                raise _at(error, index) from error
        if self._checked.refuses_unserved and resolved.name not in self._group_of:
            lane, priority, _ = self._new_group(resolved)
            await self._router.require_bucket(lane, priority, resolved.name)
            self._group_of[resolved.name] = self._new_group(resolved)
        chunk = self._append(resolved, data, index)
        if chunk is not None:
            await self._send(chunk)

    async def _resolved(self, handler: Callable[..., Any] | str) -> ResolvedHandler:
        resolved = await self._submitter.handler_lookup.find(
            handler, allow_unregistered=self._checked.allow_unregistered
        )
        await self._router.check_served(self._checked.lane or resolved.lane)
        return resolved

    def _encode(self, resolved: ResolvedHandler, args: Any, index: int) -> bytes:
        try:
            return self._submitter.encode(resolved, args)
        except InputError as error:
            if isinstance(args, Call):
                raise InputError(
                    f"item {index} is a call, and a handler is named for every item",
                    hint="submit_many(calls), or submit_many(arguments, handler=resize)",
                ) from None
            raise _at(error, index) from error

    def _append(self, resolved: ResolvedHandler, data: bytes, index: int) -> _Chunk | None:
        group = self._group_of.get(resolved.name)
        if group is None:
            if self._checked.refuses_unserved:
                return _SLOW
            group = self._group_of[resolved.name] = self._new_group(resolved)
        checked, unique = self._checked, self._checked.unique or resolved.unique
        place: tuple[str, int, str] | None = None
        if checked.is_ordered or resolved.ordering is not None:
            place, group = group, _IN_ORDER
            try:
                checked = self._submitter.in_order(resolved, data, checked)
            except InputError as error:
                raise _at(error, index) from error
            if unique is not None:
                raise InputError(
                    f"a job of handler {resolved.name!r} would have an ordering key and a unique key",
                    hint="use submit for each of these jobs",
                )
        job_id = self._new_id()
        if job_id is None:
            return _SLOW
        chunk = self._open.get(group)
        if chunk is None:
            chunk = self._open[group] = _Chunk(group, headers_for(resolved, self._checked.headers))
        headers = chunk.headers if place is None else headers_for(resolved, checked.headers)
        if unique is not None:
            if self._batch_ids is not None:
                raise no_key_in_a_batch(resolved.name)
            if self._checked.waits:
                raise no_key_and_wait(resolved.name)
            rule = self._submitter.unique_rule(resolved, self._checked, data, self._checked.due_us)
            assert rule is not None, "a bulk has no idempotency keys"
            headers = headers_with_key(headers, rule)
            chunk.rules.append(rule)
        if self._seals:
            data = self._submitter.sealed(resolved.name, job_id, data)
        entry = encode_entry(Entry(job_id, 1, resolved.name, data, self._checked.due_us, headers))
        chunk.entries.append(entry)
        if place is not None:
            chunk.places.append(place[:2])
        chunk.size += len(entry)
        if len(chunk.entries) >= self._chunk_max or chunk.size >= CHUNK_BYTES_MAX:
            return chunk
        return None

    def _new_group(self, resolved: ResolvedHandler) -> tuple[str, int, str]:
        """Lane, priority and, where agents differ in their handlers, the name: such a handler has chunks of its own, which
        go to agents that have it."""
        check_declared(resolved, self._options)
        unique = self._checked.unique or resolved.unique
        own_headers = unique is not None or resolved.limited or resolved.tenant is not None
        apart = resolved.name if own_headers or self._router.buckets.mixed else ""
        return self._checked.lane or resolved.lane, int(self._checked.priority or resolved.priority), apart

    # ------------------------------------------------------------ sending

    async def _send(self, chunk: _Chunk) -> None:
        """Start sending a chunk; wait first while enough are under way."""
        if self._open.get(chunk.group) is chunk:
            del self._open[chunk.group]
        while len(self._tasks) >= CHUNKS_MAX:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        if self._failure is not None:
            self._unsent.extend(_ids(chunk.entries))
            raise self._failure
        self._unsettled.add(chunk)
        task = asyncio.get_running_loop().create_task(self._deliver(chunk))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, chunk: _Chunk) -> None:
        lane, priority, handler = chunk.group
        try:
            if chunk.places:
                await self._insert_in_order(chunk)
                return
            route = await self._router.certain_route(self._route, chunk.headers)
            if chunk.rules:
                await self._with_keys(chunk)
            elif route is Route.BUCKET:
                need = Durability.VOLATILE if self._checked.allow_volatile else self._durability
                tenanted = bool(tenant_of(chunk.headers))
                group = await self._router.group(lane, priority, need, handler, tenanted=tenanted)
                await self._into_bucket(chunk, group)
            else:
                await self._into_master(chunk, route)
            self._unsettled.discard(chunk)
        except OutcomeUnknown as error:
            self.unknown.extend(_ids(chunk.entries))
            self._failure = self._failure or error
        except asyncio.CancelledError:
            self.unknown.extend(_ids(chunk.entries))
            raise
        except Exception as error:
            self._unsent.extend(_ids(chunk.entries))
            self._failure = self._failure or error

    async def _insert_in_order(self, chunk: _Chunk) -> None:
        """Jobs with ordering keys. None of them is stored after one that failed."""
        async with self._in_order:
            if self._failure is not None:
                self._unsent.extend(_ids(chunk.entries))
                return
            await self._insert_held(chunk)
            self._unsettled.discard(chunk)

    async def _with_keys(self, chunk: _Chunk) -> None:
        """Jobs with unique keys: what failed stays in the chunk."""
        lane, priority, _ = chunk.group
        jobs = [new_job(entry, lane, priority) for entry in chunk.entries]
        placed = (self._router.uniques.place(job, rule, None) for job, rule in zip(jobs, chunk.rules, strict=True))
        failed: list[bytes] = []
        failure: BaseException | None = None
        for entry, answer in zip(chunk.entries, await asyncio.gather(*placed, return_exceptions=True), strict=True):
            if not isinstance(answer, BaseException):
                self.summary.answered(answer)
            elif isinstance(answer, OutcomeUnknown):
                self.unknown.extend([entry[ID_AT]])
                failure = failure or answer
            else:
                failed.append(entry)
                failure = failure or answer
        chunk.entries = failed
        if failure is not None:
            self._unsent.extend(_ids(failed))
            self._failure = self._failure or (failure if isinstance(failure, Exception) else None)

    async def _into_bucket(self, chunk: _Chunk, group: BucketGroup) -> None:
        placed = await group.place(chunk.entries)
        if placed.level is None and placed.full:
            placed = await self._router.wait_for_room(chunk.entries, group, self._on_full)
        if placed.level is not None:
            self.summary.acknowledged(chunk.entries, placed.level)
        else:
            await self._insert_held(chunk)

    async def _into_master(self, chunk: _Chunk, route: Route) -> None:
        if route is Route.HELD:
            await self._insert_held(chunk)
            return
        lane, priority, handler = chunk.group
        tenanted = bool(tenant_of(chunk.headers))
        group = await self._router.group(lane, priority, Durability.VOLATILE, handler, tenanted=tenanted)
        jobs = [new_job(entry, lane, priority) for entry in chunk.entries]
        written, _ = await group.assign(self._router.master, jobs)
        self._written(chunk, chunk.entries, written)

    async def _insert_held(self, chunk: _Chunk) -> None:
        size = self._router.batch_max
        for start in range(0, len(chunk.entries), size):
            part = chunk.entries[start : start + size]
            places = chunk.places[start : start + size] or [chunk.group[:2]] * len(part)
            rows = [new_job(entry, *place) for entry, place in zip(part, places, strict=True)]
            try:
                written = await insert_held(self._insert, rows)
            except BaseException:
                # What went before is acknowledged; only the rest of the chunk is in question.
                chunk.entries = chunk.entries[start:]
                raise
            self._written(chunk, part, written, chunk.entries[start + size :])

    def _written(self, chunk: _Chunk, part: list[bytes], written: Written, later: Sequence[bytes] = ()) -> None:
        """Count rows in. The ids are fresh, so one that existed is our own, whose first answer was lost.

        Args:
            later: entries of the chunk that were not sent yet.
        """
        lost = [entry for entry in part if entry[ID_AT] in written.quarantined]
        if lost:
            part = [entry for entry in part if entry[ID_AT] not in written.quarantined]
        self.summary.acknowledged(part, Durability.MASTER)
        self._router.telemetry.jobs_submitted[Durability.MASTER] += len(part)
        if lost:
            chunk.entries = [*lost, *later]
            raise InputError(
                f"{len(lost)} jobs were refused: their ids, made now, lie outside the master's partitions",
                hint="compare this machine's clock with the database's; 'jobmaster doctor' shows the partitions",
            )


def _ids(entries: Iterable[bytes]) -> Iterator[bytes]:
    return (entry[ID_AT] for entry in entries)


_SLOW = _Chunk(("", 0, ""), b"")
_IN_ORDER = ("", 0, "in order")
"""Group of all jobs with ordering keys: in chunks of their own groups they would be committed in another order."""


def _marked(headers: bytes) -> bytes:
    """The headers of a job, with the mark of a batch."""
    return encode_headers(msgspec.structs.replace(decode_headers(headers), batch=True))


def _split(item: Any, index: int) -> tuple[Any, Any]:
    if type(item) is Call:
        return item.handler, item.arguments
    if isinstance(item, tuple) and len(item) == 2:
        return item
    raise InputError(
        f"item {index} is no call and no (handler, arguments) pair",
        hint="give call(resize, 'a.png') for each job, or pairs, or name the handler: submit_many(items, handler=resize)",
    )


def _at(error: InputError, index: int) -> InputError:
    """The same error, saying which item of the input it was."""
    return type(error)(f"item {index}: {error.message}", hint=error.hint)
