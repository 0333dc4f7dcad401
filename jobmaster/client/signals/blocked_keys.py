"""Jobs that wait for signals of several keys, of which another open transaction holds some: only the jobs of those fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from jobmaster.client.idempotency_keys import BLOCKED_MAX
from jobmaster.codec import decode_headers
from jobmaster.model.errors import JobMasterError, Unavailable
from jobmaster.model.job import NewJob, Receipt

Rows = list[NewJob]
Answer = Receipt | Exception


async def insert_key_by_key(
    insert: Callable[[Rows], Awaitable[Sequence[Answer]]], jobs: Sequence[NewJob], error: Unavailable, calls_max: int
) -> dict[bytes, Answer]:
    """The answer of ``insert``, or an error, by job: the jobs of one key in one call, after a call for all of them has waited
    in vain for another transaction.

    Args:
        error: of that call.
        calls_max: calls under way at once.
    """
    by_key: dict[str, Rows] = {}
    for job in jobs:
        by_key.setdefault(_key(job), []).append(job)
    if len(by_key) == 1:
        return {job.id: blocked_key(_key(job), error) for job in jobs}
    answers: dict[bytes, Answer] = {}
    keys, blocked = iter(by_key), 0

    async def insert_some() -> None:
        nonlocal blocked
        for key in keys:
            rows = by_key[key]
            if blocked >= BLOCKED_MAX:
                answers.update({job.id: _not_tried(key, error) for job in rows})
                continue
            try:
                answers.update(zip((job.id for job in rows), await insert(rows), strict=True))
            except JobMasterError as own:
                held = isinstance(own, Unavailable) and own.blocked
                blocked += held
                answers.update({job.id: blocked_key(key, own) if held else own for job in rows})

    await asyncio.gather(*(insert_some() for _ in range(calls_max)))
    return answers


def blocked_key(key: str, error: JobMasterError) -> Unavailable:
    """The error of a call that has waited in vain for the key of a signal."""
    return Unavailable(
        f"the key of signal {key!r}: another open transaction sends a signal of it, or submits a job that waits for one "
        f"({error.message})",
        hint="try again when that transaction has ended",
        blocked=True,
    )


def _not_tried(key: str, error: Unavailable) -> Unavailable:
    return Unavailable(
        f"the job that waits for signal {key!r} was not stored: other open transactions hold at least {BLOCKED_MAX} keys of "
        f"jobs that were submitted at the same time ({error.message})",
        hint="try again when those transactions have ended",
    )


def _key(job: NewJob) -> str:
    signal = decode_headers(job.headers).signal
    assert signal is not None, "a job that waits for a signal names it"
    return signal.key
