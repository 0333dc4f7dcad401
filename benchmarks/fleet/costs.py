"""Unit costs in seconds of CPU, and where they come from: the kept reports ``fleet_costs``, ``bucket_map``, ``growth``,
``drain``, ``submit`` and ``latency``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.fleet.cost_fitting import fitted
from benchmarks.support.report import RESULTS

MEASURED = RESULTS / "fleet_costs.json"
DRAINED = RESULTS / "drain.json"
SUBMITTED = RESULTS / "submit.json"
WAITED = RESULTS / "latency.json"
GROWN = RESULTS / "growth.json"
MAPPED = RESULTS / "bucket_map.json"
_CALLERS = 100
_DRAINED_BATCH = 1000


class Line(NamedTuple):
    """A cost that grows with something: rows of a batch, agents of a cluster."""

    fixed: float
    per: float = 0.0

    def of(self, many: float) -> float:
        """For so many."""
        return self.fixed + self.per * many


class Costs(NamedTuple):
    """Seconds of CPU; bytes in fields named so."""

    # the master's, by rows
    copy: Line = Line(150e-6, 2.3e-6)
    upsert: Line = Line(400e-6, 9e-6)
    persist: Line = Line(400e-6, 9e-6)
    insert: Line = Line(300e-6, 8e-6)
    onboard: Line = Line(400e-6, 9e-6)
    log_bytes: Line = Line(300.0, 375.0)
    """Of one COPY."""
    upsert_bytes: Line = Line(300.0, 450.0)
    """Of one guarded statement."""
    flush: float = 300e-6
    hop: float = 120e-6
    """From one process to another, until it runs: half of what a bare blocking pop takes beyond its CPU."""
    # the master's, by living agents
    renew: Line = Line(150e-6, 1e-6)
    leader_tick: Line = Line(150e-6, 1e-7)
    certify: Line = Line(300e-6, 1e-6)
    take_lost: Line = Line(300e-6, 3e-6)
    draining: Line = Line(100e-6, 3e-6)
    map: Line = Line(200e-6, 15e-6)
    """Of the whole map of buckets."""
    refresh: Line = Line(100e-6, 1e-6)
    """Of what has changed in it, by changed buckets."""
    compare: Line = Line(60e-6)
    # a store's, by rows
    submit: Line = Line(15e-6, 0.6e-6)
    claim: Line = Line(15e-6, 0.6e-6)
    settle: Line = Line(15e-6, 0.02e-6)
    beat: float = 8e-6
    empty: float = 12e-6
    grant_term: float = 12e-6
    hint: float = 8e-6
    wake: float = 10e-6
    # the callers' own
    submit_client: Line = Line(120e-6, 3e-6)
    claim_client: Line = Line(150e-6)
    settle_client: Line = Line(80e-6)
    copy_client: Line = Line(250e-6)
    map_client: Line = Line(300e-6, 60e-6)
    refresh_client: Line = Line(150e-6, 5e-6)
    crowding: float = 0.14
    """On one machine all CPU of a job grows by this part with each doubling of the agent processes that share its cores."""
    job: float = 4.5e-6
    """CPU of an agent for one job in large batches, all its share of calls included."""

    def crowded(self, processes: int) -> float:
        """Factor of all CPU on a machine whose cores so many agent processes share."""
        return 1.0 + self.crowding * math.log2(processes)

    @property
    def cycle(self) -> float:
        """CPU of an agent for the calls around one batch, however small: wake and claim, write, settle."""
        return self.claim_client.fixed + self.copy_client.fixed + self.settle_client.fixed


def measured_costs(
    measured: Path = MEASURED,
    drained: Path = DRAINED,
    submitted: Path = SUBMITTED,
    waited: Path = WAITED,
    mapped: Path = MAPPED,
    grown: Path = GROWN,
) -> Costs:
    """From the kept reports; what is missing stays at the defaults, which are round figures of the machine they were
    first taken on."""
    costs = Costs()
    if measured.is_file():
        costs = _from(json.loads(measured.read_text(encoding="utf-8")), costs)
    if mapped.is_file():
        ways = json.loads(mapped.read_text(encoding="utf-8"))["ways"]
        changed = {int(name.split()[0]): cost for name, cost in ways.items() if name.endswith(" changed")}
        master, producer = (
            _line(fitted([(count, cost[side]["median"]) for count, cost in changed.items()]))
            for side in ("master_us", "producer_us")
        )
        costs = costs._replace(refresh=master, refresh_client=producer)
    if grown.is_file():
        costs = costs._replace(crowding=_crowding(json.loads(grown.read_text(encoding="utf-8"))["agents"]))
    if drained.is_file():
        report = json.loads(drained.read_text(encoding="utf-8"))
        # The calls around a batch are counted by themselves; a drain's batches are large.
        per_job = report["cpu_seconds"]["ours"]["agents"] / report["jobs"] - costs.cycle / _DRAINED_BATCH
        costs = costs._replace(job=max(per_job, 1e-6))
    if submitted.is_file():
        # One process with a hundred callers does nothing but submit, so its time is CPU; their jobs share a call.
        rate = json.loads(submitted.read_text(encoding="utf-8"))["single"]["store"][str(_CALLERS)]
        fixed = costs.submit_client.fixed
        costs = costs._replace(submit_client=Line(fixed, max(1 / rate - fixed / _CALLERS, 1e-6)))
    if waited.is_file():
        popped = json.loads(waited.read_text(encoding="utf-8"))["floor_p50_ms"] / 1e3
        costs = costs._replace(hop=max(popped - costs.hint - costs.wake, 0.0) / 2)
    return costs


def _from(report: dict[str, Any], costs: Costs) -> Costs:
    rows, control, store = report["rows"], report["control"], report["store"]
    by_rows = {"copy": "copy", "upsert": "upsert", "persist": "persist", "insert": "hold", "onboard": "onboard"}
    found: dict[str, Any] = {mine: _line(rows[name]["server_us"]) for mine, name in by_rows.items()}
    for name in ("renew", "leader_tick", "certify", "take_lost", "draining", "map", "compare"):
        found[name] = _line(control[name]["server_us"])
    for name in ("submit", "claim", "settle"):
        found[name] = _line(store[name]["server_us"])
        found[f"{name}_client"] = _line(store[name]["client_us"])
    for mine, name in {
        "beat": "beat",
        "empty": "empty_claim",
        "grant_term": "grant_term",
        "hint": "hint",
        "wake": "wake",
    }.items():
        found[mine] = store[name]["server_us"]["fixed"] / 1e6
    wake = store["wake"]["client_us"]["fixed"] / 1e6
    found["claim_client"] = found["claim_client"]._replace(fixed=found["claim_client"].fixed + wake)
    return costs._replace(
        **found,
        log_bytes=Line(*_pair(rows["copy"]["wal_bytes"])),
        upsert_bytes=Line(*_pair(rows["upsert"]["wal_bytes"])),
        copy_client=_line(rows["copy"]["client_us"]),
        map_client=_line(control["map"]["client_us"]),
        flush=report["flush_us"] / 1e6,
    )


def _crowding(points: list[dict[str, float]]) -> float:
    """The part by which a job costs more with each doubling of the processes, least squares of relative errors."""
    alone = next(point["cost_us_per_job"] for point in points if point["x"] == 1)
    shares = [(math.log2(point["x"]), point["cost_us_per_job"] / alone) for point in points if point["x"] > 1]
    weighed = sum(x * (y - 1) / y**2 for x, y in shares), sum(x * x / y**2 for x, y in shares)
    return round(max(weighed[0] / weighed[1], 0.0), 4) if shares else 0.0


def _pair(fit: dict[str, float]) -> tuple[float, float]:
    return fit["fixed"], fit["per"]


def _line(fit: dict[str, float]) -> Line:
    """Microseconds in, seconds out."""
    return Line(fit["fixed"] / 1e6, fit["per"] / 1e6)
