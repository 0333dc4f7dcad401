"""Whether a job exists at all: the proof that neither the master nor any bucket has it.

Every bucket is looked into first, then the master. A job without a row moves in one direction: its row is committed, then its
copy is erased. So what had left a bucket before it was looked into shows as a row afterwards.

The proof is strict: a store without an answer, a bucket with more jobs than one look reads, an outcome that is kept for the
master, or a bucket that this producer does not know leave the question open, and the wait for the job goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from enum import Enum

from jobmaster.client.bucket_directory import BucketDirectory, BucketHandle
from jobmaster.client.coalescer import Coalescer, PendingLimit
from jobmaster.client.lookup import FINDS_MAX, SCAN_JOBS_MAX
from jobmaster.model import ids
from jobmaster.model.bucket import BucketDepth
from jobmaster.model.errors import JobMasterError, NotFound
from jobmaster.ports import FIND_IDS_MAX, AntiEntropyStore, Queries

DEPTH_MAX = SCAN_JOBS_MAX // 2
"""A bucket with more waiting jobs is not read to its end for certain: what is claimed counts too, in an unknown number."""

NAMED_MAX = 3
"""Jobs that an error names."""


class Existence(Enum):
    """What a look has shown of one job."""

    FOUND = "found"
    NOWHERE = "nowhere"
    OPEN = "open"
    """Not found, and not everything could be looked into."""


def not_found(job_ids: Sequence[bytes]) -> NotFound:
    """The error for jobs that exist nowhere."""
    named = ", ".join(map(ids.text, job_ids[:NAMED_MAX]))
    if len(job_ids) > NAMED_MAX:
        named += f" and {len(job_ids) - NAMED_MAX} more"
    return NotFound(
        f"there is no job {named}",
        id_bytes=job_ids,
        hint="neither the master nor a bucket has it; it may be older than the retention",
    )


class ExistenceCheck:
    """Looks for jobs in every bucket and in the master. Belongs to one event loop.

    Concurrent callers share one look: it costs the stores the same for one job as for 500.
    """

    def __init__(self, queries: Queries, stores: Mapping[str, AntiEntropyStore], buckets: BucketDirectory) -> None:
        self._queries = queries
        self._stores = stores
        self._buckets = buckets
        self._coalescer: Coalescer[bytes, Existence] = Coalescer(
            self._look, chunk=FIND_IDS_MAX, calls_max=1, pending_limit=PendingLimit()
        )

    async def of(self, job_ids: Sequence[bytes]) -> dict[bytes, Existence]:
        """What is known of each job; ``OPEN`` for all while the master does not answer."""
        futures = {job_id: self._coalescer.put(job_id, len(job_id)) for job_id in job_ids}
        try:
            return {job_id: await future for job_id, future in futures.items()}
        except JobMasterError:
            return dict.fromkeys(job_ids, Existence.OPEN)
        finally:
            for future in futures.values():
                future.cancel()

    async def close(self) -> None:
        """Finish the look under way; refuse callers that wait for the next."""
        await self._coalescer.close()

    async def _look(self, job_ids: list[bytes]) -> list[Existence | Exception]:
        wanted = list(dict.fromkeys(job_ids))
        await self._buckets.fresh()
        await self._buckets.renew()
        # All three from one reading: a renewal beside this must not make a bucket known that was not looked into.
        known, handles, whole = self._buckets.bucket_ids(), self._buckets.all_handles(), self._buckets.sees_all
        by_store: dict[str, list[BucketHandle]] = {}
        for handle in handles:
            by_store.setdefault(handle.store_handle.name, []).append(handle)
        found: set[bytes] = set()
        answers = await asyncio.gather(
            *(self._look_into(self._stores[name], of_store, wanted, found) for name, of_store in by_store.items())
        )
        rows, strangers = await self._queries.sent_before(wanted, known)
        certain = whole and all(answers) and not strangers
        missing = Existence.NOWHERE if certain else Existence.OPEN
        return [Existence.FOUND if one in found or one in rows else missing for one in job_ids]

    async def _look_into(
        self, store: AntiEntropyStore, handles: Sequence[BucketHandle], wanted: Sequence[bytes], found: set[bytes]
    ) -> bool:
        """Add what lies in buckets of one store to ``found``; whether all of it has been seen."""
        whole = True
        try:
            for start in range(0, len(handles), FINDS_MAX):
                page = [handle.id for handle in handles[start : start + FINDS_MAX]]
                # The number of jobs counts before the look: a job that was there then lies no deeper during it. What is
                # kept counts after it: an outcome that came in between has taken its job out of the lists.
                before = await store.depths(page)
                for entries in await store.find(page, wanted, SCAN_JOBS_MAX):
                    found.update(entries)
                after = await store.depths(page)
                whole = whole and all(map(_is_small, before)) and all(map(_keeps_nothing, after))
        except JobMasterError:
            return False
        return whole


def _is_small(depth: BucketDepth | None) -> bool:
    return depth is not None and depth.pending + depth.assigned <= DEPTH_MAX


def _keeps_nothing(depth: BucketDepth | None) -> bool:
    return depth is not None and depth.kept == 0
