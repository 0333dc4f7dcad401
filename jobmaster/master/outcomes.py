"""Writes of owners about jobs that they claimed. The hot path of the whole system is ``copy_final``."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from operator import itemgetter

import asyncpg

from jobmaster.master.driver import binary_copy, resent_writes
from jobmaster.master.driver.batches import Batch, BatchAnswer, columns, execute_batch, ids_of, run_batch
from jobmaster.master.driver.connection import Connection, StatementRunner, to_us
from jobmaster.model.ids import Fence
from jobmaster.model.job import AttemptOutcome, Entry, FinalRow, HoldRow, InFlightRow, JobState
from jobmaster.ports import CancelledRow, FinishedSteps, ProgressLine, StepScope, UnstorableEntry, Written

_DIGEST_CHARS = 16
_WHY_CHARS = 400
_TIMED_OUT = b'"reason":"timeout"'
_SNOOZED = b'"reason":"snoozed"'
_by_id = itemgetter(0)
_AWAITED = (JobState.WAITING, JobState.SUCCEEDED, JobState.CANCELLED)
"""States of the row of an attempt that waits for its confirmation or has it, when the write is sent again."""


class Outcomes:
    """``jobmaster.ports.Outcomes`` on PostgreSQL.

    Args:
        data: statements that may wait for locks of others.
        writes: short statements by key, which wait for none for long.
    """

    def __init__(self, data: StatementRunner, writes: StatementRunner) -> None:
        self._data = data
        self._writes = writes

    async def copy_final(self, rows: Sequence[FinalRow]) -> bool:
        """COPY of outcomes that expect no row, sorted by id.

        False: some id has a row already or no partition (then nothing was written), or lies below the floor (then its
        row vanished and its neighbours were written). Then ``record_final`` with the same rows returns the result of each.
        """
        if not rows:
            return True
        # The whole batch is encoded before the COPY is opened, so that a client that freezes in between holds no lock.
        try:
            parts = binary_copy.encode(sorted(rows, key=_by_id))
        except (struct.error, UnicodeEncodeError):
            return False  # no row was written; the guarded statement finds the one that is to blame

        async def copy(connection: Connection) -> str:
            return await connection.copy_to_table(
                "job", source=binary_copy.source(parts), columns=binary_copy.COLUMNS, format="binary"
            )

        try:
            status = await self._writes.run(
                "copy_final",
                copy,
                ids=ids_of(rows),
                raw=(asyncpg.UniqueViolationError, asyncpg.CheckViolationError),
            )
        except (asyncpg.UniqueViolationError, asyncpg.CheckViolationError):
            return False
        return status == f"COPY {len(rows)}"

    async def record_final(self, rows: Sequence[FinalRow]) -> Written:
        """Guarded upsert of outcomes (the identity on the row); no bucket lock."""

        async def send(some: Sequence[FinalRow]) -> BatchAnswer:
            return await execute_batch(self._writes, "outcomes/record_final", *columns(some), ids=ids_of(some))

        batch = Batch(self._data, "outcomes/record_final", send, resent_writes.final)
        written = await batch.write(rows)
        if batch.stale:
            await self.mark_refused(batch.stale)
        return written

    async def finish_steps(self, fence: Fence, rows: Sequence[FinalRow], scope: StepScope) -> FinishedSteps:
        """``record_final`` of outcomes of steps; next steps that fit become ASSIGNED to the bucket, under its lock."""
        entries: list[Entry] = []
        more = False

        async def send(some: Sequence[FinalRow]) -> BatchAnswer:
            nonlocal more
            wanted = (scope.lane, scope.priority, scope.handlers, scope.without_tags or None, scope.capabilities)
            found = await run_batch(
                self._data, "outcomes/finish_steps", *columns(some), *fence, *wanted, ids=ids_of(some)
            )
            entries.extend(
                Entry(id_, token, handler, args, to_us(due), headers, attempt, rescues)
                for _, _, id_, token, handler, args, due, headers, attempt, rescues in found
                if id_ is not None
            )
            more = more or found[0]["more"]
            return BatchAnswer(found[0]["accepted"])

        batch = Batch(self._data, "outcomes/finish_steps", send, resent_writes.final)
        written = await batch.write(rows)
        if batch.stale:
            await self.mark_refused(batch.stale)
        return FinishedSteps(written, entries, more)

    async def mark_refused(self, rows: Sequence[FinalRow]) -> None:
        """Outcomes that their rows refused are noted on the ``attempt`` rows of their identities; one that is there twice
        (kept twice, because an answer was lost) is noted once, because a statement writes no row twice."""
        identities = list(dict.fromkeys((row.id, row.token, row.bucket_id, row.bucket_epoch) for row in rows))
        await self._data.write("outcomes/mark_refused", *columns(identities))

    async def await_confirmation(
        self, row: FinalRow, within_seconds: float, pause_seconds: float, error: bytes | None
    ) -> bool:
        """The job of this attempt waits to be confirmed from outside.

        Args:
            pause_seconds: after that, until its next attempt.
            error: error of the job when no confirmation comes, ``None`` when it has another attempt.

        Returns: False when its row refuses: superseded (also by a confirmation that came first).
        """
        identity = (row.id, row.token, row.bucket_id, row.bucket_epoch)
        values = (row.attempt, within_seconds, pause_seconds, error, row.waited_us, row.ran_us)
        if await self._data.write("outcomes/await_confirmation", *identity, *values, ids=[row.id]):
            return True
        found = await self._data.read("jobs/peek", [row.id], row.id, row.id)
        return any(
            resent_writes.CurrentRow(*each).identity == identity[1:] and each["state"] in _AWAITED for each in found
        )

    async def is_recorded(self, row: FinalRow) -> bool:
        """Whether the job's row has this outcome under this identity: the answer to a commit that was lost."""
        found = await self._data.read("jobs/peek", [row.id], row.id, row.id)
        accepted = resent_writes.RowResult.ACCEPTED
        return any(resent_writes.final(row, resent_writes.CurrentRow(*each)) is accepted for each in found)

    async def report_progress(self, lines: Sequence[ProgressLine]) -> None:
        """Store the last reports of some runs, each job once."""
        await self._data.write("outcomes/report_progress", *columns(lines))

    async def persist(self, fence: Fence, rows: Sequence[InFlightRow]) -> Written:
        """Guarded upsert of in-flight rows under the bucket lock. ``cancelled`` rows were left as they are."""

        async def send(some: Sequence[InFlightRow]) -> BatchAnswer:
            return await execute_batch(self._writes, "outcomes/persist", *fence, *columns(some), ids=ids_of(some))

        return await Batch(
            self._data,
            "outcomes/persist",
            send,
            lambda row, found: resent_writes.persisted(row.token, fence.bucket_id, fence.epoch, found),
            bucket_id=fence.bucket_id,
            cancelled_is_accepted=False,
        ).write(rows)

    async def hold(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        """Rows -> HELD by identity, with ``attempt`` lines where ``error`` is set; no bucket lock."""

        async def send(some: Sequence[HoldRow]) -> BatchAnswer:
            return await execute_batch(
                self._data, "outcomes/hold", fence.bucket_id, fence.epoch, *_hold_columns(some), ids=ids_of(some)
            )

        return await Batch(
            self._data,
            "outcomes/hold",
            send,
            lambda row, found: resent_writes.held(row.token, fence.bucket_id, fence.epoch, found),
            bucket_id=fence.bucket_id,
        ).write(rows)

    async def retry_here(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        """Rows -> ASSIGNED in the same bucket with token + 1, under the bucket lock, with ``attempt`` lines."""

        async def send(some: Sequence[HoldRow]) -> BatchAnswer:
            return await execute_batch(
                self._data, "outcomes/retry_here", *fence, *_hold_columns(some), ids=ids_of(some)
            )

        return await Batch(
            self._data,
            "outcomes/retry_here",
            send,
            lambda row, found: resent_writes.kept_here(row, fence.bucket_id, fence.epoch, found),
            bucket_id=fence.bucket_id,
        ).write(rows)

    async def still_assigned(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> frozenset[bytes]:
        """Ids of those ``(id, token)`` whose rows are still ASSIGNED to this bucket."""
        tokens = dict(identities)
        found = [
            resent_writes.CurrentRow(*row)
            for row in await self._data.read("jobs/peek", list(tokens), min(tokens), max(tokens))
        ]
        return frozenset(
            row.id for row in found
            if row.state == JobState.ASSIGNED and not row.cancel_requested
            and row.identity == (tokens[row.id], fence.bucket_id, fence.epoch)
        )  # fmt: skip

    async def cancel_waiting(self, fences: Sequence[Fence], job_ids: Sequence[bytes]) -> list[CancelledRow]:
        """Jobs with a cancel request that wait unclaimed in the caller's buckets -> CANCELLED."""
        ids = sorted(job_ids)
        buckets = [fence.bucket_id for fence in fences], [fence.epoch for fence in fences]
        rows = await self._data.write("outcomes/cancel_waiting", *buckets, ids, ids[0], ids[-1], ids=ids)
        return [CancelledRow(row["id"], row["bucket_id"], to_us(row["due_at"]), row["ended"]) for row in rows]

    async def quarantine(self, bucket_id: bytes, entries: Sequence[UnstorableEntry]) -> None:
        """Keep entries that no table takes, byte for byte, for an operator; sent again, nothing more is kept."""
        ids = [each.id for each in entries]
        reasons = [_reason(each) for each in entries]
        await self._data.write("jobs/quarantine", ids, bucket_id, reasons, [each.raw for each in entries], ids=ids)


def _hold_columns(rows: Sequence[HoldRow]) -> list[list[object]]:
    """Columns of ``HoldRow`` up to ``error``, then how the attempt ended, then how long it ran."""
    *others, ran = columns(rows)
    return [*others, [_attempt_outcome(row.error) for row in rows], ran]


def _attempt_outcome(error: bytes | None) -> str | None:
    # Inside a JSON string the quotes would be escaped, so the bytes can only be the field itself.
    if error is None:
        return None
    if _SNOOZED in error:
        return AttemptOutcome.SNOOZED
    return AttemptOutcome.TIMED_OUT if _TIMED_OUT in error else AttemptOutcome.FAILED


def _reason(unfit: UnstorableEntry) -> str:
    """Why, and of which bytes: two entries of one id are two lines. ASCII, so that no database refuses the reason as well."""
    digest = hashlib.sha256(unfit.raw).hexdigest()[:_DIGEST_CHARS]
    why = unfit.why.encode("ascii", "backslashreplace").decode().replace("\0", "\\0")
    return f"{unfit.kind} entry {digest}: {why[:_WHY_CHARS]}"
