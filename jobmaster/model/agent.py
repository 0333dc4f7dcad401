"""An agent: one executing process with its own random id per start."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class AgentState(StrEnum):
    """ACTIVE and STOPPING hold a lease; DEAD has a death certificate; RETIRED left by itself with nothing behind."""

    ACTIVE = "ACTIVE"
    STOPPING = "STOPPING"
    DEAD = "DEAD"
    RETIRED = "RETIRED"


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """One agent as the master knows it. Times are microseconds since 1970 by the master's clock."""

    id: bytes
    name: str
    host: str
    pid: int
    version: str
    mode: str
    store: str
    weight: int
    state: AgentState
    lease_us: int
    """When the lease ends."""
    lease_seconds: float
    started_us: int
    share: float = 1.0
    """Jobs it is given, against those of an agent with share 1."""
    helps: tuple[str, ...] = ()
    """Lanes in which it opens a bucket when it is asked to."""
    settings: dict[str, object] = {}
    """What all agents of a cluster should be told alike, by its key in the configuration."""
    clock_us: int | None = None
    """Its wall clock, when it registers."""


class HandlerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What agents publish about a handler, so that a producer without its code can validate a submit."""

    name: str
    schema: dict[str, object]
    """JSON Schema of the arguments object."""
    priority: str | None = None
    lane: str | None = None
    timeout_seconds: float | None = None
    max_attempts: int | None = None
    mode: str = "async"
    start: str = "lease"
    delivery: str = "at_least_once"
    digest: str = ""
    """sha256 of everything above; two agents that differ are a finding of ``doctor``."""
