"""Submits of jobs that are to hold a unique key.

The key and the row of the job are written by one statement, so neither exists without the other. A holder that lies in a
bucket cannot be moved there by the master alone: it is recalled first, like a job whose due time is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from jobmaster.client.coalescer import Coalescer, PendingLimit
from jobmaster.codec import decode_headers, encode_headers
from jobmaster.model import ids
from jobmaster.model.errors import (
    Conflict,
    InputError,
    JobMasterError,
    NotFound,
    NotUnique,
    OutcomeUnknown,
    Unavailable,
)
from jobmaster.model.flow.uniqueness import (
    OnConflict,
    SubmitAnswer,
    UniqueAnswer,
    UniqueOutcome,
    UniqueRule,
    UniqueSubmit,
    UniqueTerm,
)
from jobmaster.model.job import Durability, NewJob, Receipt
from jobmaster.model.job_change import ChangeEffect
from jobmaster.ports import Uniqueness
from jobmaster.telemetry import Telemetry

BLOCKED_MAX = 8
"""Keys of one batch that may each wait in vain for another transaction; the others are not tried then."""
_PASSES_MAX = 10
"""Holders that one submit finds started, one after the other."""


class Mover(Protocol):
    """What moves the due time of a holder, and sends the hint that a job is due."""

    async def move_due(self, job_id: bytes, due_us: int) -> ChangeEffect:
        """Give a job another due time, wherever it waits."""
        ...

    async def hint(self, job: NewJob) -> None:
        """One owner reads what is due."""
        ...


class UniqueSubmits:
    """Submits in batches. Belongs to one event loop."""

    def __init__(
        self,
        uniqueness: Uniqueness,
        mover: Callable[[], Mover],
        *,
        chunk: int,
        calls_max: int,
        pending_limit: PendingLimit,
        telemetry: Telemetry,
    ) -> None:
        self._uniqueness = uniqueness
        self._mover = mover
        self._calls_max = calls_max
        self._telemetry = telemetry
        self._batcher: Coalescer[UniqueSubmit, UniqueAnswer] = Coalescer(
            self._send, chunk=chunk, calls_max=calls_max, pending_limit=pending_limit
        )

    async def close(self) -> None:
        """Finish the calls under way; refuse callers that wait for the next."""
        await self._batcher.close()

    async def place(
        self, job: NewJob, rule: UniqueRule, compare: Callable[[NewJob], Awaitable[None]] | None
    ) -> Receipt:
        """Submit one job.

        Args:
            compare: raises ``Conflict`` when the row of the job's id is about something else; ``None``: the id is fresh.

        Raises:
            NotUnique: another job holds the key, and the rule is to reject the submit.
            Conflict: the holder is on its way between the master and a bucket, or another starts whenever one is looked at.
            OutcomeUnknown: it may be stored.
        """
        passed: bytes | None = None
        for _ in range(_PASSES_MAX):
            answer = await self._batcher.put(UniqueSubmit(job, rule, passed), len(job.args) + len(job.headers))
            if answer.outcome is UniqueOutcome.RECALL:
                if await self._moved(answer.job_id, min(job.due_us, answer.limit_us)):
                    return Receipt(answer.job_id, Durability.MASTER, None, True, unique_answer=SubmitAnswer.DEBOUNCED)
                passed = answer.job_id
                continue
            if answer.outcome is UniqueOutcome.KNOWN and compare is not None:
                await compare(job)
                return Receipt(job.id, Durability.MASTER, None, True, unique_answer=SubmitAnswer.EXISTING)
            receipt = receipt_of(answer, job, rule, Durability.MASTER)
            if not receipt.duplicate:
                self._telemetry.jobs_submitted[Durability.MASTER] += 1
                if not job.due_us:
                    await self._mover().hint(job)
            return receipt
        raise Conflict(
            f"unique key {rule.key!r} of handler {job.handler!r}: each of {_PASSES_MAX} jobs that held it started while its "
            "due time was to be moved; nothing was stored",
            hint="submit it again with a longer 'after'",
        )

    async def _moved(self, holder: bytes, due_us: int) -> bool:
        try:
            return await self._mover().move_due(holder, due_us) is ChangeEffect.CHANGED
        except NotFound:
            return False

    async def _send(self, jobs: list[UniqueSubmit]) -> Sequence[UniqueAnswer | Exception]:
        try:
            return await self._send_twice(jobs)
        except Unavailable as error:
            if not error.blocked:
                raise
            return await self._send_each(jobs, error)

    async def _send_twice(self, jobs: list[UniqueSubmit]) -> list[UniqueAnswer]:
        """A second time when the first answer was lost: a job that is there by then is left as it is."""
        try:
            return await self._uniqueness.submit(jobs)
        except OutcomeUnknown as first:
            try:
                return await self._uniqueness.submit(jobs)
            except JobMasterError as error:
                message = (
                    first.message if isinstance(error, OutcomeUnknown) else f"{first.message}; then: {error.message}"
                )
                raise OutcomeUnknown(message, id_bytes=[one.job.id for one in jobs]) from error

    async def _send_each(self, jobs: list[UniqueSubmit], error: Unavailable) -> list[UniqueAnswer | Exception]:
        """One call for each job, after a batch has waited in vain for another transaction, which has locked some keys."""
        if len(jobs) == 1:
            return [_blocked(jobs[0], error)]
        answers: dict[int, UniqueAnswer | Exception] = {}
        waiting, blocked = iter(enumerate(jobs)), 0

        async def send_some() -> None:
            nonlocal blocked
            for place, one in waiting:
                if blocked >= BLOCKED_MAX:
                    answers[place] = _blocked(one, error)
                    continue
                try:
                    (answers[place],) = await self._send_twice([one])
                except JobMasterError as own:
                    answers[place] = own
                    if isinstance(own, Unavailable) and own.blocked:
                        answers[place] = _blocked(one, own)
                        blocked += 1

        await asyncio.gather(*(send_some() for _ in range(self._calls_max)))
        return [answers[place] for place in range(len(jobs))]


def _blocked(one: UniqueSubmit, error: Unavailable) -> Unavailable:
    return Unavailable(
        f"unique key {one.rule.key!r} of handler {one.job.handler!r}: it, or a key that was submitted at the same time, is "
        f"locked by another open transaction; nothing was stored ({error.message})",
        hint="submit again when that transaction has ended",
        blocked=True,
    )


def receipt_of(answer: UniqueAnswer, job: NewJob, rule: UniqueRule, level: Durability) -> Receipt:
    """The receipt of a submit that is done.

    Raises:
        NotUnique: another job holds the key, and the rule is to reject the submit.
        InputError: the id is older than what the master keeps.
    """
    match answer.outcome:
        case UniqueOutcome.REFUSED:
            raise InputError(
                f"job {ids.text(job.id)} is older than what the master keeps, or outside its partitions",
                hint="submit it with a new id",
            )
        case UniqueOutcome.EXISTING if rule.on_conflict is OnConflict.REJECT:
            raise NotUnique(
                f"job {ids.text(answer.job_id)} holds the unique key {rule.key!r} of handler {job.handler!r}",
                holder=UUID(bytes=answer.job_id),
                hint="wait for its end, or submit with on_conflict='existing' or 'replace'"
                if rule.term is UniqueTerm.LIVE
                else "submit again after the window",
            )
        case UniqueOutcome.EXISTING:
            done = SubmitAnswer.EXISTING
        case UniqueOutcome.DEBOUNCED:
            done = SubmitAnswer.DEBOUNCED
        case UniqueOutcome.REPLACED:
            done = SubmitAnswer.REPLACED
        case _:  # a fresh id that has a row is our own, whose first answer was lost
            done = SubmitAnswer.CREATED
    return Receipt(
        answer.job_id, level, None, done in (SubmitAnswer.EXISTING, SubmitAnswer.DEBOUNCED), unique_answer=done
    )


def no_key_in_a_batch(handler: str) -> InputError:
    """The error of a job of a batch that would hold a unique key."""
    return InputError(
        f"a job of handler {handler!r} would hold a unique key, and belongs to a batch: a submit that met another job would "
        "leave a gap in it",
        hint="submit it outside the batch, or a handler without unique=",
    )


def no_key_and_wait(handler: str) -> InputError:
    """The error of a job that would wait for a signal and hold a unique key."""
    return InputError(
        f"a job of handler {handler!r} would wait for a signal and hold a unique key: a key has no such job",
        hint="submit it without wait_for=, or with an idempotency_key and without unique=",
    )


def check_debounce(rule: UniqueRule, due_us: int, now_us: int) -> None:
    """``InputError`` for a debounced submit that is due at once, or later than its due time may ever be moved."""
    if rule.on_conflict is not OnConflict.DEBOUNCE:
        return
    if not due_us:
        raise InputError("a debounced submit needs a due time in the future", hint="give after=, such as after=10")
    if due_us - now_us > rule.span_us:
        raise InputError(
            f"the submit is due {(due_us - now_us) / 1e6:.9g} s from now, and 'debounce' of its key moves a due time at most "
            f"{rule.span_us / 1e6:g} s",
            hint="give a longer debounce, or a shorter after",
        )


def without_key(headers: bytes) -> bytes:
    """Headers of a job without its key."""
    return encode_headers(msgspec.structs.replace(decode_headers(headers), unique_key=None, unique_term=None))


def headers_with_key(headers: bytes, rule: UniqueRule) -> bytes:
    """Headers of a job with its key, so that the row shows it."""
    changed = msgspec.structs.replace(decode_headers(headers), unique_key=rule.key, unique_term=rule.term.value)
    return encode_headers(changed)
