"""Celery on Redis, results in Redis; workers by its own command, one child each."""

from __future__ import annotations

import os

from celery import Celery

from benchmarks.peers import adapter
from benchmarks.peers.job_counter import JobCounter

counter = JobCounter()
app = Celery("bench", broker=adapter.REDIS, backend=adapter.REDIS)
app.conf.update(worker_prefetch_multiplier=100, task_ignore_result=False, broker_pool_limit=100)


@app.task(name="noop")
def noop(text: str) -> None:
    """The job."""
    counter.hit()


def _work() -> None:
    options = ["--pool", "prefork", "-c", "1", "-l", "ERROR", "-n", f"{os.getpid()}@bench"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    command = ["-m", "celery", "-A", "benchmarks.peers.celery", "worker", *options, *quiet]
    adapter.become(command)


if __name__ == "__main__":
    adapter.main(
        lambda way, jobs, callers: adapter.spread_threads(lambda: noop.delay(adapter.TEXT), jobs, callers), _work
    )
