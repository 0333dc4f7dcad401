"""``python -m benchmarks.testing``: what one attempt costs in a test, without servers."""

from __future__ import annotations

import time
from typing import Any

import click

from benchmarks.support.handlers import handlers, noop
from benchmarks.support.report import output_options, show, summary
from jobmaster import JobContext, call
from jobmaster.testing import run_handler

_WARM_UP = 20


@handlers.job(name="bench.in_thread")
def in_thread(ctx: JobContext, first: int) -> int:
    """Runs in a thread, and has a context."""
    return first + ctx.attempt


def _milliseconds(what: Any, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        run_handler(what)
    return (time.perf_counter() - began) / count * 1000


def run(count: int, runs: int) -> dict[str, Any]:
    """Milliseconds of one ``run_handler`` for an async handler, and for a plain one in a thread."""
    found: dict[str, Any] = {}
    for name, what in (("async", call(noop)), ("thread", call(in_thread, 1))):
        _milliseconds(what, _WARM_UP)
        found[f"{name}_ms"] = summary([_milliseconds(what, count) for _ in range(runs)], digits=3)
    return {
        "run_handler_ms": found["async_ms"]["median"],
        "run_handler_in_thread_ms": found["thread_ms"]["median"],
        "count": count,
        "spread": found,
    }


@click.command()
@click.option("--count", default=300, show_default=True, help="Attempts of one run.")
@click.option("--runs", default=5, show_default=True)
@output_options
def main(count: int, runs: int, as_json: bool, save: bool) -> None:
    """Milliseconds of one attempt in a test."""
    show("testing", run(count, runs), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
