"""``python -m benchmarks.payloads``: large arguments and results, to one recorded outcome each, and what they weigh.

One bucket, one agent; PostgreSQL with fsync, and all other settings, the marks of the store too, at their defaults. Jobs are
handed in while the agent runs, because the store takes no more than its high-water mark. The time runs from the first submit
to the last outcome in the master. The memory is the highest resident set of the agent's process, sampled. Arguments are
random, so that nothing compresses them.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.drain import outcomes, wait_drained
from benchmarks.support.handlers import echo, handlers
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, descendants, measured_cluster
from benchmarks.support.report import median, output_options, progress, show, summary
from jobmaster.wiring import open_cluster

_SAMPLE_SECONDS = 0.05
_BAD_EVENTS = ("loop_stalled", "agent_fenced", "call_failed", "job_unwritable", "bucket_lost")


class Peak:
    """The highest resident set of a process while the context lasts, in bytes."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.before = self.bytes = self._resident()

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            self.bytes = max(self.bytes, self._resident())

    def _resident(self) -> int:
        pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def _texts(jobs: int, size: int) -> Iterator[dict[str, str]]:
    """Arguments of so many bytes, with what the name of the argument takes."""
    length = size - len('{"text":""}')
    chance = random.Random(1)
    for _ in range(jobs):
        yield {"text": base64.b64encode(chance.randbytes(length)).decode()[:length]}


async def _submit(measured: MeasuredCluster, jobs: int, size: int) -> None:
    async with await open_cluster(measured.settings, handlers) as cluster:
        done = await cluster.submit_many(_texts(jobs, size), echo)
    assert done.submitted == jobs, done


def one_run(jobs: int, kib: int) -> dict[str, Any]:
    """Fresh servers, one agent, all jobs."""
    with measured_cluster(
        {"agents": {"default": {"buckets": {**MEDIUM_ONLY, "medium": 1}}}}, defaults=True
    ) as measured:
        measured.start_agent()
        child = descendants(measured.agents[0].pid)[1]
        before = measured.cpu_seconds()
        began = time.time()
        with Peak(child) as peak:
            asyncio.run(_submit(measured, jobs, kib * 1024))
            submitted = time.time() - began
            asyncio.run(wait_drained(measured))
        found, seconds = asyncio.run(outcomes(measured, jobs, began))
        after = measured.cpu_seconds()
        assert child in descendants(measured.agents[0].pid), "the agent's process did not live to the end"
        log = (measured.directory / "agent-0.log").read_text()
        return {
            "outcomes_in_master": found,
            "seconds": seconds,
            "submit_seconds": submitted,
            "peak_mb": peak.bytes / 1e6,
            "before_mb": peak.before / 1e6,
            "events": dict(Counter(name for name in _BAD_EVENTS for _ in range(log.count(name)))),
            "cpu_seconds": {name: round(after[name] - before[name], 2) for name in after},
            "servers": asyncio.run(measured.described()),
        }


def run(jobs: int, kib: int, runs: int) -> dict[str, Any]:
    """Runs on fresh servers each."""
    all_runs = []
    for number in range(runs):
        one = one_run(jobs, kib)
        assert one["outcomes_in_master"] == jobs, one
        progress(
            f"run {number + 1}: {one['seconds']:.1f} s, peak {one['peak_mb']:.0f} MB, {one['events'] or 'no bad events'}"
        )
        all_runs.append(one)
    seconds = [one["seconds"] for one in all_runs]
    return {
        "jobs": jobs,
        "argument_kib": kib,
        "result_kib": kib,
        "outcomes_in_master": all_runs[-1]["outcomes_in_master"],
        "seconds": round(median(seconds), 1),
        "megabytes_per_second": round(2 * jobs * kib * 1024 / 1e6 / median(seconds), 1),
        "agent_peak_mb": round(max(one["peak_mb"] for one in all_runs)),
        "agent_before_mb": round(median([one["before_mb"] for one in all_runs])),
        "events": [one["events"] for one in all_runs],
        "spread": {
            "seconds": summary(seconds, digits=1),
            "submit_seconds": summary([one["submit_seconds"] for one in all_runs], digits=1),
            "peak_mb": summary([one["peak_mb"] for one in all_runs]),
        },
        "cpu_seconds": all_runs[-1]["cpu_seconds"],
        "servers": all_runs[-1]["servers"],
    }


@click.command()
@click.option("--jobs", default=5000, show_default=True)
@click.option("--kib", default=64, show_default=True, help="Arguments of each job, and its result.")
@click.option("--runs", default=3, show_default=True)
@output_options
def main(jobs: int, kib: int, runs: int, as_json: bool, save: bool) -> None:
    """Seconds to one recorded outcome of each large job, and the agent's memory."""
    show("payloads", run(jobs, kib, runs), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
