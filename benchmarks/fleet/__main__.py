"""``python -m benchmarks.fleet``: from one machine to a fleet, in virtual time, and what breaks first.

A discrete-event simulation: every call of producers, agents and leader waits at the server that has to answer it. Its
unit costs are CPU seconds measured on one machine: ``--measure`` takes them from real servers with thousands of registered
agents (kept as ``fleet_costs``), an agent's own CPU per job comes from the kept report of ``benchmarks.drain``, a producer's
from that of ``benchmarks.submit``, the way from process to process from ``benchmarks.latency``. The drains and latencies that
were measured are simulated, too, and the report shows the difference.

A minute of 1,000 agents on 10 stores at 20,000 jobs a second is nine million events and takes about 20 s of one core; all
scenarios take some minutes.

Assumed and not measured: what checkpoints and vacuum leave of the master's cores (0.75), what its disk takes of write-ahead
log (400 MB/s). Networks, slow disks and agents that come and go are parameters. Not modelled: reads from disk, vacuum as
such, subscribers to finished ids, synchronous standbys other than by a longer flush.
"""

from __future__ import annotations

import json
import time
from typing import Any, TypedDict, Unpack

import click

from benchmarks.fleet import scenarios
from benchmarks.fleet.bounds import limits
from benchmarks.fleet.costs import DRAINED, GROWN, WAITED, Costs, measured_costs
from benchmarks.fleet.fleet_size import Fleet, problems
from benchmarks.fleet.measure_costs import SIZES, measured
from benchmarks.support.report import output_options, progress, show


class Options(TypedDict):
    """Of the command line."""

    agents: int | None
    stores: int
    master_cores: int
    handler_us: float
    long_share: float
    producers: int
    rate: float | None
    network_ms: float
    flush_ms: float | None
    changes: float
    seconds: float
    seed: int
    measure: bool
    sizing: bool
    as_json: bool
    save: bool


def validation(costs: Costs) -> list[dict[str, Any]]:
    """Predicted beside measured; nothing without a kept drain."""
    if not DRAINED.is_file():
        return []
    return scenarios.validated(json.loads(DRAINED.read_text(encoding="utf-8")), costs)


def latencies(costs: Costs) -> list[dict[str, Any]]:
    """Of starts, predicted beside measured."""
    return scenarios.waited(json.loads(WAITED.read_text(encoding="utf-8")), costs) if WAITED.is_file() else []


def run(costs: Costs, seconds: float, seed: int) -> dict[str, Any]:
    """All lines of the guide."""
    began = time.perf_counter()
    found = []
    for line in scenarios.everything(costs, seconds, seed, progress):
        found.append(line)
        progress(
            f"{line['scenario']}: " + ", ".join(f"{k} {v}" for k, v in line.items() if k not in ("scenario", "points"))
        )
    return {
        "costs": shown(costs),
        "validation": validation(costs),
        "validation_latency": latencies(costs),
        "scenarios": found,
        "seed": seed,
        "simulated_in_seconds": round(time.perf_counter() - began, 1),
    }


def sizing(costs: Costs, seed: int) -> dict[str, Any]:
    """The lines of the guide to sizes."""
    lines = []
    for rate, fleet in scenarios.SIZED:
        lines.append(scenarios.sized(fleet, costs, rate, seed))
        progress(f"{rate:,.0f}/s on {fleet.name}: {lines[-1]['busy']}, start p99 {lines[-1]['start_p99_ms']} ms")
    compared = scenarios.crowded(json.loads(GROWN.read_text(encoding="utf-8")), costs) if GROWN.is_file() else []
    return {"sizes": lines, "processes": compared, "costs": shown(costs), "seed": seed}


def shown(costs: Costs) -> dict[str, Any]:
    """Unit costs in microseconds (bytes where they are bytes)."""
    found: dict[str, Any] = {}
    for name, cost in costs._asdict().items():
        scale = 1.0 if name.endswith("bytes") or name == "crowding" else 1e6
        found[name] = [round(part * scale, 3) for part in cost] if isinstance(cost, tuple) else round(cost * scale, 3)
    return found


