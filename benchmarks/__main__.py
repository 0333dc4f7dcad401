"""``python -m benchmarks``: the figures that fit into a few minutes, one after the other. Each has a command of its own
(``python -m benchmarks.drain --help``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import drain, latency, submit
from benchmarks.agent import idle
from benchmarks.support.report import progress, show

QUICK: dict[str, Callable[[], dict[str, Any]]] = {
    "submit": lambda: submit.run(jobs=50_000, runs=3),
    "drain": lambda: drain.case(jobs=100_000, runs=3, processes=1, buckets=5),
    "latency": lambda: latency.run(seconds=5.0, runs=3),
    "idle": lambda: idle.run(seconds=5.0, runs=3, buckets=15),
}


def main() -> None:
    """Measure and show."""
    for name, measure in QUICK.items():
        progress(f"--- {name}")
        show(name, measure(), as_json=False, save=False)


if __name__ == "__main__":
    main()
