"""Unit costs in seconds of CPU, and where they come from: the kept reports ``fleet_costs``, ``drain``, ``submit`` and
``latency``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.support.report import RESULTS

MEASURED = RESULTS / "fleet_costs.json"
DRAINED = RESULTS / "drain.json"
SUBMITTED = RESULTS / "submit.json"
WAITED = RESULTS / "latency.json"
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
    job: float = 4.5e-6
    """CPU of an agent for one job in large batches, all its share of calls included."""

    @property
    def cycle(self) -> float:
        """CPU of an agent for the calls around one batch, however small: wake and claim, write, settle."""
        return self.claim_client.fixed + self.copy_client.fixed + self.settle_client.fixed


def measured_costs(
    measured: Path = MEASURED, drained: Path = DRAINED, submitted: Path = SUBMITTED, waited: Path = WAITED
) -> Costs:
    """From the kept reports; what is missing stays at the defaults, which are round figures of the machine they were
    first taken on."""
    costs = Costs()
    if measured.is_file():
        costs = _from(json.loads(measured.read_text(encoding="utf-8")), costs)
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


def _pair(fit: dict[str, float]) -> tuple[float, float]:
    return fit["fixed"], fit["per"]


def _line(fit: dict[str, float]) -> Line:
    """Microseconds in, seconds out."""
    return Line(fit["fixed"] / 1e6, fit["per"] / 1e6)
