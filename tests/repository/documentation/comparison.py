"""The measured table of ``docs/comparison.md``: what the reports in ``benchmarks/results`` have, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.support.performance_tables import command_of, cpu_includes

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
NOT_MEASURED = "not measured here"


class System(NamedTuple):
    """One of the twelve."""

    name: str
    peer: str | None
    """Its name in the reports; ``None``: no benchmark knows it."""


SYSTEMS = (
    System("Celery", "celery"),
    System("RQ", "rq"),
    System("Dramatiq", "dramatiq"),
    System("arq", "arq"),
    System("SAQ", "saq"),
    System("Huey", "huey"),
    System("taskiq", "taskiq"),
    System("Procrastinate", "procrastinate"),
    System("PgQueuer", "pgqueuer"),
    System("Graphile Worker", "graphile"),
    System("Hangfire", None),
    System("Temporal", None),
)


def measured_table(results: Path = RESULTS) -> str:
    """Ratios of one run: how many times as many jobs JobMaster handles at the same durability."""
    peers = _report(results, "peers")
    cpu = _report(results, "peers_cpu") if (results / "peers_cpu.json").exists() else peers
    lines = [
        "| ours is x times | version | drain, 1 process | drain, 2 processes | submit, one caller | submit, 100 callers "
        "| bulk submit | CPU of a job |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for system in SYSTEMS:
        cells = [_cell(cell) for cell in (*_ratios(peers, system.peer), _of_cpu(cpu, system.peer))]
        lines.append(f"| {system.name} | {_version(peers, system.peer)} | {' | '.join(cells)} |")
    lines += ["", f"*{_run(peers)}*", "", f"CPU of a job: counted {cpu_includes(cpu)}.", "", f"*{_run(cpu)}*"]
    work = _report(results, "work")
    if "ratio_to_celery" in work:
        version = work["celery"]["versions"]["celery"]
        lines += [
            "",
            f"Jobs that do nothing, in worker processes: {work['ratio_to_celery']} times as many as Celery {version} with its"
            " prefork pool.",
            "",
            f"*{_run(work)}*",
        ]
    return "\n".join(lines)


def _report(results: Path, name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
    return report


def _ratios(report: dict[str, Any], peer: str | None) -> list[float | None]:
    if peer is None or peer not in report["rates"]:
        return [None] * 5
    rates = report["rates"][peer]
    return [
        rates.get("1", {}).get("ratio"),
        rates.get("2", {}).get("ratio"),
        report["single_submit_ratio"].get(peer),
        report["concurrent_submit_ratio"].get(peer),
        report["bulk_submit_ratio"].get(peer),
    ]


def _of_cpu(report: dict[str, Any], peer: str | None) -> float | None:
    """Processor time of all processes, servers included, with one process for jobs."""
    used = report["cpu_us_per_job"]["1"]
    if peer is None or not used.get(peer):
        return None
    theirs, ours = (float(sum(used[name].values())) for name in (peer, "jobmaster"))
    return round(theirs / ours, 2)


def _cell(ratio: float | None) -> str:
    if ratio is None:
        return NOT_MEASURED
    return f"{ratio:.0f}" if ratio >= 20 else f"{ratio:.1f}" if ratio >= 2 else f"{ratio:.2f}"


def _version(report: dict[str, Any], peer: str | None) -> str:
    if peer is None or peer not in report["peers"]:
        return NOT_MEASURED
    versions: dict[str, str] = report["peers"][peer]["versions"]
    return next(iter(versions.values()))


def _run(report: dict[str, Any]) -> str:
    """The run that the figures above are from."""
    machine = report["machine"]
    return (
        f"`python -m benchmarks.{command_of(report['benchmark'])}`, commit {report['commit'].partition('+')[0]},"
        f" {report['taken_at'][:10]}, {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB;"
        f" other work kept {report['other_work_cores']:g} cores busy."
    )