def own(fleet: Fleet, options: Options, costs: Costs) -> dict[str, Any]:
    """One fleet: at a given load, or up to where it breaks."""
    bounds = {name: round(value) for name, value in limits(fleet, costs).items()}
    if options["rate"] is not None:
        line = scenarios.step(fleet, costs, options["rate"], options["seconds"], options["seed"], progress)
        seconds, seed = options["seconds"], options["seed"]
        breaks = scenarios.bottleneck(fleet, costs, line, seconds, seed) if line["broken"] else "nothing"
        line = {"scenario": "load", **scenarios.described(fleet), "breaks_first": breaks, **line}
    else:
        line = scenarios.ramp(fleet, costs, options["seconds"], options["seed"], progress)
    return {
        "bounds": bounds,
        "connections": fleet.connections,
        "control": scenarios.grown(fleet, costs, 30.0, options["seed"]),
        "scenarios": [line],
        "validation": validation(costs),
    }


@click.command()
@click.option("--agents", type=int, help="Processes: simulate one fleet of your own.")
@click.option("--stores", default=10, show_default=True)
@click.option("--master-cores", default=64, show_default=True)
@click.option("--handler-us", default=0.0, show_default=True, help="CPU of one handler call, in microseconds.")
@click.option("--long-share", default=0.0, show_default=True, help="Share of jobs that get an in-flight row.")
@click.option("--producers", default=100, show_default=True, help="Processes that submit.")
@click.option("--rate", type=float, help="Jobs a second; without it load grows until something breaks.")
@click.option("--network-ms", default=0.0, show_default=True, help="Round trip between two machines.")
@click.option("--flush-ms", type=float, help="A flush of the master's log; without it the measured one.")
@click.option(
    "--changes", default=0.0, show_default=True, help="Buckets that change in a second: agents that come and go."
)
@click.option(
    "--seconds", default=10.0, show_default=True, help="Virtual time of a step, at most; of the whole run with --rate."
)
@click.option("--seed", default=1, show_default=True)
@click.option("--sizing", is_flag=True, help="What to buy for some rates: the table of docs/sizing.md.")
@click.option("--measure", is_flag=True, help="Measure the unit costs on private servers instead.")
@output_options
def main(**options: Unpack[Options]) -> None:
    """What a fleet carries and what breaks first, simulated from measured unit costs."""
    if options["measure"]:
        show("fleet_costs", measured(SIZES), as_json=options["as_json"], save=options["save"])
        return
    if not 0.5 <= options["seconds"] <= 3600:
        raise click.BadParameter(f"{options['seconds']:g} is not between 0.5 and 3600", param_hint="--seconds")
    rate, costs = options["rate"], measured_costs()
    if options["sizing"]:
        show("sizing", sizing(costs, options["seed"]), as_json=options["as_json"], save=options["save"])
        return
    if options["agents"] is None:
        if rate is not None:
            raise click.UsageError("--rate is for one fleet: give --agents, too")
        show("fleet", run(costs, options["seconds"], options["seed"]), as_json=options["as_json"], save=options["save"])
        return
    if rate is not None and not 0 < rate <= 5e6:
        raise click.BadParameter(f"{rate:g} is not between 0 and 5,000,000 jobs a second", param_hint="--rate")
    if options["save"]:
        raise click.UsageError("only the report of all scenarios is kept: leave out --agents or --save")
    fleet = Fleet(
        options["agents"],
        options["stores"],
        options["master_cores"],
        options["handler_us"],
        options["long_share"],
        options["producers"],
        network_ms=options["network_ms"],
        flush_ms=options["flush_ms"],
        changes=options["changes"],
    )
    if wrong := problems(fleet):
        raise click.UsageError("; ".join(wrong))
    show("fleet", own(fleet, options, costs), as_json=options["as_json"], save=False)


if __name__ == "__main__":
    main()
