"""Agents and their leases: registration, heartbeat, certificates, the leader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from jobmaster.master.driver.connection import Connection, Row, StatementRunner, rows_of, to_us
from jobmaster.model.agent import Agent, HandlerSpec
from jobmaster.model.cluster import ClusterMode
from jobmaster.model.errors import Conflict
from jobmaster.model.ids import text
from jobmaster.model.inspection.views import AgentStatistics
from jobmaster.ports import HostCordon, Renewal

_JSON = msgspec.json.Encoder()
_ENDED = ("DEAD", "RETIRED")


class Members:
    """Agents: registered, renewed, certified dead, retired."""

    def __init__(self, control: StatementRunner, heartbeat: StatementRunner) -> None:
        self._control = control
        self._heartbeat = heartbeat

    async def register(self, agent: Agent, lanes: Sequence[str], handlers: Sequence[HandlerSpec]) -> ClusterMode:
        """Agent row with a fresh lease; publishes handler specs; the mode of the cluster.

        Raises:
            Conflict: the id has ended already.
        """
        rows = await self._control.write(
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
            sorted(spec.name for spec in handlers),
            agent.share,
            list(agent.helps),
            _JSON.encode(agent.settings).decode(),
            agent.clock_us,
            list(agent.capabilities),
            agent.slots,
        )
        if not rows:
            raise Conflict(f"agent {text(agent.id)} has ended; an id is used once", hint="start a new process")
        if handlers:
            await self._control.write(
                "members/publish_handlers",
                agent.id,
                [spec.name for spec in handlers],
                [_JSON.encode(spec).decode() for spec in handlers],
                [spec.digest for spec in handlers],
            )
        if agent.submit_rules:
            await self.publish_submit_rules(agent.submit_rules)
        return ClusterMode(rows[0]["mode"])

    async def publish_submit_rules(self, rules: Mapping[str, object]) -> None:
        """Limits and defaults for submits in SQL, as ``jobmaster.settings.submit_rules`` gives them."""
        await self._control.write("members/publish_submit_rule", _JSON.encode(rules).decode())

    async def publish_slots(self, agent_id: bytes, slots: int) -> None:
        """How many jobs the agent may run at once from now on."""
        await self._control.write("members/publish_slots", agent_id, slots)

    async def announce_stopping(self, agent_id: bytes) -> None:
        """ACTIVE -> STOPPING, for display: nothing depends on it."""
        await self._control.write("members/announce_stopping", agent_id)

    async def renew(self, agent_id: bytes, lease_seconds: float, statistics: AgentStatistics | None = None) -> Renewal:
        """Heartbeat, on a connection of its own; locks only the agent's row."""
        published = None if statistics is None else _JSON.encode(statistics).decode()
        rows = await self._heartbeat.write("members/renew", agent_id, lease_seconds, published)
        if not rows:
            return Renewal(False, False, None, [], [])
        row = rows[0]
        return Renewal(
            True,
            row["drain_requested"],
            row["leader"],
            row["lost_stores"],
            list(row["cancel_requested"]),
            row["frozen"],
            row["at_work"],
            row["epochs"],
            row["agents"],
            frozenset(zip(row["help_lanes"], row["help_priorities"], strict=True)),
            to_us(row["now_at"]),
            row["pauses"],
            row["pauses_obeyed"],
            ClusterMode(row["mode"]),
        )

    async def host_standing(self, agent_id: bytes, deaths: int, cordon_seconds: float) -> HostCordon | None:
        """Whether the host of an agent is cordoned; ``None``: it is not."""
        rows = await self._control.read("members/host_standing", agent_id, deaths, cordon_seconds)
        if not rows:
            return None
        row = rows[0]
        served = frozenset(zip(row["lanes"], row["priorities"], strict=True))
        return HostCordon(row["host"], row["deaths"], row["left_seconds"], served)

    async def end_agent(self, agent_id: bytes, *, dead: bool, reason: str, process_ended: bool = False) -> bool:
        """``dead``: death certificate; otherwise RETIRED, refused while it still owns a bucket. True also when it had ended
        that way before. ``process_ended``: the caller has seen the process of a dead agent end: none of its runs goes on."""

        async def end(connection: Connection) -> bool:
            present = await rows_of(connection, "members/lock", agent_id)
            if not present:
                return False
            if present[0]["state"] in _ENDED:
                return bool(present[0]["state"] == _ENDED[0 if dead else 1])
            if not dead:
                return bool(await rows_of(connection, "members/retire", agent_id, reason))
            ended = await rows_of(connection, "members/certify_on_proof", agent_id, reason, process_ended)
            await rows_of(connection, "buckets/lose", reason)
            return bool(ended)

        return await self._control.in_transaction("members/end", end)

    async def certify_dead(self, certifier: bytes, limit: int) -> list[bytes]:
        """Death certificates for agents whose lease ran out; their buckets become LOST in the same transaction."""

        async def certify(connection: Connection) -> list[Row]:
            rows = await rows_of(connection, "members/certify_dead", certifier, limit)
            await rows_of(connection, "buckets/lose", "the lease of its owner ran out")
            return rows

        return [row["id"] for row in await self._control.in_transaction("members/certify_dead", certify)]

    async def request_drain(self, agent_id: bytes, actor: str) -> bool:
        """Request a graceful exit; the agent reads it with its next renewal. False when it has ended."""
        return bool(await self._control.write("members/request_drain", agent_id, actor))
