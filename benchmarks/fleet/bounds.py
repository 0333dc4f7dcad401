"""The arithmetic beside the simulation: what each resource would allow if batches were large and nothing ever waited.

A cross-check and an upper bound: no simulated fleet does more, and one that does much less has small batches or
that something waits.
"""

from __future__ import annotations

from benchmarks.fleet.costs import Costs
from benchmarks.fleet.fleet_size import Fleet
from jobmaster.rules.lease import lease_timing

BATCH = 1000
"""Rows over which the fixed part of a call is spread."""


def limits(fleet: Fleet, costs: Costs) -> dict[str, float]:
    """Jobs a second that each resource allows; the least of them is what the fleet can do at best."""
    pace = lease_timing(fleet.agents, fleet.lease_seconds, fleet.renew_seconds, fleet.renewals_per_second)
    renewals = fleet.agents / pace.renew_seconds * costs.renew.of(fleet.agents)
    refreshes = fleet.producers / fleet.map_seconds * costs.refresh.of(fleet.changes * fleet.map_seconds)
    beats = fleet.agents / fleet.stores / fleet.beat_seconds * costs.beat
    long = fleet.long_share
    row = (1 - long) * costs.copy.of(BATCH) + long * (costs.persist.of(BATCH) + costs.upsert.of(BATCH))
    size = (1 - long) * costs.log_bytes.of(BATCH) + 2 * long * costs.upsert_bytes.of(BATCH)
    store = sum(line.of(BATCH) for line in (costs.submit, costs.claim, costs.settle))
    cores = max(fleet.master_cores * fleet.master_share - renewals - refreshes, 0.0)
    return {
        "agents": fleet.agents / (costs.job + costs.cycle / BATCH + fleet.handler_us / 1e6),
        "stores": fleet.stores * max(1 - beats, 0.0) * BATCH / store,
        "master_log": fleet.log_mb_per_second * 1e6 * BATCH / size,
        "master": cores * BATCH / row,
    }


def bound(fleet: Fleet, costs: Costs) -> tuple[str, float]:
    """The least of them and its jobs a second."""
    allowed = limits(fleet, costs)
    first = min(allowed, key=lambda name: allowed[name])
    return first, allowed[first]
