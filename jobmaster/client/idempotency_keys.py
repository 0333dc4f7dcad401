"""Idempotency keys: the job that holds a key, and the comparison of its payload.

A key belongs to a handler. The first job that reserves it holds it; a later job with the same payload gets the id of the
holder, and one with another payload is refused. The master stores the key with a digest of the payload.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial

from jobmaster.client.coalescer import Coalescer, PendingLimit
from jobmaster.client.dedup import canonical
from jobmaster.model import ids
from jobmaster.model.errors import Conflict
from jobmaster.model.job import NewJob
from jobmaster.ports import Intake

_Batcher = Coalescer[tuple[str, bytes, bytes], tuple[bytes, bytes]]
"""Key, id and digest of each job -> id and digest of the holder."""


class IdempotencyKeys:
    """Reserves keys in batches, one batcher for each handler. Belongs to one event loop."""

    def __init__(self, intake: Intake, *, chunk: int, calls_max: int, pending_limit: PendingLimit) -> None:
        self._intake = intake
        self._chunk = chunk
        self._calls_max = calls_max
        self._pending_limit = pending_limit
        self._batchers: dict[str, _Batcher] = {}

    async def close(self) -> None:
        """Finish the calls under way; refuse callers that wait for the next."""
        await asyncio.gather(*(batcher.close() for batcher in self._batchers.values()))

    async def resolve(self, job: NewJob, key: str) -> tuple[NewJob, bool]:
        """The job under the id that holds the key, and whether that is an older one; ``Conflict`` on another payload."""
        own_digest = digest(job.handler, job.args)
        batcher = self._batchers.get(job.handler)
        if batcher is None:
            batcher = self._batchers[job.handler] = Coalescer(
                partial(self._reserve, job.handler),
                chunk=self._chunk,
                calls_max=self._calls_max,
                pending_limit=self._pending_limit,
            )
        holder, held_digest = await batcher.put((key, job.id, own_digest), len(key))
        if held_digest != own_digest:
            raise Conflict(
                f"idempotency key {key!r} of handler {job.handler!r} belongs to job {ids.text(holder)} with other arguments",
                hint="use another key, or submit the same arguments",
            )
        return job._replace(id=holder), holder != job.id

    async def _reserve(
        self, scope: str, wanted: list[tuple[str, bytes, bytes]]
    ) -> list[tuple[bytes, bytes] | Exception]:
        first: dict[str, tuple[str, bytes, bytes]] = {}
        for item in wanted:
            first.setdefault(item[0], item)
        holders = {
            key: (job_id, held) for key, job_id, held in await self._intake.reserve_keys(scope, list(first.values()))
        }
        return [holders[item[0]] for item in wanted]


def digest(handler: str, args: bytes) -> bytes:
    """sha256 of the payload in one canonical form."""
    return hashlib.sha256(handler.encode() + b"\0" + canonical(args)).digest()
