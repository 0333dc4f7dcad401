"""One batch while its producer adds jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack
from uuid import UUID

import msgspec

from jobmaster.client.batches.batch_ids import BatchIds, new_range
from jobmaster.client.batches.options import CheckedBatch
from jobmaster.client.bulk import BulkSubmit, BulkSummary, Items
from jobmaster.client.options import BatchJobId, BulkOptions, SubmitOptions
from jobmaster.client.submitter import StoredArguments
from jobmaster.codec import decode_headers, encode_headers
from jobmaster.handlers import Call
from jobmaster.model import ids
from jobmaster.model.batch import BatchView, Callback, NewBatch
from jobmaster.model.errors import Conflict, InputError, JobMasterError, OutcomeUnknown

if TYPE_CHECKING:
    from jobmaster.client.batches.batches import Batches
    from jobmaster.client.cluster import Cluster
    from jobmaster.client.receipts import JobReceipt

BATCH = "batch"
"""Metadata of a callback: the id of its batch."""
NOT_OF_A_JOB = ("idempotency_key", "job_id", "connection")
"""Options of a submit that a job of a batch cannot have."""
_RANGES_MAX = 3
_TOUCH_SECONDS_MAX = 60.0
_DOUBT_SECONDS = 1.0


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
        self._size = 0
        self._unknown: list[bytes] = []
        self._under_way = 0
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
        """Jobs that were acknowledged so far."""
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
                into being is decided elsewhere, and the batch would wait for it.
            Conflict: the batch was closed or cancelled, or has ended.
        """
        for name in NOT_OF_A_JOB:
            if name in options:
                raise InputError(f"a job of a batch cannot have {name!r}", hint="submit it outside the batch")
        with self._adding() as batch_ids:
            job_id = await batch_ids.take()
            try:
                submit: Any = self._cluster.submit
                receipt: JobReceipt[Any] = await submit(handler, args, **{**options, "job_id": BatchJobId(job_id)})
            except OutcomeUnknown:
                self._unknown.append(job_id)
                raise
            except asyncio.CancelledError:
                self._unknown.append(job_id)
                raise
            self._size += 1
            return receipt

    async def submit_many(
        self, items: Items, /, handler: Callable[..., Any] | str | None = None, **options: Unpack[BulkOptions]
    ) -> BulkSummary:
        """Add many jobs, also a stream of them; arguments and errors as ``Cluster.submit_many``."""
        with self._adding() as batch_ids:
            bulk = BulkSubmit(self._cluster._submitting(), self._cluster.settings, options, batch_ids)
            try:
                return await bulk.run(items, handler)
            finally:  # also what a cancelled call has submitted
                self._size += bulk.summary.submitted
                self._unknown += bulk.unknown.as_bytes()

    @contextlib.contextmanager
    def _adding(self) -> Iterator[BatchIds]:
        self._refuse()
        if self._ids is None:
            raise InputError("the batch is not open", hint="use it in an async with statement")
        self._under_way += 1
        self._idle.clear()
        try:
            yield self._ids
        finally:
            self._under_way -= 1
            if not self._under_way:
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
        )
        if not await self._batches.open(new):
            raise Conflict(
                f"batch {self.name!r} was not opened: its parent has ended or was cancelled, or there is none",
                hint="open it while a job of the parent runs, or before the parent is closed",
            )
        self._id = batch_id
        range_seconds = self._cluster.settings.limits.clock_skew_seconds / 2
        self._ids = BatchIds(batch_id, self._add_range, self._cluster._clock, range_seconds)
        self._touching = asyncio.create_task(self._touch(), name="jobmaster-batch")
        return self

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
        batch_id = self.id_bytes
        self._closing = True
        if self._under_way:
            await self._idle.wait()
        try:
            await self._count_doubtful()
            await self._batches.close(batch_id, self._size)
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

    async def _add_range(self, lowest: bytes) -> None:
        for _ in range(_RANGES_MAX):
            if await self._batches.add_range(self.id_bytes, lowest):
                return
        state = (await self.get()).state
        raise Conflict(f"batch {self.name!r} takes no more jobs: it is {state.value}", hint="open a new batch")

    async def _touch(self) -> None:
        """Show that the producer is alive, until the batch is closed."""
        seconds = self._checked.abandon_seconds
        while True:
            await asyncio.sleep(min(seconds / 4, _TOUCH_SECONDS_MAX))
            with contextlib.suppress(JobMasterError):
                cancelled = await self._batches.touch(self.id_bytes, seconds)
                if cancelled is None:
                    self._refusal = "it has ended"
                    return
                if cancelled:
                    self._refusal = "it was cancelled"

    def _stop_touching(self) -> None:
        if self._touching is not None:
            self._touching.cancel()
