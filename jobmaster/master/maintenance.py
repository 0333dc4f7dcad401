"""Maintenance tasks of the leader."""

from __future__ import annotations

from jobmaster.master.driver.connection import StatementRunner
from jobmaster.master.driver.job_errors import ABANDONED, AGENT_LOST, EXPIRED, TOO_SLOW, UNCONFIRMED
from jobmaster.master.rescue import count_of
from jobmaster.ports import Reassigned, RecordKind, Suspicion, Swept

_FORGET = {
    RecordKind.AGENTS: "maintenance/forget_agents",
    RecordKind.PERMITS: "maintenance/forget_permits",
    RecordKind.KEYS: "maintenance/forget_keys",
    RecordKind.UNIQUE_KEYS: "maintenance/forget_unique_keys",
    RecordKind.QUARANTINE: "maintenance/forget_quarantine",
    RecordKind.OPERATOR_LOG: "maintenance/forget_operator_log",
    RecordKind.BUCKET_EVENTS: "maintenance/forget_bucket_events",
    RecordKind.PUT_OFF: "maintenance/forget_put_off",
    RecordKind.LOCKS: "maintenance/forget_locks",
    RecordKind.SCHEDULE_FIRES: "maintenance/forget_schedule_fires",
    RecordKind.SIGNALS: "maintenance/forget_signals",
    RecordKind.WORKFLOWS: "maintenance/forget_workflows",
    RecordKind.BATCHES: "maintenance/forget_batches",
    RecordKind.BULK: "maintenance/forget_bulk",
    RecordKind.RUN_PROGRESS: "maintenance/forget_run_progress",
    RecordKind.JOB_LOGS: "maintenance/forget_job_logs",
}


class Maintenance:
    """Maintenance of rows: expiry, orphans, partitions, records past their retention."""

    def __init__(self, data: StatementRunner, control: StatementRunner) -> None:
        self._data = data
        self._control = control

    async def return_orphans(self, grace_seconds: float, limit: int, *, max_rescues: int) -> Swept:
        """In-flight rows whose (bucket, epoch) is no live bucket -> HELD, as a sweep would."""
        limits = (grace_seconds, limit, count_of(max_rescues))
        return Swept(*(await self._data.write("maintenance/return_orphans", *limits, AGENT_LOST, ABANDONED))[0])

    async def forget(self, what: RecordKind, days: float, limit: int) -> int:
        """Delete older records that are not needed any more, at most ``limit`` rows; number of them."""
        return int((await self._control.write(_FORGET[what], days, limit))[0]["forgotten"])

    async def expire_held(self, limit: int) -> int:
        """HELD rows past their expiry -> EXPIRED; number of them."""
        return int((await self._data.write("maintenance/expire_held", limit, EXPIRED))[0]["expired"])

    async def expire_unconfirmed(self, limit: int) -> int:
        """Jobs whose confirmation has not come in time -> HELD or FAILED; number of them."""
        return int((await self._data.write("maintenance/expire_unconfirmed", limit, UNCONFIRMED))[0]["expired"])

    async def reassign_late(self, limit: int, *, max_reassigns: int) -> Reassigned:
        """Running jobs past their ``complete_time`` -> HELD or FAILED."""
        rows = await self._data.write("maintenance/reassign_late", limit, count_of(max_reassigns), TOO_SLOW)
        return Reassigned(*rows[0])

    async def suspicious(self, store_losses: int) -> list[Suspicion]:
        """Evidence of two owners of a live bucket, and of stores that lost buckets in so many minutes of an hour."""
        return [Suspicion(*row) for row in await self._control.read("maintenance/suspicious", store_losses)]

    async def note_suspicion(self, kind: str, subject: str, detail: str, *, freezes: bool) -> bool:
        """Record a suspicion for operators; False when it was recorded in the last hour."""
        rows = await self._control.write("maintenance/note_suspicion", kind, subject, detail, freezes)
        return bool(rows[0]["noted"])

    async def ensure_partitions(self, span: str, ahead_days: int) -> list[str]:
        """Partitions exist up to ``ahead_days`` ahead; the names of the new ones."""
        return [row["name"] for row in await self._control.write("maintenance/ensure_partitions", span, ahead_days)]
