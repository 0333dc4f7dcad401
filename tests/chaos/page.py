"""Tables that are kept in ``docs/guarantees.md``: the kinds of faults, and the figures of the last long runs.

``python -m tests.chaos.page`` makes them anew from the catalogue and from the reports in ``tests/chaos/results`` and
``benchmarks/results/rescue.json``, which ``--save`` keeps; a test compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.chaos.faults.catalogue import KINDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
RESULTS = Path(__file__).parent / "results"
RESCUE = ROOT / "benchmarks" / "results" / "rescue.json"
_PART = r"(?P<begin><!-- made by python -m MODULE: (?P<name>\w+) -->\n).*?(?P<end><!-- end -->)"


def fault_table() -> str:
    """Every kind of fault."""
    lines = ["| kind | what happens | levels that do not promise to survive it |", "| --- | --- | --- |"]
    for name, kind in KINDS.items():
        uncovered = ", ".join(f"`{level}`" for level in sorted(kind.uncovered)) or "none: all must"
        lines.append(f"| `{name}` | {kind.description} | {uncovered} |")
    return "\n".join(lines)


def run_table() -> str:
    """What the kept reports say."""
    reports = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    parts = [compared(reports)] if reports else []
    if RESCUE.exists():
        parts.append(_rescue(json.loads(RESCUE.read_text())))
    return "\n\n".join(parts) or "None is kept."


def compared(reports: dict[str, dict[str, Any]]) -> str:
    """Reports of runs by name, one column each."""
    rows: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
        ("seconds under load", lambda one: f"{one['load_seconds']:,}"),
        ("faults", lambda one: f"{sum(one['faults'].values())} of {len(one['faults'])} kinds"),
        ("restarts in order", lambda one: one.get("restarts", "")),
        ("acknowledged", lambda one: f"{one['acknowledged']:,}"),
        ("jobs a second", lambda one: f"{one['jobs_per_second']:,}"),
        ("lost", lambda one: one["lost"]),
        ("excused (fault: jobs)", lambda one: ", ".join(f"{k}: {v:,}" for k, v in one["excused"].items())),
        ("unexpected", lambda one: one["unexpected"]),
        ("two outcomes", lambda one: one["duplicate_outcomes"]),
        ("run again", lambda one: f"{one['reexecuted']:,}"),
        ("unknown to the producer, and done", lambda one: f"{one['recovered']:,}"),
        ("late writes refused and counted", lambda one: f"{one['stale_refused']:,}"),
        ("rescues, attempts burnt by restarts", lambda one: _pair(one, "rescues", "attempts_burnt")),
        ("drained, seconds after healing", lambda one: one["drain_seconds"]),
        ("invariants violated", lambda one: sum(one["invariants"].values())),
        ("broken promises, by the checker", _broken),
        ("commit", lambda one: f"`{one['versions']['commit']}`"),
        ("machine", _machine),
        ("servers", lambda one: f"{one['versions']['master']}, {one['versions']['store']}"),
    ]
    if any(one.get("excused_seconds") for one in reports.values()):
        at = next(number for number, (title, _) in enumerate(rows) if title == "unexpected")
        rows.insert(at, ("the oldest of these, seconds before the fault", _oldest))
    if any("flow" in one for one in reports.values()):
        rows.insert(-5, ("flow", _flow))
    lines = [f"| | {' | '.join(reports)} |", f"| --- |{' --- |' * len(reports)}"]
    lines += [f"| {title} | {' | '.join(str(of(one)) for one in reports.values())} |" for title, of in rows]
    return "\n".join(lines)


def _pair(report: dict[str, Any], one: str, other: str) -> str:
    return f"{report[one]}, {report[other]}" if one in report else ""


def _flow(report: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')}: {count:,}" for name, count in report.get("flow", {}).items())


def _broken(report: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in report["violations"].items()) or "none"


def _oldest(report: dict[str, Any]) -> str:
    return ", ".join(f"{kind}: {seconds}" for kind, seconds in report.get("excused_seconds", {}).items())


def _rescue(report: dict[str, Any]) -> str:
    lines = ["| from a kill to the next start, seconds | p50 | p99 | longest | trials | leases |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    names = {
        "child": "an agent's process under its supervisor, another agent lives",
        "child_alone": "the same, no other agent",
        "agent": "supervisor and agent",
        "agent_short_leases": "the same, short leases",
    }
    for key, name in names.items():
        if key in report:
            one = report[key]
            leases = one["leases"] if isinstance(one["leases"], str) else f"lease {one['leases']['lease']}"
            figures = f"{one['p50_seconds']} | {one['p99_seconds']} | {one['max_seconds']} | {one['trials']}"
            lines.append(f"| {name} | {figures} | {leases} |")
    return "\n".join(lines) + f"\n\n{_machine(report)}; commit `{report['commit']}`."


def _machine(report: dict[str, Any]) -> str:
    machine = report["machine"]
    return f"{machine['cores']} cores ({machine['cpu']}), Python {machine['python']}, {machine['system']}"


PARTS = {"faults": fault_table, "runs": run_table}


def made(page: str, module: str = "tests.chaos.page", parts: Mapping[str, Callable[[], str]] = PARTS) -> str:
    """The page with every part of a module made anew."""
    pattern = re.compile(_PART.replace("MODULE", re.escape(module)), re.DOTALL)
    return pattern.sub(lambda found: f"{found['begin']}\n{parts[found['name']]()}\n\n{found['end']}", page)


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
