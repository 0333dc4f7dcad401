"""The scenarios of a simulated fleet: prediction of the measured machine, the first limit under load, and faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.fleet.bounds import bound
from benchmarks.fleet.cluster import Cluster
from benchmarks.fleet.control_plane import Control
from benchmarks.fleet.costs import Costs
from benchmarks.fleet.discrete_events import Histogram, Station
from benchmarks.fleet.faults import Outage, Rescue
from benchmarks.fleet.fleet_size import CONNECTIONS_MAX, Fleet

Report = dict[str, Any]
Progress = Callable[[str], None]
START_MAX = 1.0
"""A start p99 above this many seconds is a break."""
FULL = 0.95
"""A resource that is busier is full."""
GROWTH_MAX = 0.02
"""A backlog that grows by more than this share of what is offered is a break."""
_FURTHER, _BEYOND = 1.2, 2.0
WARM_UP = 0.5
WINDOW_JOBS = 150_000
"""A step of a ramp is as long as it takes to offer so many jobs, within its limits."""
STEPS = (0.001, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3)
"""Offered load as shares of the arithmetic bound."""
SIZES = (
    Fleet(1, 1, 2, producers=4),
    Fleet(8, 1, 8, producers=8),
    Fleet(50, 2, 16, producers=20),
    Fleet(200, 4, 32),
    Fleet(1000, 10, 64),
    Fleet(1000, 10, 64, handler_us=1_000.0),
    Fleet(1000, 10, 64, handler_us=10_000.0),
    Fleet(1000, 10, 64, long_share=0.5),
)
GROWN = (
    Fleet(100, 10, 64),
    Fleet(1000, 10, 64),
    Fleet(1000, 10, 64, producers=1000),
    Fleet(1000, 10, 64, producers=1000, changes=100.0),
    Fleet(5000, 10, 64),
    Fleet(10_000, 10, 64),
)
SIZED = (
    (10_000.0, Fleet(1, 1, 2, producers=2)),
    (100_000.0, Fleet(2, 1, 4, producers=4)),
    (500_000.0, Fleet(30, 2, 16, producers=20)),
    (10_000.0, Fleet(20, 1, 2, handler_us=1_000.0, producers=4)),
    (100_000.0, Fleet(170, 3, 8, handler_us=1_000.0, producers=10)),
    (500_000.0, Fleet(850, 14, 64, handler_us=1_000.0, producers=40)),
    (100_000.0, Fleet(170, 3, 8, handler_us=1_000.0, producers=10, network_ms=1.0)),
    (100_000.0, Fleet(170, 3, 8, handler_us=1_000.0, producers=10, network_ms=30.0)),
    (100_000.0, Fleet(170, 3, 8, handler_us=1_000.0, producers=10, flush_ms=5.0)),
)
"""Jobs a second, and what to buy for them."""
FAULTY = Fleet(1000, 10, 64, handler_us=10_000.0)
FAULTY_RATE = 5_000.0


# ---------------------------------------------------------------- the measured machine


def validated(report: Report, costs: Costs) -> list[Report]:
    """Measured drains of no-op jobs, beside the simulation of that machine.

    One machine: agents, store and master share its cores, less what other work kept busy at the time.
    """
    cores = report["machine"]["cores"]
    speed = max(cores - report["other_work_cores"], 0.2) / cores
    cases = [report, *(case for case in report.get("cases", []))]
    found = []
    for case in cases:
        if case["work"] != "noop":
            continue
        fleet = Fleet(case["processes"], 1, cores, used_buckets=case["buckets"])
        predicted = drained(fleet, costs, case["jobs"], Station(cores, speed / costs.crowded(fleet.agents)))
        found.append({
            "processes": case["processes"],
            "buckets": case["buckets"],
            "measured": case["jobs_per_second"],
            "predicted": round(predicted),
            "ratio": round(predicted / case["jobs_per_second"], 3),
        })  # fmt: skip
    return found


def crowded(report: Report, costs: Costs) -> list[Report]:
    """Measured drains of many processes on one machine, beside the simulation of it: the CPU of a job, all of it."""
    found = []
    for point in report["agents"]:
        fleet = Fleet(int(point["x"]), 1, report["machine"]["cores"])
        shared = Station(fleet.master_cores, 1.0)
        drained(fleet, costs, point["jobs"], shared)
        cost = shared.busy / point["jobs"] * 1e6 * costs.crowded(fleet.agents)
        found.append({
            "processes": fleet.agents,
            "measured_us": point["cost_us_per_job"],
            "simulated_us": round(cost, 2),
            "ratio": round(cost / point["cost_us_per_job"], 3),
        })  # fmt: skip
    return found


def waited(report: Report, costs: Costs) -> list[Report]:
    """Submit to start on that machine, measured and simulated: at light load, and at what is called half load.

    The measured half load comes in bursts from one process that shares two cores with everything; the simulated one comes
    evenly.
    """
    cores = report["machine"]["cores"]
    speed = max(cores - report["other_work_cores"], 0.2) / cores
    found = []
    for measured, rate in (
        (report, report["jobs_per_second"]),
        (report["half_load"], report["half_load"]["jobs_per_second"]),
    ):
        fleet = Fleet(1, 1, cores, producers=1, used_buckets=1)
        cluster = Cluster(fleet, costs, rate=rate, seed=1, shared=Station(cores, speed))
        cluster.time.run(window_of(rate, 10.0))
        start = cluster.starts.quantiles()
        found.append({
            "jobs_per_second": rate,
            "measured_p50_ms": measured["p50_ms"],
            "simulated_p50_ms": round(start.p50 * 1e3, 3),
            "measured_p99_ms": measured["p99_ms"],
            "simulated_p99_ms": round(start.p99 * 1e3, 3),
        })  # fmt: skip
    return found


def drained(fleet: Fleet, costs: Costs, jobs: int, shared: Station | None = None) -> float:
    """Jobs a second of a drain that begins with everything in the buckets."""
    cluster = Cluster(fleet, costs, rate=0.0, seed=1, shared=shared)
    cluster.submitted = jobs
    for agent in cluster.agents:
        cluster.put(agent, 0.0, jobs // fleet.agents, 0.0)
    cluster.submitted = jobs // fleet.agents * fleet.agents
    step = 0.01
    while cluster.in_flight and cluster.time.now < 600.0:
        cluster.time.run(cluster.time.now + step)
    return jobs / cluster.time.now


# ---------------------------------------------------------------- more and more load


def window_of(rate: float, seconds: float) -> float:
    """How long a step lasts: long enough for a p99, short enough to be simulated."""
    return min(seconds, max(WINDOW_JOBS / rate, 1.0))


def step(
    fleet: Fleet, costs: Costs, rate: float, seconds: float, seed: int, progress: Progress | None = None
) -> Report:
    """One offered load, held for some seconds after a warm-up.

    Args:
        progress: called after every tenth of it.
    """
    began = time.perf_counter()
    cluster = Cluster(fleet, costs, rate=rate, seed=seed)
    control = Control(cluster)
    events = cluster.time.run(WARM_UP)
    cluster.starts, cluster.ends = Histogram(), Histogram()
    before, waiting, calls, finished = cluster.busy(), cluster.in_flight, cluster.calls, cluster.finished
    for tenth in range(1, 11):
        events += cluster.time.run(WARM_UP + seconds * tenth / 10)
        if progress is not None:
            progress(
                f"{seconds * tenth / 10:g} of {seconds:g} s, {events:,} events in {time.perf_counter() - began:.0f} s"
            )
    busy = {name: round(min((after - before[name]) / seconds, 1.0), 3) for name, after in cluster.busy().items()}
    growth = (cluster.in_flight - waiting) / (rate * seconds)
    start = cluster.starts.quantiles()
    written = cluster.calls - calls
    return {
        "offered": round(rate),
        "finished": round((cluster.finished - finished) / seconds),
        "start_p50_ms": round(start.p50 * 1e3, 3),
        "start_p99_ms": round(start.p99 * 1e3, 3),
        "record_p99_ms": round(cluster.ends.quantile(0.99) * 1e3, 3),
        "rows_per_copy": round((cluster.finished - finished) / max(written, 1), 2),
        "busy": busy,
        "growth": round(growth, 3),
        "longest_renewal_ms": round(control.renewals.longest * 1e3, 1),
        "broken": start.p99 > START_MAX or growth > GROWTH_MAX,
        "seconds": round(seconds, 2),
        "events": events,
        "took": round(time.perf_counter() - began, 2),
    }


def ramp(fleet: Fleet, costs: Costs, seconds: float, seed: int, progress: Progress) -> Report:
    """More and more until something breaks; what is full then."""
    what, most = bound(fleet, costs)
    points = []
    for share in STEPS:
        point = step(fleet, costs, most * share, window_of(most * share, seconds), seed)
        points.append(point)
        progress(
            f"{fleet.name}: {point['offered']:,}/s, start p99 {point['start_p99_ms']:g} ms, {point['rows_per_copy']:g} rows"
            f" a COPY, busy {max(point['busy'], key=point['busy'].__getitem__)} {max(point['busy'].values()):.0%}"
            f" ({point['events']:,} events in {point['took']:g} s)"
        )
        if point["broken"]:
            break
    last = points[-1]
    good = [point for point in points if not point["broken"]]
    full = [name for name, share in last["busy"].items() if share >= FULL]
    return {
        "scenario": "ramp",
        **described(fleet),
        "carries": good[-1]["finished"] if good else 0,
        "breaks_at": last["offered"] if last["broken"] else None,
        "breaks_first": bottleneck(fleet, costs, last, seconds, seed) if last["broken"] else "nothing",
        "full": full,
        "bound": round(most),
        "bound_by": what,
        "points": points,
    }


def bottleneck(fleet: Fleet, costs: Costs, point: Report, seconds: float, seed: int) -> str:
    """The resource that is to blame for a break: of those that are full, the one of which twice as much helps most.

    Being busy is not enough. Small batches keep a store's thread busy long before it is at its end: they grow.
    """
    busy: dict[str, float] = point["busy"]
    full = [name for name, share in busy.items() if share >= FULL]
    if not full and point["offered"] < _BEYOND * bound(fleet, costs)[1]:
        # Just at the edge nothing is quite full; what is full a little further on is to blame.
        rate = point["offered"] * _FURTHER
        again = step(fleet, costs, rate, window_of(rate, seconds), seed)
        return bottleneck(fleet, costs, again, seconds, seed)
    if not full:
        busiest = max(busy, key=busy.__getitem__)
        return f"{busiest} (waiting for calls)"
    if len(full) == 1:
        return full[0]
    doubled = {
        "stores": fleet._replace(store_speed=2 * fleet.store_speed),
        "master": fleet._replace(master_cores=2 * fleet.master_cores),
        "master_log": fleet._replace(log_mb_per_second=2 * fleet.log_mb_per_second),
        "producers": fleet._replace(producers=2 * fleet.producers),
    }
    helped: dict[str, tuple[bool, float, float]] = {}
    for name in full:
        if name in doubled:
            again = step(doubled[name], costs, point["offered"], window_of(point["offered"], seconds), seed)
            helped[name] = (again["broken"], again["growth"], again["start_p99_ms"])
    return min(helped, key=helped.__getitem__) if helped else full[0]


def described(fleet: Fleet) -> Report:
    """The fleet of a line."""
    return {
        "agents": fleet.agents,
        "stores": fleet.stores,
        "master_cores": fleet.master_cores,
        "handler_ms": fleet.handler_us / 1000,
        "long_share": fleet.long_share,
        "producers": fleet.producers,
    }


# ---------------------------------------------------------------- more and more agents


def grown(fleet: Fleet, costs: Costs, seconds: float, seed: int) -> Report:
    """The control plane alone, nearly: one job a second for every hundred agents."""
    agents = fleet.agents
    cluster = Cluster(fleet, costs, rate=agents / 100, seed=seed)
    control = Control(cluster)
    cluster.time.run(seconds)
    cores = {name: round(spent / seconds, 3) for name, spent in control.spent.items()}
    return {
        "scenario": "agents",
        **described(fleet),
        "lease_seconds": control.pace.lease_seconds,
        "renew_seconds": control.pace.renew_seconds,
        "master_cores_used": cores,
        "master_cores_used_in_all": round(sum(cores.values()), 3),
        "renewal_p99_ms": round(control.renewals.quantile(0.99) * 1e3, 3),
        "map_ms": round(control.refreshes.quantile(0.5) * 1e3, 1),
        "map_decode_ms": round(control.decodes.quantile(0.5) * 1e3, 2),
        "whole_map_ms": round(costs.map.of(agents) * 1e3, 1),
        "whole_map_decode_ms": round(costs.map_client.of(agents) * 1e3, 1),
        "changes": fleet.changes,
        "store_busy": round(max(store.busy for store in cluster.stores) / seconds, 4),
        "start_p99_ms": round(cluster.starts.quantile(0.99) * 1e3, 2),
        "connections": fleet.connections,
        "too_many_connections": fleet.connections > CONNECTIONS_MAX,
    }


# ---------------------------------------------------------------- what to buy


def sized(fleet: Fleet, costs: Costs, rate: float, seed: int) -> Report:
    """One line of the guide to sizes: what is used of everything at this rate."""
    point = step(fleet, costs, rate, window_of(rate, 5.0), seed)
    written = costs.log_bytes.of(point["rows_per_copy"]) / max(point["rows_per_copy"], 1.0) * rate
    return {
        "jobs_per_second": round(rate),
        **described(fleet),
        "network_ms": fleet.network_ms,
        "flush_ms": costs.flush * 1e3 if fleet.flush_ms is None else fleet.flush_ms,
        "connections": fleet.connections,
        "log_mb_per_second": round(written / 1e6, 1),
        **{name: point[name] for name in ("busy", "broken", "rows_per_copy", "start_p50_ms", "start_p99_ms")},
    }


# ---------------------------------------------------------------- faults

BEFORE = 15.0


class _Watch:
    """Reads the backlog four times a second, and returns the time at which it is as before."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.most = 0
        self.usual = 0.0

    def run(self, until: float, over: Callable[[], bool]) -> float | None:
        """Seconds from now until the backlog is back to usual and it is over; ``None``: not by then."""
        began = self.cluster.time.now
        calm: float | None = None
        while self.cluster.time.now < until:
            self.cluster.time.run(self.cluster.time.now + 0.25)
            waiting = self.cluster.in_flight
            self.most = max(self.most, waiting)
            if over() and waiting <= self.usual * 1.5 + 50:
                calm = calm if calm is not None else self.cluster.time.now - began
                if self.cluster.time.now - began >= calm + 2.0:
                    return calm
            else:
                calm = None
        return None


