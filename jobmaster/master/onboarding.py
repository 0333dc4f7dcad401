"""From HELD into a bucket, and back when the bucket has no copy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from jobmaster.master.driver import resent_writes
from jobmaster.master.driver.batches import Batch, BatchAnswer, columns
from jobmaster.master.driver.connection import StatementRunner, to_us
from jobmaster.master.driver.job_errors import ABANDONED
from jobmaster.model.ids import Fence, Identity
from jobmaster.model.job import Entry, JobState
from jobmaster.ports import ANY_JOB, FetchScope, Onboarded, RowRef, TenantTurns, Written
from jobmaster.rules.batching import BATCH_BYTES

_LEAPS_MAX = 16
"""Claims in a row that may begin further on than at the oldest job."""
_REST = 10.0
"""A claim that begins at the oldest is followed by the next such one not before so many times its duration: while a long
transaction pins dead entries it reads all of them, and would be most of what claims cost."""
_REST_SECONDS_MAX = 5.0


class ScanPosition(NamedTuple):
    """Where the next onboarding of its kind begins to read."""

    due_us: int
    leaps: int
    """Claims that began here or before, since one began at the oldest."""
    rests_until: float
    """Time of the loop before which none begins at the oldest."""


_FROM_THE_OLDEST = ScanPosition(0, 0, 0.0)
_Key: TypeAlias = tuple[str, int, float, bool]
"""Lane, priority, how far ahead is looked (a claim of what is due now must not begin among what is due later), and whether
only jobs without a tenant are looked for."""


class Round(NamedTuple):
    """One round of the tenants of a lane and priority: pages of tenants by name, then the jobs without a tenant."""

    after: str | None
    """Name after which the next page begins; ``None``: the jobs without a tenant have their turn."""
    found: int
    """Jobs that the round has found."""
    rests_until: float
    """Time of the loop before which jobs without a tenant have no further turn: to find them, those of tenants are passed
    over."""


_NEXT_ROUND = Round("", 0, 0.0)
_TENANTS = 64
"""Tenants of one page."""


class Onboarding:
    """``jobmaster.ports.Onboarding`` on PostgreSQL.

    While a backlog is drained batch after batch, each begins at the due time where the last one ended instead of reading
    over all the dead index entries before it (a long transaction elsewhere may pin them for hours). Claims that overlap
    share that place, or every second one would read them all. Older rows that come back meanwhile, or were locked by
    a transaction that left them, wait for the next batch that begins at the start: after 16 batches (while such a look is
    slow, ten times as long as the last one took, at most 5 s), or as soon as one is not full. Such a look also counts what
    it finds before the place that the others began at. The place is not kept in the master: a process that has none begins
    at the oldest job, which is always right, and pays for the dead entries once.

    Args:
        data: statements that may wait for locks of others.
        writes: claims of the oldest jobs, which skip what is locked.
    """

    def __init__(self, data: StatementRunner, writes: StatementRunner) -> None:
        self._data = data
        self._writes = writes
        self._positions: dict[_Key, ScanPosition] = {}
        self._rounds: dict[_Key, Round] = {}

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
        """The oldest due-soon HELD rows become ASSIGNED to the bucket, under its lock, SKIP LOCKED; at most ``limit``, and as
        many as ``BATCH_BYTES`` holds. With ``scope.tenants`` in turns of their tenants, a part of them in each call; ``more``
        is True until a whole round has found nothing."""
        found_by = _Filter(handlers, without_tags, scope)
        key = (lane, priority, horizon_seconds, scope.tenants is not None)
        if scope.tenants is None:
            return await self._oldest(fence, key, limit, found_by)
        return await self._in_turns(fence, key, limit, found_by, scope.tenants)

    async def _in_turns(
        self, fence: Fence, key: _Key, limit: int, found_by: _Filter, tenants: TenantTurns
    ) -> Onboarded:
        """The next page of a round of tenants, or its jobs without a tenant."""
        round_ = self._rounds.get(key, _NEXT_ROUND)
        if round_.after is None:
            began_at = _now()
            answer = await self._oldest(fence, key, limit, found_by)
            found = round_.found + len(answer.entries)
            rests = min(_REST * (_now() - began_at), _REST_SECONDS_MAX)
            self._rounds[key] = Round("", 0, _now() + rests)
            return answer._replace(more=answer.more or found > 0)
        page = (round_.after, min(_TENANTS, limit), list(tenants.over_share))
        weights = (list(tenants.weights), list(tenants.weights.values()))
        lane, priority, horizon_seconds, _ = key
        rows = await self._data.write(
            "onboarding/onboard_turns", *fence, lane, priority, horizon_seconds, limit, found_by.handlers, BATCH_BYTES,
            *found_by.rest(), *page, *weights,
        )  # fmt: skip
        entries = _entries(rows)
        round_ = round_._replace(after=rows[0]["last_tenant"], found=round_.found + len(entries))
        more = True
        if round_.after is None and _now() < round_.rests_until:
            more, round_ = round_.found > 0, round_._replace(after="", found=0)
        self._rounds[key] = round_
        return Onboarded(rows[0]["bucket_ok"], entries, more)

    async def _oldest(self, fence: Fence, key: _Key, limit: int, found_by: _Filter) -> Onboarded:
        lane, priority, horizon_seconds, untenanted = key
        began_at, passed_us, began_us = _now(), self._position(key).due_us, self._begin(key)
        wanted = (lane, priority, horizon_seconds, limit, began_us, found_by.handlers, BATCH_BYTES)
        rows = await self._writes.write("onboarding/onboard", *fence, *wanted, *found_by.rest(), untenanted)
        entries = _entries(rows)
        found = rows[0]["found"]
        full = found == limit or found > len(entries)
        if full:
            position = self._position(key)._replace(due_us=max(entry.due_us for entry in entries))
            if not began_us:
                now = _now()
                position = position._replace(rests_until=now + min(_REST * (now - began_at), _REST_SECONDS_MAX))
            self._positions[key] = position
        else:
            self._positions.pop(key, None)
        # A batch that began further on and was not full does not show what lies before it.
        behind = 0 if began_us else sum(entry.due_us < passed_us for entry in entries)
        return Onboarded(rows[0]["bucket_ok"], entries, full or began_us > 0, behind)

    def _position(self, key: _Key) -> ScanPosition:
        return self._positions.get(key, _FROM_THE_OLDEST)

    def _begin(self, key: _Key) -> int:
        """The due time at which a claim begins, 0: at the oldest job. Counted here and not when it ends, so that claims
        in flight cannot put off the one that begins at the oldest."""
        position = self._position(key)
        if position.leaps >= _LEAPS_MAX and _now() >= position.rests_until:
            self._positions[key] = position._replace(leaps=0)
            return 0
        self._positions[key] = position._replace(leaps=position.leaps + 1)
        return position.due_us

    async def release(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> Written:
        """``(id, token)`` ASSIGNED in this bucket -> HELD, by identity."""

        async def send(some: Sequence[tuple[bytes, int]]) -> BatchAnswer:
            ids, tokens = columns(some)
            rows = await self._data.write(
                "onboarding/release", fence.bucket_id, fence.epoch, ids, tokens, min(ids), max(ids), ids=ids
            )
            cancelled = [row["id"] for row in rows if row["state"] == JobState.CANCELLED]
            return BatchAnswer([row["id"] for row in rows], cancelled=cancelled)

        def classify(row: tuple[bytes, int], found: resent_writes.CurrentRow) -> resent_writes.RowResult:
            if found.state == JobState.PROCESSING:
                return resent_writes.RowResult.REFUSED  # it runs: an agent has the copy after all
            return resent_writes.held(row[1], fence.bucket_id, fence.epoch, found)

        return await Batch(
            self._data, "onboarding/release", send, classify, bucket_id=fence.bucket_id, rowless=False
        ).write(identities)

    async def give_back(self, bucket_id: bytes, rows: Sequence[RowRef]) -> int:
        """In-flight rows of which the bucket's owner has no copy -> HELD, by identity; number of them."""
        ids = [row.id for row in rows]
        answer = await self._data.write(
            "onboarding/give_back",
            bucket_id,
            ids,
            [row.identity.token for row in rows],
            [row.identity.bucket_epoch for row in rows],
            min(ids),
            max(ids),
            ABANDONED,
            ids=ids,
        )
        return int(answer[0]["moved"])

    async def bucket_rows(self, bucket_id: bytes, after: bytes | None, limit: int) -> list[RowRef]:
        """In-flight rows that name a bucket, keyset-paged by id."""
        return [
            RowRef(
                row["id"],
                Identity(row["token"], bucket_id, row["bucket_epoch"]),
                row["state"],
                to_us(row["changed_at"]),
            )
            for row in await self._data.read("onboarding/bucket_rows", bucket_id, after, limit)
        ]


class _Filter(NamedTuple):
    """Which jobs an owner takes."""

    handlers: Sequence[str] | None
    without_tags: Sequence[str]
    scope: FetchScope

    def rest(self) -> tuple[Sequence[str] | None, Sequence[str] | None, Sequence[bytes] | None, Sequence[str] | None]:
        """Paused tags, capabilities, trials and their handlers, as the statements take them."""
        only = (list(self.scope.trials), list(self.scope.trial_handlers)) if self.scope.trials else (None, None)
        return self.without_tags or None, self.scope.capabilities, *only


def _entries(rows: Sequence[Any]) -> list[Entry]:
    """The copies of the rows that were moved: the last columns of both statements."""
    return [
        Entry(id_, token, handler, args, to_us(due), headers, attempt, rescues)
        for *_, id_, token, handler, args, due, headers, attempt, rescues in rows
        if id_ is not None
    ]


def _now() -> float:
    return asyncio.get_running_loop().time()
