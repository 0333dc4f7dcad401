"""The parts common to all reports: machine, versions, commit; and the files of kept reports."""

from __future__ import annotations

import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import click

REPOSITORY = Path(__file__).parents[2]
RESULTS = Path(__file__).parents[1] / "results"
_PACKAGES = ("asyncpg", "redis", "hiredis", "msgspec", "uvloop", "uuid-utils")
_OURS = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
_F = TypeVar("_F", bound=Callable[..., Any])


def output_options(command: _F) -> _F:
    """``--json`` and ``--save``, the same for every measurement."""
    save = click.option("--save", is_flag=True, help="Keep the report in benchmarks/results.")
    as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line.")
    return as_json(save(command))


def show(name: str, found: dict[str, Any], *, as_json: bool, save: bool, suffix: str = "") -> None:
    """Print a report, and keep it when that is wanted."""
    report = {"benchmark": name, **found, **origin()}
    if save:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{name}{suffix}.json"
        path.write_text(json.dumps(report, indent=1, sort_keys=False) + "\n", encoding="utf-8")
        progress(f"kept in {path.relative_to(REPOSITORY)}")
    if as_json:
        print(json.dumps(report))
        return
    for key, value in report.items():
        print(f"{key:28} {json.dumps(value) if isinstance(value, dict | list) else value}")


def progress(line: str) -> None:
    """Progress, where it does not disturb the report."""
    print(line, file=sys.stderr, flush=True)


def origin() -> dict[str, Any]:
    """Without these a figure means nothing."""
    return {
        "commit": commit(),
        "taken_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "other_work_cores": other_work(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
    }


def commit() -> str:
    """The commit that was measured; ``+changes`` when the tree had others. ``unknown`` outside a repository."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=REPOSITORY, check=True, capture_output=True, text=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "jobmaster", "agents", "master_schema")
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine() -> dict[str, object]:
    """The hardware line."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        memory = int(Path("/proc/meminfo").read_text(encoding="utf-8").split()[1]) // 1_000_000
    except OSError:
        lines, memory = [], 0
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.processor())
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gb": memory,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _busy_seconds() -> float:
    """CPU seconds that all processes of the machine have used since it started."""
    try:
        user, nice, system, _idle, _iowait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


_BEGAN, _BUSY_BEFORE = time.monotonic(), _busy_seconds()


def other_work() -> float:
    """Cores that processes which are not ours kept busy meanwhile: above a tenth, the absolute figures are not worth much.
    Servers and agents count as ours once they have ended."""
    ours = sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime for who in _OURS)
    passed = time.monotonic() - _BEGAN
    return round(max(_busy_seconds() - _BUSY_BEFORE - ours, 0.0) / passed, 2) if passed > 0 else 0.0


def summary(values: Sequence[float], digits: int = 0) -> dict[str, float]:
    """Median and range."""
    rounded = [round(value, digits) if digits else round(value) for value in values]
    return {"median": statistics.median(rounded), "min": min(rounded), "max": max(rounded), "runs": len(values)}


def median(values: Sequence[float]) -> float:
    """Median, without digits that mean nothing."""
    middle = statistics.median(values)
    return round(middle) if middle >= 1000 else float(f"{middle:.4g}")
