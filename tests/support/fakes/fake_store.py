"""An agent store in lists: claims by name, a fence, wake tokens in a queue."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence

from jobmaster.codec import decode_entry, encode_entry
from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import Unavailable
from jobmaster.model.ids import Fence, created_ms
from jobmaster.model.job import Entry
from jobmaster.ports import Claimed, KeptPage, Page, ReplyStatus
from jobmaster.rules.batching import BATCH_BYTES, fitting_count
from tests.support.fakes.scripted import DOWN, Scripted
from tests.support.hand_clock import HandClock

REQUESTS_MAX = 1000
"""Cancel requests that one claim brings."""


class FakeBucket:
    """What one bucket holds."""

    def __init__(self) -> None:
        self.fence: Fence | None = None
        self.state = BucketState.ACTIVE
        self.pending: deque[Entry] = deque()
        self.assigned: list[tuple[int, Entry]] = []
        self.claimed: dict[str, list[Entry]] = {}
        self.kept: list[bytes] = []
        self.cancelled: set[bytes] = set()
        self.hint = False


class FakeStore(Scripted):
    """Lists of entries behind a fence; wake tokens in a queue."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.clock = clock
        self.buckets: defaultdict[bytes, FakeBucket] = defaultdict(FakeBucket)
        self.tokens: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.news: list[bytes] = []

    def refusal(self, fence: Fence) -> ReplyStatus | None:
        there = self.buckets[fence.bucket_id].fence
        return None if there is None or there == fence else ReplyStatus.FENCED

    async def claim(
        self, fence: Fence, list_name: str, limit: int, bytes_max: int = BATCH_BYTES, *, oldest: bool = False
    ) -> Claimed:
        def effect() -> Claimed:
            if (no := self.refusal(fence)) is not None:
                return Claimed(no, [], [], 0, 0, False, 0)
            bucket = self.buckets[fence.bucket_id]
            taken = bucket.claimed.get(list_name, [])
            if list_name not in bucket.claimed:
                bucket.assigned.sort(key=lambda pair: pair[0])
                due = [entry for due_us, entry in bucket.assigned if due_us <= self.clock.wall_us()]
                waiting = [*due, *bucket.pending][:limit]
                taken = waiting[: fitting_count([len(encode_entry(entry)) for entry in waiting], bytes_max)]
                del bucket.assigned[: min(len(taken), len(due))]
                for _ in taken[len(due) :]:
                    bucket.pending.popleft()
                if taken:
                    bucket.claimed[list_name] = taken
            hint, bucket.hint = bucket.hint, False
            cancelled = tuple(sorted(bucket.cancelled)[:REQUESTS_MAX])
            next_due = max(bucket.assigned[0][0], 1) if bucket.assigned else 0
            raw = [encode_entry(entry) for entry in taken]
            now = self.clock.wall_us()
            oldest_us = created_ms(bucket.pending[0].id) * 1000 if oldest and bucket.pending else 0
            left = len(bucket.pending)
            return Claimed(ReplyStatus.OK, list(taken), raw, now, next_due, hint, left, cancelled, oldest_us)

        answer: Claimed = await self.do("claim", (fence, list_name, limit), effect)
        return answer

    async def withdraw(
        self, fence: Fence, noted: Sequence[bytes], copies: Sequence[tuple[int, bytes]]
    ) -> tuple[ReplyStatus, frozenset[bytes]]:
        def effect() -> tuple[ReplyStatus, frozenset[bytes]]:
            if (no := self.refusal(fence)) is not None:
                return no, frozenset()
            bucket = self.buckets[fence.bucket_id]
            bucket.cancelled.difference_update(noted)
            gone = frozenset(entry.id for due_us, entry in bucket.assigned if (due_us, entry.id) in copies)
            bucket.assigned = [pair for pair in bucket.assigned if pair[1].id not in gone]
            return ReplyStatus.OK, gone

        answer: tuple[ReplyStatus, frozenset[bytes]] = await self.do(
            "withdraw", (fence, list(noted), list(copies)), effect
        )
        return answer

    async def settle(self, fence: Fence, list_names: Sequence[str], finished: Sequence[bytes]) -> ReplyStatus:
        def effect() -> ReplyStatus:
            self.news += finished
            if (no := self.refusal(fence)) is not None:
                return no
            if self.buckets[fence.bucket_id].state is BucketState.READY_TO_DELETE:
                return ReplyStatus.CLOSED
            for name in list_names:
                self.buckets[fence.bucket_id].claimed.pop(name, None)
            return ReplyStatus.OK

        status: ReplyStatus = await self.do("settle", (fence, list(list_names), list(finished)), effect)
        return status

    async def find(
        self, bucket_ids: Sequence[bytes], job_ids: Sequence[bytes], scan_max: int
    ) -> list[dict[bytes, Entry]]:
        def effect() -> list[dict[bytes, Entry]]:
            return [self._found(bucket_id, job_ids) for bucket_id in bucket_ids]

        found: list[dict[bytes, Entry]] = await self.do("find", (list(bucket_ids), list(job_ids)), effect)
        return found

    def _found(self, bucket_id: bytes, job_ids: Sequence[bytes]) -> dict[bytes, Entry]:
        bucket = self.buckets[bucket_id]
        claimed = [entry for entries in bucket.claimed.values() for entry in entries]
        lying = [*(entry for _, entry in bucket.assigned), *claimed, *bucket.pending]
        return {entry.id: entry for entry in lying if entry.id in job_ids}

    async def keep_outcomes(self, fence: Fence, outcomes: Sequence[bytes], list_names: Sequence[str]) -> ReplyStatus:
        def effect() -> ReplyStatus:
            if (no := self.refusal(fence)) is not None:
                return no
            bucket = self.buckets[fence.bucket_id]
            bucket.kept += outcomes
            for name in list_names:
                bucket.claimed.pop(name, None)
            return ReplyStatus.OK

        status: ReplyStatus = await self.do("keep_outcomes", (fence, list(outcomes), list(list_names)), effect)
        return status

    async def grant_term(self, fence: Fence, term_seconds: float) -> ReplyStatus:
        status: ReplyStatus = await self.do(
            "grant_term", (fence, term_seconds), lambda: self.refusal(fence) or ReplyStatus.OK
        )
        return status

    async def read_kept(self, fence: Fence, limit: int, bytes_max: int = BATCH_BYTES) -> KeptPage:
        def effect() -> KeptPage:
            if (no := self.refusal(fence)) is not None:
                return KeptPage(no, 0, [])
            there = self.buckets[fence.bucket_id].kept
            fit = fitting_count([len(each) for each in there[:limit]], bytes_max)
            return KeptPage(ReplyStatus.OK, len(there), there[:fit])

        page: KeptPage = await self.do("read_kept", (fence, limit), effect)
        return page

    async def remove_kept(self, fence: Fence, page: Sequence[bytes], back: Sequence[bytes]) -> ReplyStatus:
        def effect() -> ReplyStatus:
            if (no := self.refusal(fence)) is not None:
                return no
            there = self.buckets[fence.bucket_id].kept
            if there[: len(page)] == list(page):
                there[: len(page)] = []
                there.extend(back)
            return ReplyStatus.OK

        status: ReplyStatus = await self.do("remove_kept", (fence, list(page), list(back)), effect)
        return status

    async def assign(self, fence: Fence, items: Sequence[tuple[int, bytes]]) -> ReplyStatus:
        def effect() -> ReplyStatus:
            if (no := self.refusal(fence)) is not None:
                return no
            bucket = self.buckets[fence.bucket_id]
            if bucket.state is not BucketState.ACTIVE:
                return ReplyStatus.CLOSED
            copies = [(due_us, decode_entry(item)) for due_us, item in items]
            bucket.assigned += [copy for copy in copies if copy not in bucket.assigned]
            self.tokens.put_nowait(fence.bucket_id)
            return ReplyStatus.OK

        status: ReplyStatus = await self.do("assign", (fence, list(items)), effect)
        return status

    async def claimed_lists(self, fence: Fence) -> tuple[ReplyStatus, list[str]]:
        answer: tuple[ReplyStatus, list[str]] = await self.do(
            "claimed_lists", (fence,), lambda: (ReplyStatus.OK, sorted(self.buckets[fence.bucket_id].claimed))
        )
        return answer

    async def read_claimed(self, fence: Fence, list_name: str) -> Claimed:
        def effect() -> Claimed:
            entries = self.buckets[fence.bucket_id].claimed.get(list_name, [])
            return Claimed(ReplyStatus.OK, list(entries), [], self.clock.wall_us(), 0, False, 0)

        answer: Claimed = await self.do("read_claimed", (fence, list_name), effect)
        return answer

    async def close_intake(self, fence: Fence) -> ReplyStatus:
        def effect() -> ReplyStatus:
            bucket = self.buckets[fence.bucket_id]
            if bucket.state not in (BucketState.ACTIVE, BucketState.COMPLETING):
                return self.refusal(fence) or ReplyStatus.CLOSED
            bucket.state = BucketState.COMPLETING
            return self.refusal(fence) or ReplyStatus.OK

        status: ReplyStatus = await self.do("close_intake", (fence,), effect)
        return status

    async def close_if_empty(self, fence: Fence) -> ReplyStatus:
        def effect() -> ReplyStatus:
            bucket = self.buckets[fence.bucket_id]
            if bucket.pending or bucket.assigned or bucket.claimed or bucket.kept:
                return ReplyStatus.NOT_EMPTY
            bucket.state = BucketState.READY_TO_DELETE
            return self.refusal(fence) or ReplyStatus.OK

        status: ReplyStatus = await self.do("close_if_empty", (fence,), effect)
        return status

    async def read_page(self, fence: Fence, limit: int, bytes_max: int = BATCH_BYTES) -> Page:
        def effect() -> Page:
            bucket = self.buckets[fence.bucket_id]
            if bucket.kept:
                return Page(ReplyStatus.OK, "kept", "", [], bucket.kept[:limit])
            for name, entries in sorted(bucket.claimed.items()):
                return Page(ReplyStatus.OK, "claimed", name, list(entries), [])
            if bucket.pending:
                return Page(ReplyStatus.OK, "pending", "", list(bucket.pending)[:limit], [])
            entries = [entry for _, entry in bucket.assigned][:limit]
            return Page(ReplyStatus.OK, "assigned" if entries else "", "", entries, [])

        page: Page = await self.do("read_page", (fence, limit), effect)
        return page

    async def remove_page(self, fence: Fence, page: Page) -> ReplyStatus:
        def effect() -> ReplyStatus:
            bucket = self.buckets[fence.bucket_id]
            if page.kind == "kept":
                del bucket.kept[: len(page.raw)]
            if page.kind == "claimed":
                bucket.claimed.pop(page.list_name, None)
            bucket.pending = deque(entry for entry in bucket.pending if entry not in page.entries)
            bucket.assigned = [pair for pair in bucket.assigned if pair[1] not in page.entries]
            return ReplyStatus.OK

        status: ReplyStatus = await self.do("remove_page", (fence, page), effect)
        return status

    async def wait_wake(self, bucket_ids: Sequence[bytes], timeout_seconds: float) -> bytes | None:
        self.calls.append(("wait_wake", (list(bucket_ids), timeout_seconds)))
        if self.script["wait_wake"]:
            raise Unavailable("wait_wake: down") if self.script["wait_wake"].popleft() is DOWN else AssertionError
        return await self.tokens.get()
