"""``python -m benchmarks.calls``: submits of typed calls beside submits of a name and a mapping, at level ``store``.

Runs of the two take turns on the same servers. ``call_over_mapping`` is the median of the ratios of such pairs, by number of
callers; ``call_over_mapping_cpu`` compares jobs a second of the producer's own CPU, which other work on the machine changes
less.
"""

from __future__ import annotations

from typing import Any

import click

from benchmarks import submit
from benchmarks.support.report import output_options, show
from jobmaster.model.job import Durability


def run(jobs: int, runs: int) -> dict[str, Any]:
    """Both ratios by number of callers."""
    found = submit.run(jobs, runs, (Durability.STORE,))
    details = found["details"]["store"]

    def per_cpu_second(way: str) -> float:
        rate: float = details[way]["jobs_per_cpu_second"]["median"]
        return rate

    return {
        "call_over_mapping": found["call_over_single"]["store"],
        "call_over_mapping_cpu": {
            str(count): round(per_cpu_second(f"call_{count}") / per_cpu_second(str(count)), 3)
            for count in submit.CALLERS
        },
        "jobs": jobs,
        "runs": runs,
        "servers": found["servers"],
    }


@click.command()
@click.option("--jobs", default=20_000, show_default=True)
@click.option("--runs", default=9, show_default=True, help="Pairs of runs.")
@output_options
def main(jobs: int, runs: int, as_json: bool, save: bool) -> None:
    """Submits of typed calls beside those of mappings, in pairs of runs."""
    show("calls", run(jobs, runs), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
