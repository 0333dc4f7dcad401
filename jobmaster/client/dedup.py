"""Jobs whose ids their callers chose, so that they can be sent again: whether one is there already, with which payload.

A store compares no payloads, so they are compared here, before a second copy is sent. Callers are batched: one lookup for
all of them costs what one alone would cost, a scan of each bucket and one statement.

The buckets are looked into first, then the master, once. A job without a row moves in one direction: its row is committed,
then its copy is erased. So what had left a bucket before it was looked into shows as a row afterwards. The other way round
it could be missed between the two reads, and the master would have to be read a second time.

The bucket directory may be old: the statement also returns whether there is, at its moment, a bucket beyond those that
were looked into. If so, the new ones are read and the master is read again. The directory is not renewed otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from jobmaster.client.bucket_directory import BucketDirectory, BucketHandle
from jobmaster.client.coalescer import Coalescer, PendingLimit
from jobmaster.client.lookup import copies
from jobmaster.codec import decode_json
from jobmaster.model import ids
from jobmaster.model.errors import Conflict, JobMasterError, Unavailable
from jobmaster.model.job import Durability, Entry, NewJob, Receipt
from jobmaster.ports import FIND_IDS_MAX, FindStore, Queries, SentRow

LOOKS_MAX = 1
"""Lookups under way at once. A second one beside it would scan the same lists for half of the callers."""
ROUNDS_MAX = 3
"""Rounds of one look while new buckets keep being opened."""


class FoundJob(NamedTuple):
    """What was found of one job."""

    row: SentRow | None
    copy: tuple[Entry, BucketHandle] | None


class Deduplicator:
    """Finds jobs that may have been sent before. Belongs to one event loop."""

    def __init__(
        self,
        queries: Queries,
        stores: Mapping[str, FindStore],
        buckets: BucketDirectory,
        pending_limit: PendingLimit,
    ) -> None:
        self._queries = queries
        self._stores = stores
        self._buckets = buckets
        self._coalescer: Coalescer[bytes, FoundJob] = Coalescer(
            self._look, chunk=FIND_IDS_MAX, calls_max=LOOKS_MAX, pending_limit=pending_limit
        )

    async def close(self) -> None:
        """Finish the lookup under way; refuse callers that wait for the next."""
        await self._coalescer.close()

    async def receipt(self, job: NewJob, need: Durability | None) -> Receipt | None:
        """The receipt of a job that is there already, as safe as is required now; ``None``: send it (again).

        Args:
            need: the required level; ``None``: a committed row.

        Raises:
            Conflict: it is there with another payload.
        """
        row, copy = await self._coalescer.put(job.id, 16 + len(job.args))
        if row is not None:
            refuse_another(job, row.handler, row.args)
            return Receipt(job.id, Durability.MASTER, row.bucket_id, True)
        if copy is None:
            return None
        entry, handle = copy
        refuse_another(job, entry.handler, entry.args)
        if need is None:
            return None
        try:
            level = await handle.store_handle.level()
        except JobMasterError:
            return None
        return Receipt(job.id, level, handle.id, True) if handle.store_handle.satisfies(level, need) else None

    async def _look(self, job_ids: list[bytes]) -> list[FoundJob | Exception]:
        """What exists of each job. A store or master that does not answer counts as empty."""
        wanted = list(dict.fromkeys(job_ids))
        found: dict[bytes, tuple[Entry, BucketHandle]] = {}
        rows: dict[bytes, SentRow] = {}
        looked_into: set[bytes] = set()
        await self._buckets.known()
        for _ in range(ROUNDS_MAX):
            # Both from one reading: a renewal beside this must not make a bucket known that was not looked into.
            known = self._buckets.bucket_ids()
            handles = [handle for handle in self._buckets.all_handles() if handle.id not in looked_into]
            looked_into.update(handle.id for handle in handles)
            found.update(await copies(self._stores, [job_id for job_id in wanted if job_id not in found], handles))
            try:
                rows, strangers = await self._queries.sent_before(wanted, known)
            except Unavailable:
                break
            if not strangers:
                break
            await self._buckets.renew(outdated=True)
        return [FoundJob(rows.get(job_id), found.get(job_id)) for job_id in job_ids]


def refuse_another(job: NewJob, handler: str, args: bytes) -> None:
    """``Conflict`` when what was found is about something else."""
    if handler != job.handler or canonical(args) != canonical(job.args):
        raise Conflict(
            f"job {ids.text(job.id)} exists already, for handler {handler!r} with other arguments",
            hint="use a new job_id",
        )


def canonical(args: bytes) -> bytes:
    """Arguments in one form, whatever their order."""
    return msgspec.json.encode(decode_json(args), order="sorted")
