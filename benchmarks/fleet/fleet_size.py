"""What a fleet is: how many of everything, and what its jobs are like."""

from __future__ import annotations

from typing import NamedTuple

from jobmaster.settings.model import Leases, MasterSettings

_LEASES = Leases()
CONNECTIONS = MasterSettings(dsn="").agent_pool_size + 2
"""Of one agent to the master: for data, for its lease, for control."""
PRODUCER_CONNECTIONS = 1
"""Of one producer that submits into buckets: that of the map."""
CONNECTIONS_MAX = 5_000
"""The most connections for one PostgreSQL."""


class Fleet(NamedTuple):
    """The size of a fleet, and its load."""

    agents: int
    stores: int
    master_cores: int
    handler_us: float = 0.0
    """CPU of one handler call, on its agent's core."""
    long_share: float = 0.0
    """Share of jobs that get an in-flight row: they wait or run longer than ``persist_within``."""
    producers: int = 100
    """Processes that submit."""
    buckets: int = 15
    """Of each agent; those that no job goes to cost what idle buckets cost."""
    used_buckets: int = 1
    """Of these, the ones that jobs go to. They are one here, with the room of all."""
    wait_ms: float = 0.0
    """How long a handler waits without CPU; at most ``slots`` of a bucket do at once."""
    renew_seconds: float = _LEASES.renew_seconds
    lease_seconds: float = _LEASES.lease_seconds
    renewals_per_second: float = _LEASES.renewals_per_second
    beat_seconds: float = _LEASES.store_beat_seconds
    map_seconds: float = _LEASES.bucket_map_seconds
    master_share: float = 0.75
    """Of the master's cores, what checkpoints and vacuum leave to statements. Assumed."""
    log_mb_per_second: float = 400.0
    """What the master's disk takes of write-ahead log. Assumed."""
    store_speed: float = 1.0
    """Of a store's thread, beside the measured one."""
    network_ms: float = 0.0
    """Round trip between two machines, on top of the measured way between two processes of one."""
    flush_ms: float | None = None
    """A flush of the master's log; ``None``: the measured one."""
    changes: float = 0.0
    """Buckets of the cluster that change in a second: agents that come and go."""

    @property
    def connections(self) -> int:
        """To the master."""
        return self.agents * CONNECTIONS + self.producers * PRODUCER_CONNECTIONS

    @property
    def name(self) -> str:
        """For people."""
        handler = f", {self.handler_us / 1000:g} ms handlers" if self.handler_us else ""
        long = f", {self.long_share:.0%} long" if self.long_share else ""
        return f"{self.agents} x {self.stores}, {self.master_cores} cores{handler}{long}"


def problems(fleet: Fleet) -> list[str]:
    """What makes no sense; empty when all does."""
    found = []
    for name, least in (("agents", 1), ("stores", 1), ("master_cores", 1), ("producers", 1)):
        if getattr(fleet, name) < least:
            found.append(f"{name} must be at least {least}, not {getattr(fleet, name)}")
    if fleet.agents > 20_000:
        found.append(f"{fleet.agents} agents are more than is simulated (20,000)")
    if fleet.stores > fleet.agents >= 1:
        found.append(
            f"{fleet.stores} stores for {fleet.agents} agents: an agent has its buckets in one store, so some are idle"
        )
    if not 0 <= fleet.handler_us <= 60e6:
        found.append(f"a handler's CPU is between 0 and 60,000,000 us, not {fleet.handler_us:g}")
    for name, most in (("network_ms", 1000.0), ("flush_ms", 1000.0), ("changes", 1e5)):
        value = getattr(fleet, name)
        if value is not None and not 0 <= value <= most:
            found.append(f"{name} is between 0 and {most:g}, not {value:g}")
    if not 0 <= fleet.long_share <= 1:
        found.append(f"a share is between 0 and 1, not {fleet.long_share:g}")
    return found
