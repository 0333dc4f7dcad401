"""A master in dictionaries: rows by identity (rule A), bucket locks (rule C), cancel flags (rule I)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobmaster.model.bucket import BucketState
from jobmaster.model.ids import Fence, Identity
from jobmaster.model.job import Entry, FinalRow, HoldRow, InFlightRow
from jobmaster.ports import (
    ANY_JOB,
    CancelledRow,
    FetchScope,
    FinishedSteps,
    Onboarded,
    RowRef,
    StepScope,
    Written,
)
from tests.support.fakes.scripted import Scripted
from tests.support.master_parts import MasterParts

IN_FLIGHT = ("ASSIGNED", "PROCESSING")


@dataclass
class Row:
    """One row of ``job``."""

    state: str
    token: int
    bucket_id: bytes | None = None
    epoch: int | None = None
    cancel: bool = False
    due_us: int = 0

    @property
    def identity(self) -> tuple[int, bytes | None, int | None]:
        return self.token, self.bucket_id, self.epoch


class FakeMaster(MasterParts, Scripted):
    """Rows by identity (rule A), bucket locks (rule C), cancel flags (rule I)."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[bytes, Row] = {}
        self.entries: dict[bytes, Entry] = {}
        """What HELD rows onboard as."""
        self.next_steps: list[Entry] = []
        """Steps that follow the next outcomes of steps, in the same bucket."""
        self.others: set[bytes] = set()
        """Buckets that are another's now."""
        self.states: dict[bytes, BucketState] = {}
        self.finals: list[FinalRow] = []
        self.attempts: list[HoldRow] = []
        self.limits: Any = self
        """No handler of these tests has a limit."""

    # ------------------------------------------------------------ outcomes

    async def copy_final(self, rows: Sequence[FinalRow]) -> bool:
        def effect() -> bool:
            if any(row.id in self.rows for row in rows):
                return False
            for row in rows:
                self._conclude(row)
            return True

        return bool(await self.do("copy_final", (list(rows),), effect))

    async def record_final(self, rows: Sequence[FinalRow]) -> Written:
        def effect() -> Written:
            accepted, refused = set(), set()
            for row in rows:
                there = self.rows.get(row.id)
                mine = there is not None and there.identity == (row.token, row.bucket_id, row.bucket_epoch)
                if there is None or (mine and there.state in IN_FLIGHT):
                    self._conclude(row)
                    accepted.add(row.id)
                elif mine and there.state == row.state:
                    accepted.add(row.id)  # our own earlier success
                else:
                    refused.add(row.id)
            return Written(True, frozenset(accepted), refused=frozenset(refused))

        written: Written = await self.do("record_final", (list(rows),), effect)
        return written

    async def finish_steps(self, fence: Fence, rows: Sequence[FinalRow], scope: StepScope) -> FinishedSteps:
        """No step is followed by another one, unless the test has put entries into ``next_steps``."""
        written = await self.record_final(rows)
        entries, self.next_steps = self.next_steps, []
        for entry in entries:
            self.rows[entry.id] = Row("ASSIGNED", entry.token, fence.bucket_id, fence.epoch)
        return FinishedSteps(written, entries, False)

    async def is_recorded(self, row: FinalRow) -> bool:
        def effect() -> bool:
            there = self.rows.get(row.id)
            return there is not None and (*there.identity, there.state) == (
                row.token, row.bucket_id, row.bucket_epoch, str(row.state)
            )  # fmt: skip

        return bool(await self.do("is_recorded", (row,), effect))

    async def await_confirmation(
        self, row: FinalRow, within_seconds: float, pause_seconds: float, error: bytes | None
    ) -> bool:
        def effect() -> bool:
            there = self.rows.get(row.id)
            if there is None or there.identity != (row.token, row.bucket_id, row.bucket_epoch):
                return False
            if there.state in IN_FLIGHT:
                there.state = "WAITING"
            return there.state in ("WAITING", "SUCCEEDED", "CANCELLED")

        return bool(await self.do("await_confirmation", (row, within_seconds, pause_seconds, error), effect))

    async def mark_refused(self, rows: Sequence[FinalRow]) -> None:
        await self.do("mark_refused", (list(rows),), lambda: None)

    def _conclude(self, row: FinalRow) -> None:
        self.rows[row.id] = Row(str(row.state), row.token, row.bucket_id, row.bucket_epoch)
        self.finals.append(row)

    async def persist(self, fence: Fence, rows: Sequence[InFlightRow]) -> Written:
        def effect() -> Written:
            if fence.bucket_id in self.others:
                return Written(False, frozenset())
            accepted, refused, cancelled = set(), set(), set()
            for row in rows:
                there = self.rows.get(row.id)
                if there is None:
                    self.rows[row.id] = Row(str(row.state), row.token, fence.bucket_id, fence.epoch)
                    accepted.add(row.id)
                elif there.identity != (row.token, fence.bucket_id, fence.epoch) or there.state not in IN_FLIGHT:
                    refused.add(row.id)
                elif there.cancel:
                    cancelled.add(row.id)
                else:
                    there.state = "PROCESSING" if "PROCESSING" in (there.state, row.state) else "ASSIGNED"
                    accepted.add(row.id)
            return Written(True, frozenset(accepted), frozenset(cancelled), frozenset(refused))

        written: Written = await self.do("persist", (fence, list(rows)), effect)
        return written

    async def hold(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        written: Written = await self.do("hold", (fence, list(rows)), lambda: self._give_back(fence, rows, here=False))
        return written

    async def retry_here(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        def effect() -> Written:
            if fence.bucket_id in self.others:
                return Written(False, frozenset())
            return self._give_back(fence, rows, here=True)

        written: Written = await self.do("retry_here", (fence, list(rows)), effect)
        return written

    async def still_assigned(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> frozenset[bytes]:
        def effect() -> frozenset[bytes]:
            wanted = ((job_id, token, self.rows.get(job_id)) for job_id, token in identities)
            return frozenset(
                job_id for job_id, token, row in wanted
                if row is not None and row.state == "ASSIGNED" and not row.cancel and row.identity == (token, *fence[:2])
            )  # fmt: skip

        ids: frozenset[bytes] = await self.do("still_assigned", (fence, list(identities)), effect)
        return ids

    async def cancel_waiting(self, fences: Sequence[Fence], job_ids: Sequence[bytes]) -> list[CancelledRow]:
        def effect() -> list[CancelledRow]:
            mine = {(fence.bucket_id, fence.epoch) for fence in fences}
            ended = []
            for job_id in job_ids:
                row = self.rows.get(job_id)
                if row is None or not row.cancel or (row.bucket_id, row.epoch) not in mine:
                    continue
                if row.state in ("ASSIGNED", "CANCELLED"):
                    ended.append(CancelledRow(job_id, row.bucket_id or b"", row.due_us, row.state == "ASSIGNED"))
                    row.state = "CANCELLED"
            return ended

        rows: list[CancelledRow] = await self.do("cancel_waiting", (list(fences), list(job_ids)), effect)
        return rows

    def _give_back(self, fence: Fence, rows: Sequence[HoldRow], *, here: bool) -> Written:
        accepted, refused, cancelled = set(), set(), set()
        for row in rows:
            there = self.rows.get(row.id)
            after = (row.token + 1, fence.bucket_id, fence.epoch) if here else (row.token, None, None)
            if there is not None and there.identity == after and there.state == ("ASSIGNED" if here else "HELD"):
                accepted.add(row.id)  # our own earlier success
                continue
            if there is not None and (
                there.identity != (row.token, fence.bucket_id, fence.epoch) or there.state not in IN_FLIGHT
            ):
                refused.add(row.id)
                continue
            accepted.add(row.id)
            if there is not None and there.cancel:
                there.state = "CANCELLED"
                cancelled.add(row.id)
                continue
            if row.error is not None:
                self.attempts.append(row)
            token, bucket_id, epoch = after
            self.rows[row.id] = Row("ASSIGNED" if here else "HELD", token, bucket_id, epoch, due_us=row.due_us)
        return Written(True, frozenset(accepted), frozenset(cancelled), frozenset(refused))

    # ------------------------------------------------------------ onboarding

    async def onboard(
        self,
        fence: Fence,
        lane: str,
        priority: int,
        horizon_seconds: float,
        limit: int,
        handlers: Sequence[str] | None = None,
        without_tags: Sequence[str] = (),
        scope: FetchScope = ANY_JOB,
    ) -> Onboarded:
        def effect() -> Onboarded:
            if fence.bucket_id in self.others:
                return Onboarded(False, [], False)
            taken: list[Entry] = []
            for job_id, row in list(self.rows.items()):
                entry = self.entries.get(job_id)
                if (
                    row.state == "HELD"
                    and entry is not None
                    and len(taken) < limit
                    and (handlers is None or entry.handler in handlers or job_id in scope.trials)
                    and not self._is_far(row, horizon_seconds)
                ):
                    row.state, row.token, row.bucket_id, row.epoch = "ASSIGNED", row.token + 1, *fence[:2]
                    taken.append(Entry(job_id, row.token, entry.handler, entry.args, row.due_us))
            return Onboarded(True, taken, len(taken) == limit)

        answer: Onboarded = await self.do("onboard", (fence, horizon_seconds, limit), effect)
        return answer

    now_us = 0

    def _is_far(self, row: Row, horizon_seconds: float) -> bool:
        return row.due_us > self.now_us + horizon_seconds * 1e6

    async def release(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> Written:
        def effect() -> Written:
            accepted, refused = set(), set()
            for job_id, token in identities:
                row = self.rows.get(job_id)
                if row is not None and row.identity == (token, *fence[:2]) and row.state == "ASSIGNED":
                    row.state, row.bucket_id, row.epoch = "HELD", None, None
                    accepted.add(job_id)
                else:
                    refused.add(job_id)
            return Written(True, frozenset(accepted), refused=frozenset(refused))

        written: Written = await self.do("release", (fence, list(identities)), effect)
        return written

    # ------------------------------------------------------------ buckets

    async def bucket_rows(self, bucket_id: bytes, after: bytes | None, limit: int) -> list[RowRef]:
        def effect() -> list[RowRef]:
            return [
                RowRef(job_id, Identity(row.token, bucket_id, row.epoch or 0), row.state, 0)
                for job_id, row in self.rows.items()
                if row.bucket_id == bucket_id and row.state in IN_FLIGHT
            ][:limit]

        rows: list[RowRef] = await self.do("bucket_rows", (bucket_id,), effect)
        return rows

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool:
        def effect() -> bool:
            if bucket_id in self.others:
                return False
            self.states[bucket_id] = to
            return True

        return bool(await self.do("move_bucket", (bucket_id, to), effect))
