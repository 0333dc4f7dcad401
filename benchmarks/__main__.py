"""``python -m benchmarks drain|latency|submit [--json]``: medians over runs, with the machine they were taken on."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from benchmarks import drain, latency, submit
from benchmarks.rig import machine


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure this machine."""


def show(name: str, found: dict[str, Any], as_json: bool) -> None:
    """One JSON object, or lines for people."""
    report = {"benchmark": name, **found, "machine": machine()}
    if as_json:
        print(json.dumps(report))
        return
    for key, value in report.items():
        print(f"{key:32} {json.dumps(value) if isinstance(value, dict) else value}")


@main.command("drain")
@click.option("--jobs", default=100_000, show_default=True)
@click.option("--runs", default=5, show_default=True)
@click.option("--processes", default=1, show_default=True)
@click.option("--buckets", default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def drain_command(jobs: int, runs: int, processes: int, buckets: int, as_json: bool) -> None:
    """Jobs a second from the store to one recorded outcome each."""
    show("drain", drain.run(jobs=jobs, runs=runs, processes=processes, buckets=buckets), as_json)


@main.command("latency")
@click.option("--seconds", default=20.0, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def latency_command(seconds: float, as_json: bool) -> None:
    """Submit, due time or commit to the first line of the handler."""
    show("latency", latency.run(seconds=seconds), as_json)


@main.command("submit")
@click.option("--jobs", default=200_000, show_default=True)
@click.option("--runs", default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def submit_command(jobs: int, runs: int, as_json: bool) -> None:
    """Jobs a second that one producer hands in, beside the same messages through the bare driver."""
    show("submit", submit.run(jobs=jobs, runs=runs), as_json)


if __name__ == "__main__":
    sys.exit(main())
