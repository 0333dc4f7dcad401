"""The lease of the leader."""

from __future__ import annotations

from jobmaster.master.driver.connection import StatementRunner
from jobmaster.ports import DueGroup, LeaderTick


class Leadership:
    """``jobmaster.ports.Leadership`` on PostgreSQL."""

    def __init__(self, control: StatementRunner) -> None:
        self._control = control

    async def acquire(self, agent_id: bytes, weight: int, lease_seconds: float) -> int | None:
        """Take the leader's lease when it is vacant, or renew it; its epoch, ``None`` when another agent holds it."""
        rows = await self._control.write("leadership/acquire", agent_id, weight, lease_seconds)
        return rows[0]["epoch"] if rows else None

    async def transfer(self, agent_id: bytes, weight: int, epoch: int) -> bytes | None:
        """Give the leader's lease to the heaviest agent that could lead; its id, ``None`` when no agent is heavier."""
        rows = await self._control.write("leadership/transfer", agent_id, weight, epoch)
        return rows[0]["heir"] if rows else None

    async def resign(self, agent_id: bytes, epoch: int) -> None:
        """Give the leader's lease back at once."""
        await self._control.write("leadership/resign", agent_id, epoch)

    async def tick(self, agent_id: bytes, weight: int, lease_seconds: float, horizon_seconds: float) -> LeaderTick:
        """Renew the leader's lease of this agent, list due lanes and look for overdue agents and jobs, in one statement."""
        rows = await self._control.write("leadership/tick", agent_id, weight, lease_seconds, horizon_seconds)
        if not rows:
            return LeaderTick(None, [], overdue=False)
        row = rows[0]
        due = [DueGroup(lane, priority) for lane, priority in zip(row["lanes"], row["priorities"], strict=True)]
        flags = (row["overdue"], row["heavier"], row["late"], row["signals"], row["batches"], row["bulk"])
        return LeaderTick(row["epoch"], due, *flags, row["fires_in_seconds"])
