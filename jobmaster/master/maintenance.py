"""The coordinator's house-keeping."""

from __future__ import annotations

from collections.abc import Sequence

from jobmaster.codec import encode_error
from jobmaster.master.connection import Calls, to_us
from jobmaster.master.rescue import ABANDONED, AGENT_LOST, UNCONFIRMED, count_of
from jobmaster.model.ids import Identity
from jobmaster.model.job import ErrorInfo
from jobmaster.ports import DueGroup, Help, Leftover, RowRef, Swept, Tended, Unserved
from jobmaster.rules.serving import Lack

_EXPIRED = encode_error(
    ErrorInfo(type="Expired", message="the job was not started before its expiry", reason="expired")
)

_FORGET = {
    Leftover.AGENTS: "upkeep/forget_agents",
    Leftover.KEYS: "upkeep/forget_keys",
    Leftover.QUARANTINE: "upkeep/forget_quarantine",
    Leftover.OPERATOR_LOG: "upkeep/forget_operator_log",
    Leftover.BUCKET_EVENTS: "upkeep/forget_bucket_events",
    Leftover.PUT_OFF: "upkeep/forget_put_off",
}


class Upkeep:
    """``jobmaster.ports.Upkeep`` on PostgreSQL, but for the buckets."""

    _data: Calls
    _control: Calls

    async def due_groups(self, horizon_seconds: float) -> list[DueGroup]:
        """Lanes and priorities that have HELD rows within the horizon."""
        rows = await self._control.ask("upkeep/due_groups", horizon_seconds)
        return [DueGroup(row["lane"], row["priority"]) for row in rows]

    async def tend(self, agent_id: bytes, weight: int, lease_seconds: float, horizon_seconds: float) -> Tended:
        """Keep the office that this agent holds, and see what is due and who is overdue, in one statement."""
        rows = await self._control.tell("upkeep/tend", agent_id, weight, lease_seconds, horizon_seconds)
        if not rows:
            return Tended(None, [], overdue=False, heavier=False)
        row = rows[0]
        due = [DueGroup(lane, priority) for lane, priority in zip(row["lanes"], row["priorities"], strict=True)]
        return Tended(row["epoch"], due, row["overdue"], row["heavier"])

    async def unserved(self, overdue_seconds: float, look: int) -> list[Unserved]:
        """Overdue jobs of handlers that no owner of a matching bucket has, those that are put off included."""
        return [
            Unserved(Lack(lane, priority, handler, known, active, frozen), jobs, oldest_us)
            for lane, priority, handler, jobs, oldest_us, known, active, frozen in await self._control.ask(
                "reading/unserved", overdue_seconds, look
            )
        ]

    async def put_off(
        self, group: DueGroup, handlers: Sequence[str], overdue_seconds: float, again_seconds: float, limit: int
    ) -> int:
        """The oldest of such jobs are due again later; how many were moved."""
        rows = await self._data.tell("upkeep/put_off", *group, list(handlers), overdue_seconds, again_seconds, limit)
        return int(rows[0]["moved"])

    async def put_back(self, limit: int) -> int:
        """Jobs that were put off and can be served now have their own due time again; how many lines were settled."""
        return int((await self._data.tell("upkeep/put_back", limit))[0]["moved"])

    async def ask_help(self, lacks: Sequence[Lack]) -> list[Help]:
        """Ask an agent that could run them to open a bucket for jobs that nobody serves; who was newly asked."""
        columns = [each.lane for each in lacks], [each.priority for each in lacks], [each.handler for each in lacks]
        return [Help(*row) for row in await self._control.tell("upkeep/ask_help", *columns)]

    async def end_help(self) -> list[Help]:
        """Ask no more where a configured owner can run the same jobs, or where that agent has ended."""
        return [Help(*row) for row in await self._control.tell("upkeep/end_help")]

    async def return_orphans(self, grace_seconds: float, limit: int, *, max_rescues: int) -> Swept:
        """In-flight rows whose (bucket, epoch) is no live bucket -> HELD, as a sweep would."""
        limits = (grace_seconds, limit, count_of(max_rescues))
        return Swept(*(await self._data.tell("upkeep/return_orphans", *limits, AGENT_LOST, ABANDONED))[0])

    async def forget(self, what: Leftover, days: float, limit: int) -> int:
        """Remove what is older and not needed any more, at most ``limit`` rows; how many."""
        return int((await self._control.tell(_FORGET[what], days, limit))[0]["forgotten"])

    async def expire_held(self, limit: int) -> int:
        """HELD rows past their expiry -> EXPIRED; how many."""
        return int((await self._data.tell("upkeep/expire_held", limit, _EXPIRED))[0]["expired"])

    async def expire_unconfirmed(self, limit: int) -> int:
        """Jobs whose confirmation has not come in time -> HELD or FAILED; how many."""
        return int((await self._data.tell("upkeep/expire_unconfirmed", limit, UNCONFIRMED))[0]["expired"])

    async def ensure_partitions(self, span: str, ahead_days: int) -> list[str]:
        """Partitions exist up to ``ahead_days`` ahead; the names of the new ones."""
        return [row["name"] for row in await self._control.tell("upkeep/ensure_partitions", span, ahead_days)]

    async def give_back(self, bucket_id: bytes, rows: Sequence[RowRef]) -> int:
        """In-flight rows that the owner of their bucket knows nothing of -> HELD, by identity; how many were moved."""
        ids = [row.id for row in rows]
        answer = await self._data.tell(
            "upkeep/give_back",
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
            for row in await self._data.ask("upkeep/bucket_rows", bucket_id, after, limit)
        ]
