"""Buckets whose keys are in a store although the master has forgotten them: the store was rolled back. They get rows as LOST
buckets, and a rescue evacuates them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.model.job import Priority
from jobmaster.ports import MaintenanceMaster, MaintenanceStore, ReplyStatus
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.store_reachability import StoreReachability

BUCKETS_MAX = 64
"""Buckets that one run of a task handles."""
_LANE = "default"
_PRIORITY = Priority.MEDIUM


class ResurrectedBuckets:
    """Finds such buckets and resurrects them.

    Args:
        on_lost: called when a bucket was resurrected (the rescue may begin).
    """

    def __init__(
        self,
        agent_id: bytes,
        master: MaintenanceMaster,
        stores: Mapping[str, MaintenanceStore],
        reachability: StoreReachability,
        on_lost: Callable[[], None],
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._agent_id = agent_id
        self._master = master
        self._stores = stores
        self._reachability = reachability
        self._on_lost = on_lost
        self._telemetry = telemetry
        self._log = log

    async def resurrect(self) -> None:
        """Give a row to buckets that have keys in a store but none in the master: the store went back behind the tombstone.

        The stores are listed before the master: a bucket is created in the master before it is opened in its store, so a
        bucket that the master's list lacks is not a new one. Lane and priority are not in the store; the jobs go to the
        default lane with medium priority. Claimed lists are searched by their keys, because an evacuation reads the list
        of names and misses a list whose name the store has lost.
        """
        found: dict[bytes, str] = {}
        refusal: Refused | None = None
        for name, store in list(self._stores.items()):  # a store may be added meanwhile
            if not self._reachability.answers(name):
                continue
            try:
                found.update((bucket_id, name) for bucket_id in await store.known_buckets())
            except Unavailable as error:
                self._reachability.failed(name, error)
            except Refused as error:  # of this store alone: the others have their turn first
                refusal = error
        known = {bucket.id for bucket in await self._master.queries.list_buckets()} if found else set()
        for bucket_id in [b for b in found if b not in known][:BUCKETS_MAX]:
            if not self._reachability.answers(found[bucket_id]):
                continue
            try:
                await self._resurrect(bucket_id, found[bucket_id])
            except Unavailable as error:  # (of the store or of the master: the next run begins again)
                self._reachability.failed(found[bucket_id], error)
            except Refused as error:
                refusal = error
        if refusal is not None:
            raise refusal

    async def _resurrect(self, bucket_id: bytes, store: str) -> None:
        keys = self._stores[store]
        if await keys.delete_bucket(bucket_id, await keys.known_lists(bucket_id)) is not ReplyStatus.NOT_EMPTY:
            return  # the bucket was empty, and its keys are deleted now
        bucket = Bucket(
            id=bucket_id,
            store=store,
            lane=_LANE,
            priority=_PRIORITY,
            state=BucketState.LOST,
            epoch=0,
            owner=self._agent_id,
        )
        reason = "its store holds jobs of a bucket the master has forgotten"
        if await self._master.buckets.resurrect_bucket(bucket, reason):
            self.note(bucket_id, store, reason)

    def note(self, bucket_id: bytes, store: str, reason: str) -> None:
        """A bucket was resurrected: count it, log it, and let the rescue begin."""
        self._telemetry.buckets_resurrected += 1
        self._log.error(Event.BUCKET_RESURRECTED, {"bucket": bucket_id, "store": store, "reason": reason})
        self._on_lost()
