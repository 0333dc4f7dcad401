"""The buckets of a cluster in the form that the map draws: numbered cells, and what has changed between two samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from jobmaster.model.bucket import BucketState

STATES = tuple(state.value for state in BucketState)
"""A cell names its state by its place in this list, which the snapshot holds."""
_STATE_NUMBERS = {state: number for number, state in enumerate(STATES)}
_ENCODER = msgspec.json.Encoder()


class BucketSample(NamedTuple):
    """One bucket at the time of a sample."""

    id: str
    lane: str
    priority: int
    store: str
    owner: str
    """Id of its owner: of the rescuer while it is DRAINING."""
    epoch: int
    state: str
    waiting: int
    """Jobs in it that are not claimed; -1: its store did not answer."""
    running: int
    """Rows of its jobs that are PROCESSING, or lists that its owner has claimed, whichever are more."""


class AgentSample(NamedTuple):
    """One agent at the time of a sample. An agent that has died is in the sample while it owns a bucket."""

    id: str
    name: str
    host: str
    store: str
    mode: str
    state: str
    version: str
    lease_until_ms: int
    """End of its lease by the master's clock, milliseconds since 1970."""
    lease_seconds: float


class MapState:
    """Numbers buckets and agents as they appear, and compares each sample with the one before it.

    A number is not used again, so that a viewer who has missed a delta never draws one bucket as another.
    """

    def __init__(self) -> None:
        self._cells: dict[str, tuple[int, BucketSample]] = {}
        self._agents: dict[str, tuple[int, AgentSample]] = {}
        self._next_cell = 0
        self._next_agent = 0

    def apply(self, seq: int, at_ms: int, agents: Iterable[AgentSample], buckets: Iterable[BucketSample]) -> bytes:
        """Take a sample over. Returns JSON: ``new`` cells whole, ``set`` cells with another state or depth, ``gone`` numbers,
        ``agents`` whole (of one that has gone, its number alone), ``leases`` that have another end.

        Args:
            seq: number of the sample.
            at_ms: its time by the master's clock, milliseconds since 1970.
        """
        agent_lines, leases = self._take_agents(agents)
        new, changed, seen = [], [], set()
        for bucket in buckets:
            seen.add(bucket.id)
            known = self._cells.get(bucket.id)
            if known is None:
                number, self._next_cell = self._next_cell, self._next_cell + 1
                new.append(self._cell(number, bucket))
            else:
                number, before = known
                if before == bucket:
                    continue
                if before[:6] == bucket[:6]:
                    changed.append((number, _STATE_NUMBERS[bucket.state], bucket.waiting, bucket.running))
                else:
                    new.append(self._cell(number, bucket))
            self._cells[bucket.id] = number, bucket
        gone = [self._cells.pop(id_)[0] for id_ in [id_ for id_ in self._cells if id_ not in seen]]
        delta: dict[str, Any] = {"seq": seq, "at": at_ms}
        parts = {"agents": agent_lines, "leases": leases, "new": new, "set": changed, "gone": gone}
        delta |= {name: part for name, part in parts.items() if part}
        return _ENCODER.encode(delta)

    def snapshot(self, seq: int, at_ms: int) -> bytes:
        """All of it as JSON, as of the last sample."""
        return _ENCODER.encode(
            {
                "seq": seq,
                "at": at_ms,
                "whole": True,
                "states": STATES,
                "agents": [_agent_line(number, agent) for number, agent in self._agents.values()],
                "new": [self._cell(number, bucket) for number, bucket in self._cells.values()],
            }
        )

    def _take_agents(self, agents: Iterable[AgentSample]) -> tuple[list[Any], list[Any]]:
        lines, leases, seen = [], [], set()
        for agent in agents:
            seen.add(agent.id)
            known = self._agents.get(agent.id)
            if known is None:
                number, self._next_agent = self._next_agent, self._next_agent + 1
                lines.append(_agent_line(number, agent))
            else:
                number, before = known
                if before == agent:
                    continue
                if before._replace(lease_until_ms=agent.lease_until_ms) == agent:
                    leases.append((number, agent.lease_until_ms))
                else:
                    lines.append(_agent_line(number, agent))
            self._agents[agent.id] = number, agent
        for id_ in [id_ for id_ in self._agents if id_ not in seen]:
            lines.append((self._agents.pop(id_)[0], None))
        return lines, leases

    def _cell(self, number: int, bucket: BucketSample) -> tuple[Any, ...]:
        owner = self._agents.get(bucket.owner)
        return (
            number, bucket.id, bucket.lane, bucket.priority, bucket.store, -1 if owner is None else owner[0], bucket.epoch,
            _STATE_NUMBERS[bucket.state], bucket.waiting, bucket.running,
        )  # fmt: skip


def _agent_line(number: int, agent: AgentSample) -> tuple[Any, ...]:
    return (number, *agent)
