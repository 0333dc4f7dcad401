"""One batch while its producer adds jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack
from uuid import UUID

import msgspec

from jobmaster.client.batches.batch_ids import BatchIds, GivenIds, new_range
from jobmaster.client.batches.earlier_run import EarlierRun, ItemReader
from jobmaster.client.batches.options import CheckedBatch
from jobmaster.client.bulk import BatchJobIds, BulkSubmit, BulkSummary, Items
from jobmaster.client.options import BatchJobId, BulkOptions, SubmitOptions
from jobmaster.client.submitter import StoredArguments
from jobmaster.clock import new_id
from jobmaster.codec import decode_headers, encode_headers
from jobmaster.handlers import Call
from jobmaster.model import ids
from jobmaster.model.errors import Conflict, InputError, JobMasterError, OutcomeUnknown
from jobmaster.model.flow.batch import AS_BEFORE, BatchView, Callback, FoundBatch, NewBatch, Position
from jobmaster.model.job import Durability, Receipt

if TYPE_CHECKING:
    from jobmaster.client.batches.batches import Batches
    from jobmaster.client.cluster import Cluster
    from jobmaster.client.receipts import JobReceipt

BATCH = "batch"
"""Metadata of a callback: the id of its batch."""
NOT_OF_A_JOB = ("idempotency_key", "job_id", "connection", "on_success", "on_failure")
"""Options of a submit that a job of a batch cannot have."""
_RANGES_MAX = 3
_TOUCH_SECONDS_MAX = 60.0
_DOUBT_SECONDS = 1.0
SIGN_SECONDS = 5.0
"""The producer of a batch with a key gives a sign at least so often."""
_BLOCK_JOBS, _BLOCK_JOBS_MAX = 500, 20_000
"""Jobs that may be stored before the next sign: so many are in doubt when a producer dies."""
_REPLAY_JOBS = 1000


class Batch:
    """A batch to which jobs are added. Made by ``Cluster.batch``; usable once.

    ::

        async with cluster.batch("thumbnails", on_complete=call(report)) as batch:
            await batch.submit_many(call(resize, path) for path in paths)
        view = await batch.wait()

    Leaving the block closes the batch: then its size is known, and it ends with its last job. Leaving it by an exception
    cancels it.
    """

    def __init__(
        self,
        cluster: Cluster,
        batches: Batches,
        checked: CheckedBatch,
        retry_of: bytes | None = None,
        callbacks: tuple[Callback, ...] = (),
    ) -> None:
        self._cluster = cluster
        self._batches = batches
        self._checked = checked
        self._retry_of = retry_of
        self._callbacks = callbacks
        self._id: bytes | None = None
        self._ids: BatchIds | None = None
        self._producer: bytes | None = None if checked.key is None else new_id()
        self._earlier: EarlierRun | None = None
        self._block = _BLOCK_JOBS
        self._bulk: tuple[BulkSubmit, int, int] | None = None
        """The bulk under way, the number of its first job, and how many jobs were stored before it."""
        self._single: int | None = None
        """Number of the last job that was submitted alone and has no answer yet."""
        self._size = 0
        self._unknown: list[bytes] = []
        self._under_way = 0
        self._several = False
        """Several calls have added jobs at once since none did: which of the last numbers are settled is not known."""
        self._idle = asyncio.Event()
        self._closing = False
        self._refusal = ""
        self._touching: asyncio.Task[None] | None = None

    @property
    def id_bytes(self) -> bytes:
        """The id as its 16 bytes."""
        if self._id is None:
            raise InputError("the batch is not open", hint="use it in an async with statement")
        return self._id

    @property
    def id(self) -> UUID:
        """Id of the batch; no job has it."""
        return UUID(bytes=self.id_bytes)

    @property
    def name(self) -> str:
        """Name of the batch."""
        return self._checked.name

    @property
    def submitted(self) -> int:
        """Jobs that were acknowledged so far; of a batch with a key also those of earlier runs."""
        return self._size

    def __repr__(self) -> str:
        return f"<Batch {self.name!r} {'not open' if self._id is None else self.id}, {self._size} jobs>"

    # ------------------------------------------------------------ adding jobs

    async def submit(
        self,
        handler: Call[Any] | Callable[..., Any] | str,
        args: Mapping[str, object] | StoredArguments | None = None,
        /,
        **options: Unpack[SubmitOptions],
    ) -> JobReceipt[Any]:
        """Add one job; arguments and errors as ``Cluster.submit``.

        Raises:
            InputError: also for the options ``idempotency_key``, ``job_id`` and ``connection``: whether such a job comes
                into being is decided elsewhere, and the batch would wait for it; and for ``on_success`` and ``on_failure``,
                which make a workflow of the job.
            Conflict: the batch was closed or cancelled, or has ended.
        """
        for name in NOT_OF_A_JOB:
            if name in options:
                raise InputError(f"a job of a batch cannot have {name!r}", hint="submit it outside the batch")
        with self._adding():
            more: dict[str, Any] = {}
            if (number := self._earlier_number()) is None:
                job_id = await self._own_ids.take()
                self._single = self._own_ids.number - 1
            else:
                job_id = self._earlier_run.id_of(number)
                if self._earlier_run.exists(number):
                    return self._cluster._receipt(Receipt(job_id, Durability.STORE, None, duplicate=True))
                more["durability"] = Durability.MASTER
            try:
                submit: Any = self._cluster.submit
                receipt: JobReceipt[Any] = await submit(
                    handler, args, **{**options, **more, "job_id": BatchJobId(job_id)}
                )
            except (OutcomeUnknown, asyncio.CancelledError):
                self._unknown.append(job_id)
                raise
            finally:
                self._single = None
            self._size += 1
            return receipt

    async def submit_many(
        self, items: Items, /, handler: Callable[..., Any] | str | None = None, **options: Unpack[BulkOptions]
    ) -> BulkSummary:
        """Add many jobs, also a stream of them; arguments and errors as ``Cluster.submit_many``.

        Returns: what this call has submitted. Jobs that an earlier run has stored, of a batch with a key, are not among them.
        """
        with self._adding():
            summary = BulkSummary()
            with self._cluster._publishing(None) as span:
                await self._add_all(items, handler, options, summary)
                if span is not None:
                    span.counted(summary.submitted)
            return summary

    async def _add_all(
        self, items: Items, handler: Callable[..., Any] | str | None, options: BulkOptions, summary: BulkSummary
    ) -> None:
        if self._earlier is not None and not self._earlier.over:
            items = await self._replay(ItemReader(items), handler, options, summary)
        if self._earlier is None or self._earlier.over:
            await self._run_bulk(items, handler, options, self._own_ids, summary)

    async def _run_bulk(
        self,
        items: Items,
        handler: Callable[..., Any] | str | None,
        options: BulkOptions,
        batch_ids: BatchJobIds,
        summary: BulkSummary,
    ) -> None:
        bulk = BulkSubmit(self._cluster._submitting(), self._cluster.settings, options, batch_ids, summary)
        before = summary.submitted
        if isinstance(batch_ids, BatchIds) and self._under_way == 1:
            self._bulk = bulk, batch_ids.number, self._size
        try:
            await bulk.run(items, handler)
        finally:  # also what a cancelled call has submitted
            self._bulk = None
            self._size += summary.submitted - before
            self._unknown += bulk.unknown.as_bytes()

    # ------------------------------------------------------------ what an earlier run has stored

    @property
    def _own_ids(self) -> BatchIds:
        assert self._ids is not None
        return self._ids

    @property
    def _earlier_run(self) -> EarlierRun:
        assert self._earlier is not None
        return self._earlier

    def _earlier_number(self) -> int | None:
        return None if self._earlier is None or self._earlier.over else self._earlier.take()

    async def _replay(
        self, reader: ItemReader, handler: Callable[..., Any] | str | None, options: BulkOptions, summary: BulkSummary
    ) -> Items:
        """Pass over the jobs that an earlier run has stored, and store those of its last ones that do not exist; the items
        that it has not come to."""
        earlier = self._earlier_run
        if earlier.closed:
            return ()
        in_master: BulkOptions = {**options, "durability": Durability.MASTER}
        while not earlier.over:
            in_doubt = earlier.number >= earlier.settled
            end = earlier.reserved if in_doubt else earlier.settled
            items = await reader.take(min(_REPLAY_JOBS, end - earlier.number))
            first, earlier.number = earlier.number, earlier.number + len(items)
            missing = [] if not in_doubt else [
                (first + at, item) for at, item in enumerate(items) if not earlier.exists(first + at)
            ]  # fmt: skip
            if missing:
                ids = GivenIds([earlier.id_of(number) for number, _ in missing])
                await self._run_bulk([item for _, item in missing], handler, in_master, ids, summary)
            if not items:
                return ()
            await asyncio.sleep(0)
        return reader.rest

    async def _resume(self, found: FoundBatch) -> None:
        """Go on where an earlier run has ended."""
        self._id, self._size = found.id, found.stored
        self._earlier = earlier = EarlierRun(found)
        if earlier.closed:
            return
        if found.cancel_requested:
            self._refusal = "it was cancelled"
        in_doubt = earlier.in_doubt()
        existing = await self._cluster._job_lookup.existing(list(in_doubt))
        earlier.existing = {in_doubt[job_id] for job_id in existing}
        self._size += len(existing)
        lowest = new_range()
        await self._add_range(lowest, found.reserved)
        self._ids = self._new_ids(lowest, found.reserved)

    def _new_ids(self, lowest: bytes, first: int) -> BatchIds:
        seconds = self._cluster.settings.limits.clock_skew_seconds / 2
        reserve = None if self._producer is None else self._reserve
        return BatchIds(lowest, self._add_range, self._cluster._clock, seconds, first=first, reserve=reserve)

    def _position(self) -> Position:
        """How far the jobs are settled, where that is certain."""
        ids = self._ids
        if ids is None or self._unknown or (self._earlier is not None and not self._earlier.over):
            return AS_BEFORE
        if not self._under_way:
            return Position(ids.number, self._size)
        if self._several:
            return AS_BEFORE
        if self._bulk is None:
            return Position(ids.number if self._single is None else self._single, self._size)
        bulk, first, stored = self._bulk
        lowest = bulk.lowest_unsettled()
        settled = ids.number if lowest is None else ids.number_of(lowest)
        return Position(settled, stored + settled - first)

    async def _reserve(self, number: int) -> int:
        """Make known that the next jobs may be stored from now on."""
        self._block = min(self._block * 2, _BLOCK_JOBS_MAX)
        reserved = number + self._block
        await self._sign(self._position()._replace(reserved=reserved))
        self._refuse()
        return reserved

    async def _sign(self, position: Position) -> bool:
        """Show that the producer is alive; False when the batch takes no more jobs for good."""
        cancelled = await self._batches.touch(self.id_bytes, self._checked.abandon_seconds, self._producer, position)
        if cancelled is None:
            self._refusal = "it has ended" if self._producer is None else "it has ended, or another producer fills it"
        elif cancelled:
            self._refusal = "it was cancelled"
        return cancelled is not None

    @contextlib.contextmanager
    def _adding(self) -> Iterator[None]:
        self._refuse()
        if self._id is None:
            raise InputError("the batch is not open", hint="use it in an async with statement")
        self._under_way += 1
        self._several = self._under_way > 1 or self._several
        self._idle.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._several = False
                self._idle.set()

    def _refuse(self) -> None:
        if self._closing:
            raise Conflict(f"batch {self.name!r} is closed", hint="open a new batch")
        if self._refusal:
            raise Conflict(f"batch {self.name!r} takes no more jobs: {self._refusal}", hint="open a new batch")

    # ------------------------------------------------------------ following

    async def get(self) -> BatchView:
        """The batch as it is now, without a count of its jobs."""
        return await self._batches.get(self.id_bytes)

    async def progress(self) -> BatchView:
        """The batch with a count of its jobs. A count reads all of their rows: about a second for a million."""
        return await self._batches.progress(self.id_bytes)

    async def wait(self, timeout: float | None = None) -> BatchView:
        """Wait until the batch has ended, however. Inside the block it would wait for itself."""
        if not self._closing:
            raise InputError("a batch ends after it was closed", hint="wait for it after the async with statement")
        return await self._batches.wait(self.id_bytes, timeout=timeout)

    async def cancel(self, *, actor: str = "client") -> BatchView:
        """Cancel the batch: see ``Batches.cancel``. It takes no more jobs."""
        self._refusal = "it was cancelled"
        return await self._batches.cancel(self.id_bytes, actor=actor)

    # ------------------------------------------------------------ opening and closing

    async def __aenter__(self) -> Self:
        if self._id is not None:
            raise InputError(f"batch {self.name!r} has been used", hint="call cluster.batch() again")
        key, producer = self._checked.key, self._producer
        if key is not None and producer is not None:
            found = await self._batches.take_over(key, producer, self._checked.abandon_seconds)
            if found is not None:
                await self._resume(found)
                self._begin_touching()
                return self
        batch_id = new_range()
        new = NewBatch(
            batch_id,
            self._checked.parent,
            self._retry_of,
            self._checked.name,
            self._checked.description,
            self._checked.timeout_seconds,
            self._checked.abandon_seconds,
            (*await self._made_callbacks(batch_id), *self._copied_callbacks(batch_id)),
            key,
            producer,
        )
        if not await self._batches.open(new):
            if key is not None and producer is not None and await self._batches.has_key(key):
                return await self.__aenter__()  # another producer was faster
            raise Conflict(
                f"batch {self.name!r} was not opened: its parent has ended or was cancelled, or there is none",
                hint="open it while a job of the parent runs, or before the parent is closed",
            )
        self._id = batch_id
        self._ids = self._new_ids(batch_id, 0)
        self._begin_touching()
        return self

    def _begin_touching(self) -> None:
        self._touching = asyncio.create_task(self._touch(), name="jobmaster-batch")

    async def _made_callbacks(self, batch_id: bytes) -> list[Callback]:
        submitter = self._cluster._submitting()
        made = []
        for occasion, call in self._checked.callbacks.items():
            options: SubmitOptions = {"metadata": {BATCH: ids.text(batch_id)}}
            job = await submitter.job_of(call.handler, call.arguments, options)
            made.append(Callback(occasion, job.priority, job.lane, job.handler, job.args, job.headers))
        return made

    def _copied_callbacks(self, batch_id: bytes) -> list[Callback]:
        def of_this(headers: bytes) -> bytes:
            old = decode_headers(headers)
            metadata = {**old.metadata, BATCH: ids.text(batch_id)}
            return encode_headers(msgspec.structs.replace(old, metadata=metadata))

        return [each._replace(headers=of_this(each.headers)) for each in self._callbacks]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        if self._checked.key is not None:
            self._stop_touching()
            error.add_note(
                f"batch {self.name!r} stays open: the next run with its key goes on where this one has ended"
            )
            return
        try:
            if not self._closing:
                await self.cancel()
                await self.close()
        except JobMasterError as failure:
            error.add_note(f"batch {self.name!r} was not cancelled: {failure}; it counts as abandoned after a while")
        finally:
            self._stop_touching()

    async def close(self) -> None:
        """No more jobs are added. Waits for submits under way. Safe to call again.

        Raises:
            Conflict: the batch has ended meanwhile (abandoned, or its ``timeout`` was over); its jobs go on.
            OutcomeUnknown, Unavailable: call it again; otherwise the batch counts as abandoned after a while.
        """
        batch_id, earlier = self.id_bytes, self._earlier
        self._closing = True
        if earlier is not None and earlier.closed:
            return
        if earlier is not None and earlier.number < earlier.settled:
            raise InputError(
                f"this run has given {earlier.number} jobs to batch {self.name!r}, and an earlier one {earlier.settled}",
                hint="a batch with a key is filled with the same jobs in the same order",
            )
        if self._under_way:
            await self._idle.wait()
        try:
            await self._count_doubtful()
            given = (
                earlier.number
                if earlier is not None and not earlier.over
                else 0
                if self._ids is None
                else self._ids.number
            )
            await self._batches.close(batch_id, self._size, self._producer, given)
        finally:  # one that could not be closed counts as abandoned after a while, also while this process lives
            self._stop_touching()

    async def _count_doubtful(self) -> None:
        """Jobs whose submit has no answer: those that exist count."""
        seconds = self._cluster.settings.thresholds.persist_within_seconds + _DOUBT_SECONDS
        for pause in (0.0, seconds):  # a job may be in an agent's hands without a row for a moment
            if self._unknown:
                await asyncio.sleep(pause)
                found = await self._cluster._job_lookup.existing(self._unknown)
                self._size += len(found)
                self._unknown = [job_id for job_id in self._unknown if job_id not in found]
        self._unknown = []

    async def _add_range(self, lowest: bytes, first: int) -> None:
        for _ in range(_RANGES_MAX):
            if await self._batches.add_range(self.id_bytes, lowest, first, self._producer):
                return
        state = (await self.get()).state
        raise Conflict(f"batch {self.name!r} takes no more jobs: it is {state.value}", hint="open a new batch")

    async def _touch(self) -> None:
        """Show that the producer is alive, until the batch is closed."""
        longest = _TOUCH_SECONDS_MAX if self._producer is None else SIGN_SECONDS
        while self._earlier is None or not self._earlier.closed:
            await asyncio.sleep(min(self._checked.abandon_seconds / 4, longest))
            with contextlib.suppress(JobMasterError):
                if not await self._sign(self._position()):
                    return

    def _stop_touching(self) -> None:
        if self._touching is not None:
            self._touching.cancel()