def _begun(fleet: Fleet, costs: Costs, rate: float, seed: int) -> tuple[Cluster, Control, _Watch]:
    cluster = Cluster(fleet, costs, rate=rate, seed=seed)
    control = Control(cluster)
    watch = _Watch(cluster)
    cluster.time.run(BEFORE)
    watch.usual = float(cluster.in_flight)
    cluster.starts = Histogram()
    return cluster, control, watch


def _scenario_report(
    name: str, fleet: Fleet, rate: float, cluster: Cluster, watch: _Watch, back: float | None
) -> Report:
    return {
        "scenario": name,
        **described(fleet),
        "jobs_per_second": round(rate),
        "seconds_until_usual": back,
        "most_waiting": watch.most,
        "start_p99_ms": round(cluster.starts.quantile(0.99) * 1e3, 1),
        "start_longest_seconds": round(cluster.starts.longest, 1),
    }


def killed(fleet: Fleet, costs: Costs, rate: float, seed: int, share: float = 0.1) -> Report:
    """A share of the agents at once, machines and all."""
    cluster, control, watch = _begun(fleet, costs, rate, seed)
    rescue = Rescue(cluster, control)
    count = max(int(fleet.agents * share), 1)
    jobs = rescue.kill(count)
    back = watch.run(BEFORE + 300.0, lambda: rescue.drained >= count * fleet.buckets and not rescue.holding)
    return {
        **_scenario_report("agents_killed", fleet, rate, cluster, watch, back),
        "killed": count,
        "jobs_in_them": jobs,
        "rescued": rescue.rescued,
        "lease_seconds": control.pace.lease_seconds,
        "first_certificate_after": round(rescue.first_certificate - BEFORE, 1),
        "last_certificate_after": round(rescue.last_certificate - BEFORE, 1),
        "last_bucket_after": round(rescue.last_drained - BEFORE, 1),
        "looks_for_lost_buckets": rescue.looks,
        "fenced": control.fenced,
    }


