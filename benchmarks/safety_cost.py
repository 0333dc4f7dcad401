"""``python -m benchmarks.safety_cost``: what all the safety costs on the normal path.

``unsafe.patch`` takes out of a scratch copy of this tree what a queue may skip that runs jobs at most once and loses what it
holds when it dies (the patch lists it). Both trees drain the same jobs in turn, each on servers of its own, because the
store's functions differ; the other pair is idle meanwhile. ``cost`` is the share of the rate that is lost; ``cost_in_cpu``
the share of all CPU per job, which means something on a busy machine, too.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from benchmarks import drain
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, measured_cluster
from benchmarks.support.report import REPOSITORY, median, output_options, progress, show, summary

PATCH = Path(__file__).parent / "unsafe.patch"
_TREES = ("jobmaster", "agents", "master_schema", "benchmarks")
_AGENTS = {"agents": {"default": {"buckets": {**MEDIUM_ONLY, "medium": 5}}}}


class PatchDoesNotApply(Exception):
    """The code has moved on; the patch must follow."""


@contextmanager
def unsafe_tree() -> Iterator[Path]:
    """A copy of this tree with the patch applied, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="jobmaster-unsafe-") as name:
        tree = Path(name)
        for room in _TREES:
            shutil.copytree(REPOSITORY / room, tree / room, ignore=shutil.ignore_patterns("__pycache__", "results"))
        apply(tree)
        yield tree


def apply(tree: Path) -> None:
    """Apply the patch to a copy."""
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(PATCH)], cwd=tree, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PatchDoesNotApply(f"benchmarks/unsafe.patch does not apply to this tree: {done.stderr.strip()}")


def run(jobs: int, runs: int) -> dict[str, Any]:
    """Both in turn."""
    found: dict[str, list[dict[str, Any]]] = {"safe": [], "unsafe": []}
    with ExitStack() as stack:
        tree = stack.enter_context(unsafe_tree())
        rigs: dict[str, MeasuredCluster] = {name: stack.enter_context(measured_cluster(_AGENTS)) for name in found}
        rigs["safe"].start_agent()
        rigs["unsafe"].start_agent(python_path=f"{tree}:{tree / 'agents'}")
        servers = asyncio.run(rigs["safe"].described())
        for number in range(runs + 1):
            share = jobs if number else max(jobs // 10, 1000)
            turn = {name: drain.one_drain(measured, share) for name, measured in rigs.items()}
            assert all(one["outcomes_in_master"] == share for one in turn.values()), turn
            progress(", ".join(f"{name} {one['jobs_per_second']:,.0f}/s" for name, one in turn.items()))
            if number:
                for name, one in turn.items():
                    found[name].append(one)
    return compared(found, jobs) | {"servers": servers}


def compared(found: dict[str, list[dict[str, Any]]], jobs: int) -> dict[str, Any]:
    """What the safety costs, from the runs of both trees. A cost in CPU is `None` where a run is shorter than a tick of the
    kernel's CPU clock (10 ms)."""
    rates = {name: [one["jobs_per_second"] for one in all_runs] for name, all_runs in found.items()}
    cpu = {
        name: [sum(one["cpu_seconds"].values()) / jobs * 1e6 for one in all_runs] for name, all_runs in found.items()
    }
    shares = [safe / unsafe for safe, unsafe in zip(rates["safe"], rates["unsafe"], strict=True)]
    return {
        "cost": round(1 - median(shares), 3),
        "cost_in_cpu": round(1 - median(cpu["unsafe"]) / median(cpu["safe"]), 3) if all(cpu["safe"]) else None,
        "jobs_per_second": median(rates["safe"]),
        "unsafe_jobs_per_second": median(rates["unsafe"]),
        "cpu_us_per_job": round(median(cpu["safe"]), 2),
        "unsafe_cpu_us_per_job": round(median(cpu["unsafe"]), 2),
        "jobs": jobs,
        "spread": {name: summary(values) for name, values in rates.items()},
    }


@click.command()
@click.option("--jobs", default=200_000, show_default=True)
@click.option("--runs", default=5, show_default=True)
@output_options
def main(jobs: int, runs: int, as_json: bool, save: bool) -> None:
    """Share of the end-to-end rate that the safety costs."""
    show("safety_cost", run(jobs, runs), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
