"""The leader's maintenance tasks. Each may be repeated, run by two agents at once, or be interrupted, without harm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from jobmaster.model.bucket import Bucket
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.ports import MaintenanceMaster, MaintenanceStore, RecordKind, ReplyStatus
from jobmaster.settings.model import ClusterSettings
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.leader.maintenance_runner import LATE_JOBS, MORE, SIGNALS, MaintenanceTask
from jobmaster_agents.leader.resurrected_buckets import BUCKETS_MAX, ResurrectedBuckets
from jobmaster_agents.state.store_reachability import StoreReachability

_ROUNDS_MAX = 20
_PROGRESS_DAYS = 1
"""Retention of reports of runs that are over."""
_LOGS_DAYS = 1
"""Age of a job from which its log may go. It goes when the row of the job has left the master."""
_IDLE_KEYS_DAYS = 1
"""Retention of the keys of limits under which nothing starts."""
_VOID_LINES_DAYS = 1
"""Retention of put-off lines whose jobs have left ``HELD`` another way."""
_SENT_SIGNALS_DAYS = 1
"""How long a signal that is sent again under its id delivers nothing new."""
_SENDER_GONE_SECONDS = 10.0
"""Age from which the leader delivers the rest of a signal: its sender has not come back for the next portion."""
_FREE_LOCKS_DAYS = 7
"""Retention of the rows of locks that no program holds."""
_ENDED_WORKFLOWS_DAYS = 30
"""Retention of workflows that have ended. Their jobs have that of jobs."""
_ENDED_BATCHES_DAYS = 90
"""Retention of the rows of batches that have ended. Their jobs have the retention of jobs."""
_ENDED_BULK_DAYS = 90
"""Retention of bulk operations that have ended."""


class ClusterMaintenance:
    """The maintenance tasks and their intervals.

    Args:
        on_lost: called when a task declared a bucket LOST (the rescue may begin).
    """

    def __init__(
        self,
        agent_id: bytes,
        master: MaintenanceMaster,
        stores: Mapping[str, MaintenanceStore],
        reachability: StoreReachability,
        settings: ClusterSettings,
        on_lost: Callable[[], None],
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._master = master
        self._stores = stores
        self._reachability = reachability
        self._settings = settings
        self._telemetry = telemetry
        self._log = log
        self.resurrected = ResurrectedBuckets(agent_id, master, stores, reachability, on_lost, telemetry, log)

    def tasks(self) -> list[MaintenanceTask]:
        """All maintenance tasks of this class, due at once."""
        return [
            MaintenanceTask("partitions", 3600.0, self.make_partitions),
            MaintenanceTask("orphans", 60.0, self.return_orphans),
            MaintenanceTask("tombstones", 30.0, self.forget_buckets),
            MaintenanceTask("expiry", 30.0, self.expire_jobs),
            MaintenanceTask(LATE_JOBS, 60.0, self.reassign_late),
            MaintenanceTask(SIGNALS, 60.0, self.end_waits),
            MaintenanceTask("resurrected", 60.0, self.resurrected.resurrect),
            MaintenanceTask("retention", 3600.0, self.forget_leftovers),
        ]

    async def make_partitions(self) -> None:
        """Create partitions for the days ahead."""
        partitions = self._settings.partitions
        made = await self._master.maintenance.ensure_partitions(partitions.span, partitions.ahead_days)
        if made:
            self._log.info(Event.PARTITIONS_MADE, {"partitions": made})

    async def return_orphans(self) -> None:
        """Give in-flight rows of buckets that no longer exist back to HELD: no owner and no rescue would find them."""
        limit, max_rescues = self._settings.thresholds.transfer_batch, self._settings.jobs.max_rescues
        total = failed = 0
        for _ in range(_ROUNDS_MAX):
            swept = await self._master.maintenance.return_orphans(
                self._settings.leases.orphan_grace_seconds, limit, max_rescues=max_rescues
            )
            total += swept.moved
            failed += swept.failed
            if swept.moved < limit:
                break
        if total:
            self._telemetry.orphans_returned += total
            self._log.warning(Event.ORPHANS_RETURNED, {"jobs": total})
        if failed:
            self._telemetry.jobs_given_up += failed
            self._log.error(Event.JOBS_GIVEN_UP, {"jobs": failed})

    async def expire_jobs(self) -> None:
        """End HELD jobs past their expiry, and jobs whose confirmation has not come in time."""
        if total := await self._rounds(self._master.maintenance.expire_held):
            self._telemetry.jobs_expired += total
            self._log.info(Event.JOBS_EXPIRED, {"jobs": total})
        if total := await self._rounds(self._master.maintenance.expire_unconfirmed):
            self._telemetry.jobs_unconfirmed += total
            self._log.warning(Event.JOBS_UNCONFIRMED, {"jobs": total})

    async def end_waits(self) -> bool | None:
        """End or start jobs whose signal has not come in time; finish signals whose senders have died; end what was kept.

        Returns:
            ``MORE`` while more was kept for a time that is over.
        """
        signals, limit = self._master.signals, self._settings.thresholds.transfer_batch
        expired = started = 0
        for _ in range(_ROUNDS_MAX):
            ended = await signals.expire_waits(limit)
            expired += ended.expired
            started += ended.started
            if ended.expired + ended.started < limit:
                break
        if expired or started:
            self._telemetry.jobs_expired += expired
            self._log.info(Event.SIGNALS_MISSED, {"expired": expired, "started": started})
        for _ in range(_ROUNDS_MAX):
            if not await signals.finish_sent(_SENDER_GONE_SECONDS):
                break
        return MORE if await self._rounds(signals.end_kept) >= limit * _ROUNDS_MAX else None

    async def reassign_late(self) -> None:
        """Give jobs that run longer than their ``complete_time`` to another agent. (The leader's tick finds them.)"""
        limit, max_reassigns = self._settings.thresholds.transfer_batch, self._settings.jobs.max_reassigns
        moved = failed = 0
        for _ in range(_ROUNDS_MAX):
            found = await self._master.maintenance.reassign_late(limit, max_reassigns=max_reassigns)
            moved += found.moved
            failed += found.failed
            if found.moved < limit:
                break
        self._telemetry.jobs_reassigned += moved - failed
        self._telemetry.jobs_too_slow += failed
        if moved > failed:
            self._log.warning(Event.JOBS_REASSIGNED, {"jobs": moved - failed})
        if failed:
            self._log.error(Event.JOBS_TOO_SLOW, {"jobs": failed})

    async def _rounds(self, call: Callable[[int], Awaitable[int]]) -> int:
        limit = self._settings.thresholds.transfer_batch
        total = 0
        for _ in range(_ROUNDS_MAX):
            count = await call(limit)
            total += count
            if count < limit:
                break
        return total

    async def forget_leftovers(self) -> bool | None:
        """Delete records other than jobs (ended agents, idempotency keys, logs) after their retention.

        Returns:
            ``MORE`` while more of a kind is past its retention: a run's batches must not bound what an hour makes.
        """
        keep, limit = self._settings.retention, self._settings.thresholds.transfer_batch
        days = {
            RecordKind.AGENTS: keep.ended_agents_days,
            RecordKind.PERMITS: _IDLE_KEYS_DAYS,
            RecordKind.KEYS: keep.idempotency_keys_days,
            RecordKind.UNIQUE_KEYS: keep.idempotency_keys_days,
            RecordKind.QUARANTINE: keep.quarantine_days,
            RecordKind.OPERATOR_LOG: keep.operator_log_days,
            RecordKind.BUCKET_EVENTS: keep.bucket_history_days,
            RecordKind.SCHEDULE_FIRES: keep.schedule_fires_days,
            RecordKind.PUT_OFF: _VOID_LINES_DAYS,
            RecordKind.LOCKS: _FREE_LOCKS_DAYS,
            RecordKind.SIGNALS: _SENT_SIGNALS_DAYS,
            RecordKind.WORKFLOWS: _ENDED_WORKFLOWS_DAYS,
            RecordKind.BATCHES: _ENDED_BATCHES_DAYS,
            RecordKind.BULK: _ENDED_BULK_DAYS,
            RecordKind.RUN_PROGRESS: _PROGRESS_DAYS,
            RecordKind.JOB_LOGS: _LOGS_DAYS,
        }
        forgotten: dict[str, int] = {}
        more = False
        for what, age in days.items():
            for _ in range(_ROUNDS_MAX):
                count = await self._master.maintenance.forget(what, age, limit)
                forgotten[what.value] = forgotten.get(what.value, 0) + count
                if count < limit:
                    break
            else:
                more = True
        if total := sum(forgotten.values()):
            self._telemetry.rows_forgotten += total
            self._log.info(Event.LEFTOVERS_FORGOTTEN, {what: count for what, count in forgotten.items() if count})
        return MORE if more else None

    async def forget_buckets(self) -> None:
        """Delete the keys of retired buckets, then their tombstones. Keys that hold jobs again are resurrected instead.

        Only tombstones of stores that answer are read: those of a silent store must not fill the page. For a store that is
        no longer in the configuration only the tombstone is deleted; `ResurrectedBuckets` finds keys that are left there
        when the store is configured again."""
        leases = self._settings.leases
        refusal: Refused | None = None
        for name in [name for name in self._stores if self._reachability.answers(name)]:
            try:
                await self._forget_of(name)
            except Refused as error:  # of this store alone: the others have their turn first
                refusal = error
        age = max(leases.tombstone_seconds, leases.store_dead_seconds)
        unconfigured = await self._master.buckets.forget_buckets(age, list(self._settings.stores), others=True)
        for bucket in unconfigured[:BUCKETS_MAX]:
            await self._drop(bucket)
        if refusal is not None:
            raise refusal

    async def _forget_of(self, store: str) -> None:
        """Delete keys and tombstones of one store. When it falls silent, the rest waits for its next answer."""
        retired = await self._master.buckets.forget_buckets(self._settings.leases.tombstone_seconds, [store])
        for bucket in retired[:BUCKETS_MAX]:
            try:
                status = await self._stores[store].delete_bucket(bucket.id)
            except Unavailable as error:
                self._reachability.failed(store, error)
                return
            if status is ReplyStatus.NOT_EMPTY:
                reason = "keys of a retired bucket hold jobs again"
                if await self._master.buckets.resurrect_retired(bucket, reason):
                    self.resurrected.note(bucket.id, store, reason)
                continue
            await self._drop(bucket)

    async def _drop(self, bucket: Bucket) -> None:
        await self._master.buckets.drop_bucket(bucket.id)
        self._telemetry.buckets_dropped += 1
        self._log.debug(Event.BUCKET_DROPPED, {"bucket": bucket.id, "store": bucket.store})
