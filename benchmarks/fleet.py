"""``python -m benchmarks.fleet``: from one machine to a fleet, in arithmetic, and what breaks first.

An analytic model, no measurement: it adds up what each resource has to do at a given rate and says which of them is full
first. Its unit costs are CPU microseconds per job as measured on one machine (``--results`` takes them from a kept report of
``benchmarks.drain``), so its answers are worth as much as these and as the assumptions below.

Assumptions. Jobs are short (one row, one COPY) unless ``long_share`` says otherwise; a long or onboarded job costs the
master as much as five. Stores share nothing, so they add up; the master is one server whose COPYs scale over connections up
to its cores, less a quarter for checkpoints and vacuum, and up to what its disk takes of write-ahead log.
Heartbeats and renewals are single small statements. The network is not modelled except for the number of connections.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks.report import RESULTS, output_options, show

MASTER_SHARE = 0.75
"""Of the master's cores, what is left for COPY when checkpoints and vacuum have had theirs."""
WAL_MB_PER_SECOND = 400.0
"""What the master's disk takes of write-ahead log, all day long; checkpoints write the tables on top of it."""
RENEWAL_US = 300.0
"""CPU of the master for one renewal of a lease, planning and commit included."""
BEAT_US = 10.0
"""CPU of a store for one heartbeat."""
LONG_FACTOR = 5.0
"""A job with an in-flight row or an onboarding costs the master this many COPYed rows."""
CONNECTIONS = 6
"""Of one agent to the master: four for data, one for the heartbeat, one for the coordinator."""
CONNECTIONS_MAX = 5_000
"""More than this one PostgreSQL should not be asked to carry."""


class UnitCosts(NamedTuple):
    """CPU microseconds per job, and bytes."""

    agent: float = 6.0
    store: float = 2.0
    """Submit and claim."""
    master: float = 3.5
    wal_bytes: float = 450.0
    """Write-ahead log per job."""


class Fleet(NamedTuple):
    """What there is."""

    agents: int
    stores: int
    master_cores: int
    handler_us: float = 0.0
    """CPU of the handler itself."""
    long_share: float = 0.0
    """Jobs that wait in the master or run longer than ``persist_within``."""
    renew_seconds: float = 3.0
    beat_seconds: float = 1.0


def limits(fleet: Fleet, costs: UnitCosts) -> dict[str, float]:
    """Jobs a second that each resource allows; the least of them is what the fleet does."""
    renewals = fleet.agents / fleet.renew_seconds * RENEWAL_US / 1e6
    beats = fleet.agents / fleet.stores / fleet.beat_seconds * BEAT_US / 1e6
    rows = 1 + fleet.long_share * (LONG_FACTOR - 1)
    return {
        "agents": fleet.agents * 1e6 / (costs.agent + fleet.handler_us),
        "stores": fleet.stores * max(1 - beats, 0.0) * 1e6 / costs.store,
        "master_log": WAL_MB_PER_SECOND * 1e6 / (costs.wal_bytes * rows),
        "master": max(fleet.master_cores * MASTER_SHARE - renewals, 0.0) * 1e6 / (costs.master * rows),
    }


def judged(fleet: Fleet, costs: UnitCosts) -> dict[str, Any]:
    """One line of the guide."""
    allowed = limits(fleet, costs)
    first = min(allowed, key=lambda name: allowed[name])
    rate = allowed[first]
    connections = fleet.agents * CONNECTIONS
    return {
        **fleet._asdict(),
        "jobs_per_second": round(rate),
        "breaks_first": first,
        "busy": {name: round(rate / value, 3) if value else 1.0 for name, value in allowed.items()},
        "renewals_per_second": round(fleet.agents / fleet.renew_seconds, 1),
        "rows_per_day": round(rate * 86_400),
        "master_connections": connections,
        "too_many_connections": connections > CONNECTIONS_MAX,
    }


SIZES = (
    Fleet(1, 1, 2),
    Fleet(2, 1, 2),
    Fleet(8, 1, 8),
    Fleet(50, 2, 16),
    Fleet(200, 4, 32),
    Fleet(1000, 10, 32),
    Fleet(1000, 10, 64),
    Fleet(1000, 10, 64, handler_us=1_000.0),
    Fleet(1000, 10, 64, handler_us=10_000.0),
    Fleet(1000, 10, 64, long_share=0.5),
    Fleet(1000, 10, 64, renew_seconds=10.0),
)


def measured_costs(path: Path) -> UnitCosts:
    """Unit costs from a kept report of ``benchmarks.drain``."""
    report = json.loads(path.read_text(encoding="utf-8"))
    used, jobs = report["cpu_seconds"]["ours"], report["jobs"]
    # The report counts the claim; the submit is about half as much again.
    return UnitCosts(
        used["agents"] / jobs * 1e6,
        used["store"] / jobs * 1.5e6,
        used["postgres"] / jobs * 1e6,
        float(report["wal_bytes_per_job"]),
    )


def run(costs: UnitCosts, sizes: tuple[Fleet, ...] = SIZES) -> dict[str, Any]:
    """All lines."""
    return {"costs_us_per_job": costs._asdict(), "fleets": [judged(fleet, costs) for fleet in sizes]}


@click.command()
@click.option("--agents", type=int, help="Processes; with --stores and --master-cores: one line of your own.")
@click.option("--stores", type=int, default=10, show_default=True)
@click.option("--master-cores", type=int, default=64, show_default=True)
@click.option("--handler-us", type=float, default=0.0, show_default=True, help="CPU of one handler call.")
@click.option("--long-share", type=click.FloatRange(0, 1), default=0.0, show_default=True)
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS / "drain.json", show_default=True,
    help="A report of benchmarks.drain to take unit costs from.",
)  # fmt: skip
@output_options
def main(
    agents: int | None, stores: int, master_cores: int, handler_us: float, long_share: float, results: Path,
    as_json: bool, save: bool,
) -> None:  # fmt: skip
    """What a fleet can do and which resource is full first, from unit costs."""
    costs = measured_costs(results) if results.is_file() else UnitCosts()
    own = (Fleet(agents, stores, master_cores, handler_us, long_share),) if agents else SIZES
    show("fleet", run(costs, own), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
