"""Writes outcomes that were kept in the store while the master was away, page by page, when the master is back.

The bucket continues to work meanwhile: new outcomes take the usual way. Kept ones are read from the oldest on, each is
written under its own identity, and a page is removed after the master has settled all of it. Master first, store
second: after a crash in between the next owner finds the rows and recognises its predecessor's success. A commit
without an answer is repeated. An outcome whose values the master refuses moves to the end of the list: it stays kept
and delays no other.

Owns the emptying of the list ``kept`` of a bucket at work; never decides what an outcome is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import chain
from typing import TypeVar

from jobmaster.codec import ID_AT
from jobmaster.model.errors import InputError, Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.model.job import FinalRow, HoldRow
from jobmaster.ports import KeptPage, ReplayOutcomes, ReplayStore, ReplyStatus, Written
from jobmaster.rules.batching import BatchSize
from jobmaster.telemetry import Telemetry
from jobmaster_agents.call_retry import Backoff
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.outcomes.batch_write import StoredRowsWrite, copied
from jobmaster_agents.outcomes.kept_codec import decode_rows
from jobmaster_agents.outcomes.metrics import OutcomeMetrics
from jobmaster_agents.outcomes.writer import OutcomeWriter
from jobmaster_agents.state.ownership import OnForgotten, OwnedBucket, Ownership
from jobmaster_agents.state.progress import Progress
from jobmaster_agents.state.time_limits import trace_fields_of

PAGE_JOBS = 500
_LOOK_SECONDS = 0.25
_AGAIN_SECONDS = 60.0
"""How soon refused outcomes are tried again."""

_Row = TypeVar("_Row", FinalRow, HoldRow)


class KeptReplay:
    """Writes kept outcomes.

    Args:
        on_forgotten: called when the store answers that a bucket has another owner.
    """

    def __init__(
        self,
        outcomes: ReplayOutcomes,
        store: ReplayStore,
        ownership: Ownership,
        outcome_writer: OutcomeWriter,
        on_forgotten: OnForgotten,
        telemetry: Telemetry,
        log: EventLog,
        progress: Progress,
    ) -> None:
        self._outcomes = outcomes
        self._store = store
        self._ownership = ownership
        self._outcome_writer = outcome_writer
        self._until_answered = outcome_writer.until_answered
        self._on_forgotten = on_forgotten
        self._metrics = OutcomeMetrics(telemetry, outcome_writer.failures)
        self._telemetry = telemetry
        self._log = log
        self._progress = progress
        self._backoff = Backoff("replay_kept", log)
        self.size = BatchSize(PAGE_JOBS)
        """Of the next page and of the statements that write it."""
        self._work = asyncio.Event()
        ownership.on_replay_due.append(self._work.set)

    async def run(self) -> None:
        """Empty buckets whenever the master has come back, until cancelled."""
        with self._progress.expect("the replay of kept outcomes"):
            while True:
                with self._progress.waiting:
                    await self._work.wait()
                self._work.clear()
                for owned in list(self._ownership.buckets.values()):
                    if owned.applies and not owned.lost and not await self._empty_or_pause(owned):
                        self._work.set()  # and again, when the others have had their turn

    async def _empty_or_pause(self, owned: OwnedBucket) -> bool:
        """True when the bucket is empty, except for what the master refuses."""
        try:
            if await self.empty(owned):
                self._backoff.succeeded()
                return True
            await asyncio.sleep(_LOOK_SECONDS)
        except (Unavailable, Refused) as error:
            await self._backoff.pause(error)
        return False

    async def empty(self, owned: OwnedBucket) -> bool:
        """Write and remove all kept outcomes of one bucket; refused ones stay, and are tried again after a minute.

        Returns: False when the store refused, because the bucket is closed or has another owner.

        Raises:
            Unavailable, Refused: from the store; to begin again loses nothing.
        """
        applied = unwritable = 0
        ids: set[bytes] = set()
        to_do: int | None = None
        """Outcomes that were there when this pass began and have not been read."""
        while True:
            await self._until_answered.may_commit()
            self._progress.note()
            known, fence = owned.kept, owned.fence
            page = await self._store.read_kept(fence, self.size.rows, self.size.bytes)
            if page.status is not ReplyStatus.OK:
                self._refused_by_store(owned, fence, page.status)
                return False
            if to_do is None or (to_do <= 0 and page.left > unwritable):
                to_do, unwritable = page.left, 0
                ids.clear()
            if to_do <= 0:
                if owned.kept == known:  # (else another is being kept right now)
                    self._note_last_page(owned, page)
                break
            back = await self.apply(owned, page.raw)
            if (status := await self._store.remove_kept(fence, page.raw, back)) is not ReplyStatus.OK:
                self._refused_by_store(owned, fence, status)
                return False
            to_do -= len(page.raw)
            applied += len(page.raw) - len(back)
            unwritable += len(back)
            ids.update(each[ID_AT] for each in back)
            owned.kept = max(owned.kept - len(page.raw) + len(back), 1)
        owned.unwritable, owned.unwritable_ids = unwritable, frozenset(ids)
        if unwritable:
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._try_again, owned)
        if applied or unwritable:
            fields = {"bucket": owned.fence.bucket_id, "applied": applied, "unwritable": unwritable}
            self._log.info(Event.OUTCOMES_APPLIED, fields)
        return True

    def _try_again(self, owned: OwnedBucket) -> None:
        owned.unwritable = 0
        self._work.set()

    def _refused_by_store(self, owned: OwnedBucket, fence: Fence, status: ReplyStatus) -> None:
        # Another fence: it was unfrozen under a new epoch meanwhile.
        if status is not ReplyStatus.CLOSED and fence == owned.fence:
            self._on_forgotten(fence.bucket_id, f"the store answered {status} to a read of kept outcomes", status)

    @staticmethod
    def _note_last_page(owned: OwnedBucket, page: KeptPage) -> None:
        owned.kept = page.left
        owned.kept_bytes = sum(map(len, page.raw))
        owned.full = False

    # ------------------------------------------------------------ one page

    async def apply(self, owned: OwnedBucket, raw: Sequence[bytes]) -> list[bytes]:
        """Write kept outcomes, each under its own identity; returns those that the master refuses, all others are settled."""
        rows = decode_rows(raw)
        back: list[bytes] = []
        for encoded, error in rows.unreadable:
            back.append(encoded)
            fields = {"job": "?", "reason": f"a kept outcome cannot be read: {error}"}
            self._log.error(Event.JOB_UNWRITABLE, fields)
        if rows.finals:
            back += await self._write("record_final", rows.finals, self._record_final)
        for fence, holds in rows.holds.items():

            async def hold(rows: Sequence[HoldRow], fence: Fence = fence) -> Written:
                written = await self._until_answered(
                    "hold", lambda: self._outcomes.hold(fence, rows), refusals=False, rows=True, timeouts=len(rows) == 1
                )
                self._metrics.given_back(rows, written, here=False)
                return written

            back += await self._write("hold", holds, hold)
        self._telemetry.outcomes_applied += len(raw) - len(back)
        left = set(back)
        readable: list[tuple[FinalRow | HoldRow, bytes]] = [*rows.finals, *chain.from_iterable(rows.holds.values())]
        self._outcome_writer.acknowledger.publish(owned, [row.id for row, encoded in readable if encoded not in left])
        return back

    async def _record_final(self, rows: Sequence[FinalRow]) -> Written:
        await self._until_answered.may_commit()
        if await copied(self._outcomes, rows):
            self._metrics.ended(rows)
            self._outcome_writer.on_ended(rows)
            return Written(True, frozenset(row.id for row in rows))
        written = await self._until_answered(
            "record_final",
            lambda: self._outcomes.record_final(rows),
            refusals=False,
            rows=True,
            timeouts=len(rows) == 1,
        )
        self._metrics.accepted(rows, written)
        self._outcome_writer.on_ended([row for row in rows if row.id in written.accepted])
        return written

    async def _write(
        self,
        what: str,
        pairs: Sequence[tuple[_Row, bytes]],
        send: Callable[[Sequence[_Row]], Coroutine[object, object, Written]],
    ) -> list[bytes]:
        """Send rows; the encoded form of those whose values the master refuses."""
        back: list[bytes] = []
        backoff = Backoff(what, self._log)

        def on_written(written: Written) -> None:
            backoff.succeeded()
            self._outcome_writer.refused += len(written.refused)
            self._outcome_writer.quarantined += len(written.quarantined)

        async def on_refused(pair: tuple[_Row, bytes], error: Refused | InputError) -> bool:
            back.append(pair[1])
            fields = {"job": pair[0].id, "handler": pair[0].handler, "reason": str(error)}
            self._log.error(Event.JOB_UNWRITABLE, {**fields, **trace_fields_of(pair[0].headers)})
            return True

        batches: StoredRowsWrite[_Row] = StoredRowsWrite(self.size, backoff.pause)
        await batches.write(pairs, send, on_written, on_refused)
        return back
