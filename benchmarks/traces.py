"""``python -m benchmarks.traces``: what traces cost a submit and a run, in CPU, beside the same without.

Three clusters with an agent each take turns on the same machine: without traces, with traces that are not recorded
(``sample`` 0: the context travels, and no span is exported), and with a span for each submit and run, to a collector that
drops them. CPU of the process is compared, because it says something on a busy machine, too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click

from benchmarks import drain
from benchmarks.submit import Rate, bulk, callers, rate
from benchmarks.support.handlers import handlers
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, measured_cluster
from benchmarks.support.report import median, output_options, progress, show
from jobmaster.wiring import open_cluster

CALLERS = 100
_AGENTS = {"default": {"buckets": {**MEDIUM_ONLY, "medium": 5}}}


class _Sink(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nothing."""


@contextmanager
def collector() -> Iterator[str]:
    """URL of a collector that drops everything."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


async def _submits(measured: MeasuredCluster, jobs: int) -> dict[str, Rate]:
    async with await open_cluster(measured.settings, handlers) as cluster:
        await callers(cluster, 1, 1)  # finds the buckets
        singles = await rate(lambda count: callers(cluster, CALLERS, count), jobs)
        many = await rate(lambda count: bulk(cluster, count), jobs)
    return {"submit": singles, "submit_many": many}


def run(jobs: int, runs: int) -> dict[str, Any]:
    """Medians of CPU microseconds a job."""
    with ExitStack() as stack:
        url = stack.enter_context(collector())
        kinds: dict[str, dict[str, Any]] = {
            "off": {},
            "sample 0": {"exporter": "otlp", "endpoint": url, "sample": 0.0},
            "sample 1": {"exporter": "otlp", "endpoint": url, "sample": 1.0},
        }
        rigs = {
            name: stack.enter_context(measured_cluster({"agents": _AGENTS, "observability": {"traces": traces}}))
            for name, traces in kinds.items()
        }
        for measured in rigs.values():
            measured.start_agent()
        found: dict[str, dict[str, list[float]]] = {name: {} for name in rigs}
        for number in range(runs + 1):
            for name, measured in rigs.items():
                one = drain.one_drain(measured, jobs)
                assert one["outcomes_in_master"] == jobs, one
                submits = asyncio.run(_submits(measured, jobs))
                asyncio.run(drain.wait_drained(measured))
                asyncio.run(drain.empty(measured))
                cpu = {
                    "run": one["cpu_seconds"]["agents"] / jobs * 1e6,
                    **{way: 1e6 / each.jobs_per_cpu_second for way, each in submits.items()},
                }
                progress(f"{name}: " + ", ".join(f"{way} {us:.1f} us" for way, us in cpu.items()))
                if number:  # the first is the warm-up
                    for way, us in cpu.items():
                        found[name].setdefault(way, []).append(us)
    medians = {
        name: {way: round(median(all_runs), 1) for way, all_runs in ways.items()} for name, ways in found.items()
    }
    return {"jobs": jobs, "cpu_us_per_job": medians}


@click.command(help=__doc__)
@click.option("--jobs", type=click.IntRange(min=1000), default=20_000, show_default=True)
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True)
@output_options
def main(jobs: int, runs: int, as_json: bool, save: bool) -> None:
    """Measure and show."""
    show("traces", run(jobs, runs), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
