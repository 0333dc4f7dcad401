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
from jobmaster.model.errors import Conflict, JobMasterError, Unavailable
from jobmaster.model.job import NewJob
from jobmaster.ports import Intake

BLOCKED_MAX = 8
"""Keys of one batch that may each wait in vain for another transaction. After so many the others are not tried: they are
mostly of the same transaction, and each of them would delay all keys that come later."""

_Reservation = tuple[str, bytes, bytes]
"""Key, id of the job, digest of its payload."""
_Batcher = Coalescer[_Reservation, tuple[bytes, bytes]]
"""What is wanted -> id and digest of the holder."""


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

    async def _reserve(self, scope: str, wanted: list[_Reservation]) -> list[tuple[bytes, bytes] | Exception]:
        first: dict[str, _Reservation] = {}
        for item in wanted:
            first.setdefault(item[0], item)
        try:
            found = await self._intake.reserve_keys(scope, list(first.values()))
        except Unavailable as error:
            if not error.blocked:
                raise
            holders = await self._reserve_each(scope, list(first.values()), error)
        else:
            holders = {key: (job_id, held) for key, job_id, held in found}
        return [holders[item[0]] for item in wanted]

    async def _reserve_each(
        self, scope: str, items: list[_Reservation], error: Unavailable
    ) -> dict[str, tuple[bytes, bytes] | Exception]:
        """The holder, or an error, of each key after a batch has waited in vain for another transaction, which holds one or
        some of the keys. All others are reserved."""
        if len(items) == 1:
            return {items[0][0]: _blocked(scope, items[0][0], error)}
        answers: dict[str, tuple[bytes, bytes] | Exception] = {}
        waiting, blocked = iter(items), 0

        async def reserve_some() -> None:
            nonlocal blocked
            for item in waiting:
                if blocked >= BLOCKED_MAX:
                    answers[item[0]] = _not_tried(scope, item[0], error)
                    continue
                try:
                    ((_, job_id, held),) = await self._intake.reserve_keys(scope, [item])
                    answers[item[0]] = job_id, held
                except JobMasterError as own:
                    answers[item[0]] = own
                    if isinstance(own, Unavailable) and own.blocked:
                        answers[item[0]] = _blocked(scope, item[0], own)
                        blocked += 1

        await asyncio.gather(*(reserve_some() for _ in range(self._calls_max)))
        return answers


def _blocked(scope: str, key: str, error: Unavailable) -> Unavailable:
    return Unavailable(
        f"idempotency key {key!r} of handler {scope!r}: another open transaction has reserved it ({error.message})",
        hint="submit again when that transaction has ended",
        blocked=True,
    )


def _not_tried(scope: str, key: str, error: Unavailable) -> Unavailable:
    return Unavailable(
        f"idempotency key {key!r} of handler {scope!r} was not reserved: other open transactions have reserved at least "
        f"{BLOCKED_MAX} keys that were submitted at the same time ({error.message})",
        hint="submit again when those transactions have ended",
    )


def digest(handler: str, args: bytes) -> bytes:
    """sha256 of the payload in one canonical form."""
    return hashlib.sha256(handler.encode() + b"\0" + canonical(args)).digest()
