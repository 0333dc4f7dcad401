"""Keeps as many buckets as the configuration names: opened at the start, replaced after a loss, adjusted at a reload.

Missing buckets are opened at once, in the master first. Surplus ones complete, the emptier ones of a lane and priority first,
while the others work on. An agent that is leaving opens none.

The leader may request a fallback bucket for a time, in a lane and priority that no agent is configured to serve
(``fallback``).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from jobmaster.clock import new_id
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.cluster import ClusterMode
from jobmaster.model.errors import JobMasterError, Refused
from jobmaster.model.job import Priority
from jobmaster.ports import ProvisionerMaster, ProvisionerStore, ReplyStatus
from jobmaster.rules.backoff import backoff_delays
from jobmaster.settings.model import AgentSettings
from jobmaster_agents.buckets.host_standing import HostStanding
from jobmaster_agents.call_retry import UntilAnswered
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.ownership import OwnedBucket, Ownership

REPLACE_SECONDS = 1.0
"""Pause before a lost bucket is replaced, so that a broken store is not called in a tight loop."""
PUT_BACK_JOBS = 1000
"""Jobs that were put off and come back when a bucket for them is opened; the leader brings back the rest."""
AGAIN_SECONDS_MAX = 60.0
"""Longest pause before a bucket that could not be completed is tried again."""
_REASON = "the configuration has fewer buckets, and this one is not requested"
_NOT_ACTIVE = "the cluster is migrating or archived"

Group = tuple[str, int]
"""Lane and priority."""


class BucketHost(Protocol):
    """The bucket worker, as this module uses it."""

    @property
    def until_answered(self) -> UntilAnswered: ...

    def open(self, owned: OwnedBucket) -> None: ...

    async def complete(self, bucket_ids: Sequence[bytes], grace_seconds: float, reason: str) -> list[bytes]: ...

    def backlog(self, bucket_id: bytes) -> int: ...

    def spawn(self, work: Callable[[], Coroutine[object, object, None]]) -> None: ...


class BucketProvisioner:
    """Opens and completes the buckets of one agent.

    Args:
        agent: its settings; ``None`` for an agent that owns no buckets.
        leaving: returns True once the agent leaves.
    """

    def __init__(
        self,
        agent: AgentSettings | None,
        master: ProvisionerMaster,
        store: ProvisionerStore,
        store_name: str,
        ownership: Ownership,
        bucket_worker: BucketHost,
        leaving: Callable[[], bool],
        log: EventLog,
    ) -> None:
        self._configured = _counts(agent)
        self._fallback_groups: frozenset[Group] = frozenset()
        self._active = True
        self._master = master
        self._store = store
        self._store_name = store_name
        self._ownership = ownership
        self._bucket_worker = bucket_worker
        self._leaving = leaving
        self._log = log
        self._one = asyncio.Lock()
        self.host_standing: HostStanding | None = None
        """Asked before buckets are opened; ``None``: all may be opened."""
        self._again: asyncio.TimerHandle | None = None

    async def open_all(self) -> None:
        """The buckets of the configuration."""
        async with self._one:
            wanted = await self._permitted(list(self._wanted().elements()))
            if wanted:
                await self._open(wanted)
        if wanted:
            self._log.info(Event.BUCKETS_OPENED, {"buckets": len(wanted), "lanes": _lanes(wanted)})

    def replace_soon(self) -> None:
        """A bucket was lost and the agent works: a new one takes its place."""
        asyncio.get_running_loop().call_later(REPLACE_SECONDS, self._bucket_worker.spawn, self._reconcile)

    def follow(self, agent: AgentSettings, grace_seconds: float) -> None:
        """The configuration has other counts from now on."""
        self._configured = _counts(agent)
        self._bucket_worker.spawn(partial(self._reconcile, grace_seconds))

    def request_fallback(self, groups: frozenset[Group], grace_seconds: float) -> None:
        """Lanes and priorities that need at least one bucket besides the configuration, from now on."""
        self._fallback_groups = groups
        self._bucket_worker.spawn(partial(self._reconcile, grace_seconds))

    def begin_in(self, mode: ClusterMode) -> None:
        """The mode of the cluster in which the agent starts."""
        self._active = mode is ClusterMode.ACTIVE

    def follow_mode(self, mode: ClusterMode, grace_seconds: float) -> None:
        """A renewal has the mode of the cluster: in another one than ``active`` the agent owns no buckets."""
        if (active := mode is ClusterMode.ACTIVE) != self._active:
            self._active = active
            self._bucket_worker.spawn(partial(self._reconcile, grace_seconds))

    def _wanted(self) -> Counter[Group]:
        if not self._active:
            return Counter()
        return self._configured | Counter(dict.fromkeys(self._fallback_groups, 1))

    # ------------------------------------------------------------ to the wanted number

    async def _reconcile(self, grace_seconds: float = 0.0) -> None:
        async with self._one:
            if self._is_over():
                return
            mine = [each for each in self._ownership.buckets.values() if each.frozen or not each.closed]
            have = Counter((each.lane, each.priority) for each in mine)
            wanted = self._wanted()
            if missing := await self._permitted(list((wanted - have).elements())):
                await self._open(missing)
                self._log.info(Event.BUCKETS_OPENED, {"buckets": len(missing), "lanes": _lanes(missing)})
            surplus = have - wanted
        leaving = [bucket_id for group in surplus for bucket_id in self._emptiest(mine, group)[: surplus[group]]]
        pauses = backoff_delays(REPLACE_SECONDS, AGAIN_SECONDS_MAX)
        while leaving and not self._is_over():
            reason = _REASON if self._active else _NOT_ACTIVE
            leaving = await self._bucket_worker.complete(leaving, grace_seconds, reason)
            if leaving:  # a server is away, or its jobs cannot be written yet; it takes no jobs any more
                await asyncio.sleep(next(pauses))

    async def _permitted(self, groups: list[Group]) -> list[Group]:
        """Without those that this host may not have now; they are tried again later."""
        if not groups or self.host_standing is None:
            return groups
        withheld, again_seconds = await self.host_standing.withheld()
        permitted = [group for group in groups if group not in withheld]
        if len(permitted) < len(groups):
            if self._again is not None:
                self._again.cancel()
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(again_seconds, self._bucket_worker.spawn, self._reconcile)
        return permitted

    def _emptiest(self, mine: Iterable[OwnedBucket], group: Group) -> list[bytes]:
        ids = [each.fence.bucket_id for each in mine if (each.lane, each.priority) == group]
        return sorted(ids, key=self._bucket_worker.backlog)

    def _is_over(self) -> bool:
        return self._leaving() or self._ownership.fenced.is_set()

    # ------------------------------------------------------------ creating buckets

    async def _open(self, wanted: Sequence[Group]) -> None:
        """New buckets: in the master first, so that no keys exist of a bucket without a row."""
        buckets = [
            Bucket(
                id=new_id(),
                store=self._store_name,
                lane=lane,
                priority=priority,
                state=BucketState.ACTIVE,
                epoch=1,
                owner=self._ownership.agent_id,
            )
            for lane, priority in wanted
        ]
        opening = {bucket.id for bucket in buckets}
        self._ownership.opening |= opening
        try:
            await self._create(buckets)
        finally:
            self._ownership.opening -= opening

    async def _create(self, buckets: Sequence[Bucket]) -> None:
        until_answered = self._bucket_worker.until_answered
        if not await until_answered(
            "create_buckets", partial(self._master.buckets.create_buckets, buckets), refusals=False
        ):
            self._ownership.fence("the master holds a death certificate for this agent")
            return
        opened = [OwnedBucket.of(bucket) for bucket in buckets]
        for owned in opened:
            status = await until_answered("open_bucket", partial(self._store.open_bucket, owned.fence), refusals=False)
            if status is not ReplyStatus.OK:
                raise Refused(f"agent store {owned.store!r} answered {status} to a new bucket")
        for owned in opened:  # together, so that the wake listener changes its set once
            self._bucket_worker.open(owned)
        with suppress(JobMasterError):
            await self._master.unserved.put_back(PUT_BACK_JOBS)


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
