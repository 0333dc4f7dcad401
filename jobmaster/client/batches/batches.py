"""``Cluster.batches``: batches that there are, and what is done to them."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from jobmaster.client.batches.batch import Batch
from jobmaster.client.batches.options import NAME_CHARS_MAX, CheckedBatch, batch_id_of
from jobmaster.client.jobs.retry_as_new_job import RETRYABLE, stored_options
from jobmaster.client.locks.options import LABEL_CHARS_MAX
from jobmaster.client.submitter import StoredArguments
from jobmaster.handlers import check_name
from jobmaster.model import ids
from jobmaster.model.errors import Conflict, InputError, NotFound, OutcomeUnknown, WaitTimeout
from jobmaster.model.flow.batch import BatchState, BatchView, FoundBatch, NewBatch, Position, range_end
from jobmaster.model.job_view import JobFilter, JobView

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster

BatchRef = Batch | BatchView | UUID | str | bytes
"""A batch: itself, its view, or its id."""
LIMIT, LIMIT_MAX = 100, 1000
PAGE_JOBS = 1000
_LOOK_SECONDS, _LOOK_SECONDS_MAX = 0.05, 1.0
_READS = 10_000
_RETRY_SECONDS = 30 * 86400.0
"""A retry whose caller has died can be carried on for so long."""
SILENT_SECONDS = 15.0
"""A producer of a batch with a key that has given no sign for so long is dead, or has lost the batch."""


class Batches:
    """The batches of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._master = cluster.master.batches

    # ------------------------------------------------------------ reading

    async def get(self, batch: BatchRef) -> BatchView:
        """A batch as it is now, without a count of its jobs (``counts``: only once it has ended).

        Raises:
            NotFound: there is no such batch, or it was forgotten.
        """
        batch_id = batch_id_of(batch)
        found = await self._master.list(batch_id)
        if not found:
            raise NotFound(
                f"there is no batch {ids.text(batch_id)}", hint="it may be older than the retention of batches"
            )
        return found[0]

    async def progress(self, batch: BatchRef) -> BatchView:
        """A batch with a count of its jobs. A count reads all of their rows: about a second for a million."""
        view = await self.get(batch)
        if view.state.final:
            return view
        counts = await self._master.progress(view.id_bytes)
        view = await self.get(view)  # its size may have become known
        if view.state.final:
            return view
        known = counts.ended + counts.unfinished
        missing = max(view.size - known, 0) if view.state is BatchState.CLOSED else 0
        return msgspec.structs.replace(view, counts=msgspec.structs.replace(counts, missing=missing))

    async def list(
        self,
        *,
        state: BatchState | str | Sequence[BatchState | str] | None = None,
        name: str | None = None,
        key: str | None = None,
        before: BatchRef | None = None,
        limit: int = LIMIT,
    ) -> builtins.list[BatchView]:
        """Batches, the newest first; one page of at most ``limit`` (1 to 1000). The next page is that with
        ``before=page[-1]``.

        Raises:
            InputError: a state that there is not, or a limit out of bounds.
        """
        if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
            raise InputError(f"'limit' must be a whole number from 1 to {LIMIT_MAX}, not {limit!r}")
        states = [state] if isinstance(state, str) else list(state or ())
        return await self._master.list(
            states=[_state(each) for each in states],
            name=None if name is None else check_name(name, "'name'"),
            key=None if key is None else check_name(key, "'key'", NAME_CHARS_MAX),
            before=None if before is None else batch_id_of(before),
            limit=limit,
        )

    async def wait(self, batch: BatchRef, *, timeout: float | None = None) -> BatchView:
        """Wait until a batch has ended, however.

        Raises:
            WaitTimeout: it has not within ``timeout`` seconds; it goes on.
            NotFound: there is no such batch.
        """
        pause = _LOOK_SECONDS
        try:
            async with asyncio.timeout(timeout):
                while not (view := await self.get(batch)).state.final:
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, _LOOK_SECONDS_MAX)
                return view
        except TimeoutError:
            raise WaitTimeout(
                f"batch {ids.text(batch_id_of(batch))} has not ended within {timeout:g} s", hint="it goes on"
            ) from None

    # ------------------------------------------------------------ changing

    async def cancel(self, batch: BatchRef, *, actor: str = "client") -> BatchView:
        """Cancel a batch and those inside it: jobs that wait do not start, jobs that run are stopped as by a cancel. It is
        CANCELLED when all of its jobs have ended; of its callbacks only ``on_complete`` is submitted. Safe to repeat.

        Jobs in buckets end when their agents come to them; agents know of it within one renewal.

        Returns: the batch as it is now; one that had ended before is left as it is.
        """
        view = await self.get(batch)
        for each in await self._master.request_cancel(view.id_bytes, check_name(actor, "'actor'")):
            after: bytes | None = None
            while True:
                after, _ = await self._master.cancel_page(each, after, PAGE_JOBS)
                if after is None:
                    break
            await self._conclude(each)
        return await self.get(view)

    async def retry_failed(self, batch: BatchRef, *, actor: str | None = None) -> Batch:
        """Run the jobs of an ended batch that have not succeeded again, as the jobs of a new batch with the same name and
        callbacks; its ``retry_of`` names the old one. Jobs that never had a row (``missing``) cannot be run again.

        Args:
            actor: as of ``Cluster.retry``.

        Returns: the new batch, closed.

        Raises:
            Conflict: the batch has not ended, all of its jobs have succeeded, or it was retried before: then that retry can
                be retried. A retry whose caller has died before all jobs were submitted is carried on.
        """
        view = await self.get(batch)
        if not view.state.final or view.state is BatchState.SUCCEEDED:
            raise Conflict(f"batch {view.id} is {view.state.value}", hint="only what has failed can be retried")
        retried_by = None if actor is None else check_name(actor, "'actor'")
        label = None if retried_by is None else retried_by[:LABEL_CHARS_MAX]
        async with self._cluster.lock(f"batch retry {view.id}", wait=60.0, label=label):
            retries = await self._master.list(retry_of=view.id_bytes, limit=LIMIT_MAX)
            if any(each.state is not BatchState.OPEN for each in retries):
                raise Conflict(
                    f"batch {view.id} is retried by batch {retries[0].id}", hint="retry that one if it fails"
                )
            callbacks = await self._master.callbacks(view.id_bytes)
            parts = CheckedBatch(
                view.name, view.description, None, None, _RETRY_SECONDS, {}, key=f"retry of batch {view.id}"
            )
            async with Batch(self._cluster, self, parts, view.id_bytes, callbacks) as again:
                if retried_by is not None:  # a retry that is complete is refused, so the line comes first
                    note = self._cluster.master.requests.note_once
                    await note(retried_by, "batch retry", str(view.id), {"batch": str(again.id)})
                for lowest in view.ranges:
                    await self._retry_range(again, lowest)
            return again

    async def _retry_range(self, again: Batch, lowest: bytes) -> None:
        chosen = JobFilter(states=tuple(RETRYABLE))
        highest = range_end(lowest)
        while lowest <= highest:
            step = await self._cluster.master.queries.jobs(
                chosen, lowest, highest, reads=_READS, limit=PAGE_JOBS, payload=True
            )
            await asyncio.gather(*(self._retry_one(again, view) for view in step.jobs if not view.deleted))
            last = step.jobs[-1].id_bytes if len(step.jobs) == PAGE_JOBS else step.read_to
            if last <= lowest:
                return
            highest = (int.from_bytes(last, "big") - 1).to_bytes(16, "big")

    async def _retry_one(self, again: Batch, view: JobView) -> None:
        view = self._cluster._opened_to_submit(view)
        options: Any = stored_options(view, {})
        await again.submit(view.handler, StoredArguments(view.arguments_json), **options)

    # ------------------------------------------------------------ for the producer of a batch

    async def open(self, new: NewBatch) -> bool:
        """Store a new batch; an unknown commit is asked again."""
        answer = await _answered(lambda: self._master.open(new))
        return answer or bool(await self._master.list(new.id))

    async def has_key(self, key: str) -> bool:
        """True when there is a batch of this key."""
        return bool(await self._master.list(key=key))

    async def take_over(self, key: str, producer: bytes, abandon_seconds: float) -> FoundBatch | None:
        """The batch of a key, once no other producer fills it; ``None``: there is none.

        Raises:
            Conflict: another producer fills it.
        """
        ends = self._cluster._clock.boottime() + 2 * SILENT_SECONDS
        while True:
            found = await self._master.take_over(key, producer, SILENT_SECONDS, abandon_seconds)
            if found is None or found.taken or found.state is not BatchState.OPEN:
                return found
            if self._cluster._clock.boottime() > ends:
                raise Conflict(
                    f"batch {ids.text(found.id)} of key {key!r} is being filled by another producer",
                    hint="wait until that one has closed it, or stop it",
                )
            await asyncio.sleep(_LOOK_SECONDS_MAX)

    async def add_range(self, batch_id: bytes, lowest: bytes, first: int, producer: bytes | None) -> bool:
        """Another range of ids."""
        return await _answered(lambda: self._master.add_range(batch_id, lowest, first, producer))

    async def touch(
        self, batch_id: bytes, abandon_seconds: float, producer: bytes | None, position: Position
    ) -> bool | None:
        """The producer is alive."""
        return await self._master.touch(batch_id, abandon_seconds, producer, position)

    async def close(self, batch_id: bytes, size: int, producer: bytes | None, given: int) -> None:
        """The number of jobs is known; the batch ends if all of them have."""
        closed = await _answered(lambda: self._master.close(batch_id, size, producer, given))
        if not closed:
            view = await self.get(batch_id)
            if view.reason or view.state is BatchState.OPEN or view.size != size:
                raise Conflict(
                    f"batch {view.id} was not closed: it is {view.state.value}{', ' if view.reason else ''}{view.reason}",
                    hint="its jobs go on",
                )
        await self._conclude(batch_id)

    async def _conclude(self, batch_id: bytes) -> None:
        for each in await self._master.full([batch_id]):
            concluded = await self._master.conclude(each)
            if concluded is None:
                continue
            for lane, priority in concluded.groups:
                await self._cluster._hint_after_commit(lane, priority)
            if concluded.parent is not None:
                await self._conclude(concluded.parent)


async def _answered(write: Callable[[], Awaitable[bool]]) -> bool:
    """The write; sent a second time when its first answer was lost."""
    try:
        return await write()
    except OutcomeUnknown:
        return await write()


def _state(value: object) -> BatchState:
    try:
        return BatchState(str(value).upper())
    except ValueError:
        valid = ", ".join(BatchState)
        raise InputError(f"{value!r} is no state of a batch", hint=f"valid are {valid}") from None
