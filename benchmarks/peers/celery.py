"""Celery on Redis, results in Redis; workers by its own command: one prefork child each, or a pool of threads."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from benchmarks.peers import adapter

app = Celery("bench", broker=adapter.REDIS, backend=adapter.REDIS)
app.conf.update(
    worker_prefetch_multiplier=100, task_ignore_result=False, broker_pool_limit=100, task_default_queue=adapter.QUEUE
)


@app.task(name="job", bind=True, max_retries=1)
def job(self: Any, text: str) -> str | None:
    """The job."""
    try:
        return adapter.run(text, self.request.retries + 1)
    except adapter.Again as again:
        raise self.retry(exc=again, countdown=0) from again


def _work() -> None:
    threads = adapter.POOL == "threads"
    pool = ["--pool", "threads", "-c", str(adapter.at_once(8))] if threads else ["--pool", "prefork", "-c", "1"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "CRITICAL"]
    become = ["-m", "celery", "-A", "benchmarks.peers.celery", "worker", *pool, "-n", f"{os.getpid()}@bench", *quiet]
    adapter.become(become)


if __name__ == "__main__":
    adapter.main(
        lambda way, jobs, callers: adapter.spread_threads(lambda: job.delay(adapter.text()), jobs, callers), _work
    )
