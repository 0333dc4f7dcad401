"""Outcomes that were kept in the store while the master was away are written when it is back, page by page.

The bucket goes on working meanwhile: new outcomes take the usual way, kept ones are read from the oldest on, each is written
under its own identity, and a page is removed after the master has settled all of it. Master first, store second: whoever
dies in between leaves outcomes that the next owner finds to be an own success. An uncertain commit is sent again. An outcome
that the master will not take for its values goes to the end of the list, so that it is kept and holds up nobody.

Owns the emptying of ``spilled`` in a bucket at work; must never decide what an outcome says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import chain
from typing import TypeVar

from jobmaster.model.errors import InputError, Refused, Unavailable
from jobmaster.model.ids import Fence, text
from jobmaster.model.job import FinalRow, HoldRow
from jobmaster.ports import Kept, Outcomes, StoreOwner, Word, Written
from jobmaster.rules.batching import Size
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.outcomes.batch_write import StoredRowsWrite, copied
from jobmaster_agents.outcomes.kept_codec import ID_AT, decode_rows
from jobmaster_agents.outcomes.metrics import OutcomeMetrics
from jobmaster_agents.outcomes.writer import OutcomeWriter
from jobmaster_agents.retrying import Backoff
from jobmaster_agents.state.ownership import OnForgotten, OwnedBucket, Ownership

PAGE_JOBS = 500
_LOOK_SECONDS = 0.25
_AGAIN_SECONDS = 60.0
"""How soon what the master will not take is tried again."""

_Row = TypeVar("_Row", FinalRow, HoldRow)


class KeptReplay:
    """Writes kept outcomes.

    Args:
        on_forgotten: the store said that a bucket is another's.
    """

    def __init__(
        self,
        master: Outcomes,
        store: StoreOwner,
        ownership: Ownership,
        outcome_writer: OutcomeWriter,
        on_forgotten: OnForgotten,
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._master = master
        self._store = store
        self._ownership = ownership
        self._outcome_writer = outcome_writer
        self._until_answered = outcome_writer.until_answered
        self._on_forgotten = on_forgotten
        self._metrics = OutcomeMetrics(telemetry, outcome_writer.failures)
        self._telemetry = telemetry
        self._log = log
        self._backoff = Backoff("apply", log)
        self.size = Size(PAGE_JOBS)
        """Of the next page and of the statements that write it."""
        self._work = asyncio.Event()
        ownership.on_replay_due.append(self._work.set)

    async def run(self) -> None:
        """Empty buckets whenever the master has come back, until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            for owned in list(self._ownership.buckets.values()):
                if owned.applies and not owned.lost and not await self._tried(owned):
                    self._work.set()  # and again, when the others have had their turn

    async def _tried(self, owned: OwnedBucket) -> bool:
        """True when the bucket is empty, as far as the master takes what lies there."""
        try:
            if await self.empty(owned):
                self._backoff.succeeded()
                return True
            await asyncio.sleep(_LOOK_SECONDS)
        except (Unavailable, Refused) as error:
            await self._backoff.pause(error)
        return False

    async def empty(self, owned: OwnedBucket) -> bool:
        """Write and remove all that lies in one bucket; what cannot be written stays, and is tried again in a while. False:
        the store did not let us, and it is to be seen whose the bucket is.

        Raises:
            Unavailable, Refused: the store did not do its part; nothing is lost by beginning again.
        """
        applied = unwritable = 0
        ids: set[bytes] = set()
        to_do: int | None = None
        """How many of those that lay there at the beginning of this pass have not been looked at."""
        while True:
            await self._until_answered.may_commit()
            known, fence = owned.kept, owned.fence
            page = await self._store.read_kept(fence, self.size.rows, self.size.bytes)
            if page.word is not Word.OK:
                self._doubt(owned, fence, page.word)
                return False
            if to_do is None or (to_do <= 0 and page.left > unwritable):
                to_do, unwritable = page.left, 0
                ids.clear()
            if to_do <= 0:
                if owned.kept == known:  # (else more is being kept at this moment)
                    self._now_keeps(owned, page)
                break
            back = await self.apply(owned, page.raw)
            if (word := await self._store.remove_kept(fence, page.raw, back)) is not Word.OK:
                self._doubt(owned, fence, word)
                return False
            to_do -= len(page.raw)
            applied += len(page.raw) - len(back)
            unwritable += len(back)
            ids.update(each[ID_AT] for each in back)
            owned.kept = max(owned.kept - len(page.raw) + len(back), 1)
        owned.unwritable, owned.unwritable_ids = unwritable, frozenset(ids)
        if unwritable:
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._once_more, owned)
        if applied or unwritable:
            fields = {"bucket": owned.fence.bucket_id, "applied": applied, "unwritable": unwritable}
            self._log.info(Event.OUTCOMES_APPLIED, fields)
        return True

    def _once_more(self, owned: OwnedBucket) -> None:
        owned.unwritable = 0
        self._work.set()

    def _doubt(self, owned: OwnedBucket, fence: Fence, word: Word) -> None:
        if word is not Word.CLOSED and fence == owned.fence:  # (else it was unfrozen under a new epoch meanwhile)
            self._on_forgotten(fence.bucket_id, f"the store answered {word} to a look at what it keeps", word)

    @staticmethod
    def _now_keeps(owned: OwnedBucket, page: Kept) -> None:
        owned.kept = page.left
        owned.kept_bytes = sum(map(len, page.raw))
        owned.full = False

    # ------------------------------------------------------------ one page

    async def apply(self, owned: OwnedBucket, raw: Sequence[bytes]) -> list[bytes]:
        """Write kept outcomes, each under its own identity. Those that the master does not take are returned, all others are
        settled."""
        rows = decode_rows(raw)
        back: list[bytes] = []
        for encoded, error in rows.unreadable:
            back.append(encoded)
            self._log_unwritable("?", f"a kept outcome cannot be read: {error}")
        if rows.finals:
            back += await self._write("record_final", rows.finals, self._record_final)
        for fence, holds in rows.holds.items():

            async def hold(rows: Sequence[HoldRow], fence: Fence = fence) -> Written:
                written = await self._until_answered(
                    "hold", lambda: self._master.hold(fence, rows), refusals=False, rows=True, timeouts=len(rows) == 1
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
        if await copied(self._master, rows):
            self._metrics.ended(rows)
            return Written(True, frozenset(row.id for row in rows))
        written = await self._until_answered(
            "record_final", lambda: self._master.record_final(rows), refusals=False, rows=True, timeouts=len(rows) == 1
        )
        self._metrics.accepted(rows, written)
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
            self._log_unwritable(text(pair[0].id), str(error))
            return True

        batches: StoredRowsWrite[_Row] = StoredRowsWrite(self.size, backoff.pause)
        await batches.write(pairs, send, on_written, on_refused)
        return back

    def _log_unwritable(self, job: str, reason: str) -> None:
        self._log.error(Event.JOB_UNWRITABLE, {"job": job, "reason": reason})
