"""An agent: one executing process with its own random id per start."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class AgentState(StrEnum):
    """ACTIVE and STOPPING hold a lease; DEAD has a death certificate; RETIRED exited and left no bucket."""

    ACTIVE = "ACTIVE"
    STOPPING = "STOPPING"
    DEAD = "DEAD"
    RETIRED = "RETIRED"


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """One agent by its row in the master. Times are microseconds since 1970 by the master's clock."""

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
    """Share of new jobs, relative to an agent with share 1."""
    helps: tuple[str, ...] = ()
    """Lanes in which it opens a bucket on request."""
    settings: dict[str, object] = {}
    """What all agents of a cluster should have in common: settings by their key in the configuration, and hashes of the
    arguments of handlers."""
    submit_rules: dict[str, object] = {}
    """Limits and defaults that it publishes for submits in SQL; see ``jobmaster.settings.submit_rules``."""
    clock_us: int | None = None
    """Its wall clock at registration."""
    capabilities: tuple[str, ...] = ()
    """What its program knows (``rules.capabilities``)."""
    slots: int = 0
    """Jobs that it may run at once."""


class HandlerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A handler as agents publish it, so that a producer without its code can validate a submit."""

    name: str
    schema: dict[str, object]
    """JSON Schema of the arguments object."""
    priority: str | None = None
    lane: str | None = None
    timeout_seconds: float | None = None
    accept_seconds: float | None = None
    complete_seconds: float | None = None
    cancel_slow: bool = False
    max_attempts: int | None = None
    mode: str = "async"
    start: str = "lease"
    delivery: str = "at_least_once"
    unique: dict[str, object] | None = None
    """Its uniqueness, as ``jobmaster.handlers.CheckedUnique``."""
    ordering: dict[str, object] | None = None
    """Its ordering key, as ``jobmaster.handlers.flow.ordering.PublishedOrdering``."""
    limited: bool = False
    """It has limits, so an agent must know of them."""
    secret: tuple[str, ...] = ()
    """Arguments whose values people are not shown."""
    tenant: str | None = None
    """For whom its jobs run when their submit names no tenant."""
    digest: str = ""
    """sha256 of everything above: what is published again unchanged is not written again. A new field with a default changes
    it once for every handler, which costs one write each and has no other effect."""