def store_away(fleet: Fleet, costs: Costs, rate: float, seed: int, seconds: float = 30.0) -> Report:
    """One store does not answer, and comes back with everything."""
    cluster, control, watch = _begun(fleet, costs, rate, seed)
    rescue = Rescue(cluster, control)
    cluster.stores[0].away(BEFORE + seconds)
    back = watch.run(
        BEFORE + 300.0,
        lambda: cluster.time.now > BEFORE + seconds and not rescue.lost and not rescue.holding,
    )
    return {
        **_scenario_report("store_away", fleet, rate, cluster, watch, back),
        "away_seconds": seconds,
        "agents_on_it": fleet.agents // fleet.stores,
        "fenced": control.fenced,
        "rescued": rescue.rescued,
        "lease_seconds": control.pace.lease_seconds,
    }


def master_away(fleet: Fleet, costs: Costs, rate: float, seed: int, seconds: float = 30.0) -> Report:
    """The master does not answer, and comes back."""
    cluster, control, watch = _begun(fleet, costs, rate, seed)
    outage = Outage(cluster, control)
    outage.begin(seconds)
    back = watch.run(BEFORE + 300.0, lambda: cluster.time.now > BEFORE + seconds)
    return {
        **_scenario_report("master_away", fleet, rate, cluster, watch, back),
        "away_seconds": seconds,
        "catch_up_seconds": None if back is None else round(back - seconds, 2),
        "kept_in_stores": outage.kept,
        "suspended": control.suspended,
        "longest_term_grant_ms": round(control.term_grants.longest * 1e3, 1),
        "longest_renewal_ms": round(control.renewals.longest * 1e3, 1),
        "longest_without_renewal_seconds": round(control.longest_gap, 1),
        "lease_seconds": control.pace.lease_seconds,
        "fenced": control.fenced,
    }


# ---------------------------------------------------------------- all of them


def everything(costs: Costs, seconds: float, seed: int, progress: Progress) -> Iterator[Report]:
    """The lines of the guide."""
    for fleet in SIZES:
        yield ramp(fleet, costs, seconds, seed, progress)
    for fleet in GROWN:
        yield grown(fleet, costs, 30.0, seed)
    for fault in (killed, store_away, master_away):
        yield fault(FAULTY, costs, FAULTY_RATE, seed)
