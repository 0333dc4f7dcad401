"""Agents and their leases: registration, heartbeat, certificates, the coordinator."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobmaster.master.connection import Calls
from jobmaster.model.agent import Agent, HandlerSpec
from jobmaster.model.errors import Conflict
from jobmaster.model.ids import text
from jobmaster.ports import Renewal

_JSON = msgspec.json.Encoder()


class Members:
    """The part of ``jobmaster.ports.Membership`` that is about agents."""

    _data: Calls
    _control: Calls
    _heartbeat: Calls

    async def register(self, agent: Agent, lanes: Sequence[str], handlers: Sequence[HandlerSpec]) -> None:
        """Agent row with a fresh lease; publishes handler specs. ``Conflict`` when the id has ended already."""
        rows = await self._control.tell(
            "members/register",
            agent.id,
            agent.name,
            agent.host,
            agent.pid,
            agent.version,
            agent.mode,
            agent.store,
            agent.weight,
            agent.lease_seconds,
            list(lanes),
            [spec.name for spec in handlers],
        )
        if not rows:
            raise Conflict(f"agent {text(agent.id)} has ended; an id is used once", hint="start a new process")
        if handlers:
            await self._control.tell(
                "members/publish_handlers",
                agent.id,
                [spec.name for spec in handlers],
                [_JSON.encode(spec).decode() for spec in handlers],
                [spec.digest for spec in handlers],
            )

    async def renew(self, agent_id: bytes, lease_seconds: float) -> Renewal:
        """Heartbeat, on a connection of its own; locks no row but the agent's."""
        rows = await self._heartbeat.tell("members/renew", agent_id, lease_seconds)
        if not rows:
            return Renewal(False, False, None, False, [])
        row = rows[0]
        return Renewal(
            True, row["drain_requested"], row["coordinator"], row["lost_buckets"], list(row["cancel_requested"])
        )
