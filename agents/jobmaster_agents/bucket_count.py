"""As many buckets as the configuration says: opened at the start, replaced when one is lost alone, followed at a reload.

What is missing is opened at once, in the master first; what is too much completes, the emptier ones of a lane and priority
first, while the others work on. An agent that is leaving opens nothing any more.

The coordinator may ask for one bucket more, in a lane and priority that nobody serves. It completes when the coordinator
asks no more (a configured owner has come), or when there has been nothing to do in it for long.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from jobmaster.clock import Clock, new_id
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import JobMasterError, Refused
from jobmaster.model.ids import Fence
from jobmaster.model.job import Priority
from jobmaster.ports import Word
from jobmaster.settings.model import AgentSettings, Thresholds
from jobmaster_agents.events import Event, EventLog
from jobmaster_agents.holdings import Holding, Holdings
from jobmaster_agents.working import Working

REPLACE_SECONDS = 1.0
"""Pause before a bucket that was lost alone is replaced, so that a broken store is not asked in a tight circle."""
_TRIES = 5
_REASON = "the configuration has fewer buckets, and nobody asks for this one"

Group = tuple[str, int]
"""Lane and priority."""


class MakingMaster(Protocol):
    """Where buckets are made."""

    async def create_buckets(self, buckets: Sequence[Bucket]) -> bool: ...

    async def put_back(self, limit: int) -> int: ...

    async def stop_helping(self, agent_id: bytes, lane: str, priority: int) -> None: ...


class MakingStore(Protocol):
    """Where their keys are made."""

    async def open_bucket(self, fence: Fence) -> Word: ...


class _Help:
    """One lane and priority in which help was asked for."""

    __slots__ = ("at", "claimed", "told")

    def __init__(self, at: float) -> None:
        self.at = at
        """When there was last something to do."""
        self.claimed = 0
        self.told = False
        """The master knows that there is nothing to do."""


class BucketCount:
    """Opens and completes the buckets of one agent.

    Args:
        agent: its settings; none of an agent that owns no buckets.
        leaving: true once the agent is on its way out.
    """

    def __init__(
        self,
        agent: AgentSettings | None,
        master: MakingMaster,
        store: MakingStore,
        store_name: str,
        holdings: Holdings,
        working: Working,
        leaving: Callable[[], bool],
        thresholds: Thresholds,
        clock: Clock,
        log: EventLog,
    ) -> None:
        self._configured = _counts(agent)
        self._helped: dict[Group, _Help] = {}
        self._thresholds = thresholds
        self._now = clock.boottime
        self._master = master
        self._store = store
        self._store_name = store_name
        self._holdings = holdings
        self._working = working
        self._leaving = leaving
        self._log = log
        self._one = asyncio.Lock()

    async def open_all(self) -> None:
        """The buckets of the configuration."""
        wanted = list(self._wanted().elements())
        if wanted:
            async with self._one:
                await self._open(wanted)
            self._log.info(Event.BUCKETS_OPENED, {"buckets": len(wanted), "lanes": _lanes(wanted)})

    def replace_soon(self) -> None:
        """A bucket was lost alone, the agent is sound: a new one takes its place."""
        asyncio.get_running_loop().call_later(REPLACE_SECONDS, self._working.spawn, self._reconcile)

    def follow(self, agent: AgentSettings, grace_seconds: float) -> None:
        """Other counts from now on."""
        self._configured = _counts(agent)
        self._working.spawn(partial(self._reconcile, grace_seconds))

    def help(self, asked: frozenset[Group], grace_seconds: float) -> None:
        """What a renewal says of lanes and priorities that nobody serves; what has long been idle there is told."""
        if asked != self._helped.keys():
            self._helped = {group: self._helped.get(group) or _Help(self._now()) for group in asked}
            self._working.spawn(partial(self._reconcile, grace_seconds))
        for group, helping in self._helped.items():
            if self._is_idle(group, helping):
                self._log.info(Event.HELP_IDLE, {"lane": group[0], "priority": Priority(group[1]).label})
                self._working.spawn(partial(self._stop_helping, group))

    def _is_idle(self, group: Group, helping: _Help) -> bool:
        """Nothing claimed for long, and nothing there. What is due later waits in the master as well as here."""
        pumps = [pump for pump in self._working.pumps.values() if (pump.holding.lane, pump.holding.priority) == group]
        claimed = sum(pump.claimed for pump in pumps)
        busy = any(self._working.execution.backlog(pump.holding.fence.bucket_id) or pump.waiting for pump in pumps)
        if busy or claimed != helping.claimed or not pumps:
            helping.claimed, helping.at = claimed, self._now()
            return False
        return not helping.told and self._now() - helping.at >= self._thresholds.fallback_idle_seconds

    async def _stop_helping(self, group: Group) -> None:
        helping = self._helped.get(group)
        try:
            await self._master.stop_helping(self._holdings.agent_id, *group)
        except JobMasterError:
            return  # it is still idle at the next renewal
        if helping is not None:
            helping.told = True

    def _wanted(self) -> Counter[Group]:
        """At least one bucket where help is asked for."""
        return self._configured | Counter(dict.fromkeys(self._helped, 1))

    # ------------------------------------------------------------ to the wanted number

    async def _reconcile(self, grace_seconds: float = 0.0) -> None:
        async with self._one:
            if self._is_over():
                return
            mine = [each for each in self._holdings.buckets.values() if each.frozen or not each.closed]
            have = Counter((each.lane, each.priority) for each in mine)
            wanted = self._wanted()
            if missing := list((wanted - have).elements()):
                await self._open(missing)
                self._log.info(Event.BUCKETS_OPENED, {"buckets": len(missing), "lanes": _lanes(missing)})
            surplus = have - wanted
        leaving = [bucket_id for group in surplus for bucket_id in self._emptiest(mine, group)[: surplus[group]]]
        for _ in range(_TRIES):
            if not leaving or self._is_over():
                return
            leaving = await self._working.complete(leaving, grace_seconds, _REASON)

    def _emptiest(self, mine: Iterable[Holding], group: Group) -> list[bytes]:
        ids = [each.fence.bucket_id for each in mine if (each.lane, each.priority) == group]
        return sorted(ids, key=self._working.execution.backlog)

    def _is_over(self) -> bool:
        return self._leaving() or self._holdings.fenced.is_set()

    # ------------------------------------------------------------ making buckets

    async def _open(self, wanted: Sequence[Group]) -> None:
        """New buckets: in the master first, so that nobody finds keys of a bucket that does not exist."""
        buckets = [
            Bucket(
                id=new_id(),
                store=self._store_name,
                lane=lane,
                priority=priority,
                state=BucketState.ACTIVE,
                epoch=1,
                owner=self._holdings.agent_id,
            )
            for lane, priority in wanted
        ]
        opening = {bucket.id for bucket in buckets}
        self._holdings.opening |= opening
        try:
            await self._make(buckets)
        finally:
            self._holdings.opening -= opening

    async def _make(self, buckets: Sequence[Bucket]) -> None:
        insist = self._working.reporter.insist
        if not await insist("create_buckets", partial(self._master.create_buckets, buckets), refusals=False):
            self._holdings.fence("the master holds a death certificate for this agent")
            return
        holdings = [Holding.of(bucket) for bucket in buckets]
        for holding in holdings:
            word = await insist("open_bucket", partial(self._store.open_bucket, holding.fence), refusals=False)
            if word is not Word.OK:
                raise Refused(f"agent store {holding.store!r} answered {word} to a new bucket")
        for holding in holdings:  # together, so that the wait for wake tokens is set up once
            self._working.open(holding)
        with suppress(JobMasterError):  # the coordinator does the same a little later
            await self._master.put_back(self._thresholds.transfer_batch)


def _counts(agent: AgentSettings | None) -> Counter[Group]:
    if agent is None:
        return Counter()
    return Counter({
        (lane, int(priority)): counts.of(priority)
        for lane, counts in agent.bucket_counts().items()
        for priority in Priority
    })  # fmt: skip


def _lanes(groups: Iterable[Group]) -> list[str]:
    return sorted({lane for lane, _ in groups})
