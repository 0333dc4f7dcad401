"""RQ on Redis; a child forked for each job, which is its usual worker, or its worker that runs them in its own process."""

from __future__ import annotations

import asyncio
from typing import Any

from redis import Redis
from rq import Queue, Retry, SimpleWorker, Worker, get_current_job

from benchmarks.peers import adapter

connection = Redis.from_url(adapter.REDIS)
queue = Queue(adapter.QUEUE, connection=connection)
_JOB = "benchmarks.peers.rq.job"
_RETRY: dict[str, Any] = {"retry": Retry(max=1)} if adapter.KIND == "retry_5" else {}
_ATTEMPT = "attempt"


def job(text: str) -> str | None:
    """The job; it asks for its context where the kind of work needs that."""
    return adapter.run(text, _attempt() if adapter.KIND in ("context", "retry_5") else 1)


def _attempt() -> int:
    """From the job's own metadata: RQ counts only the retries that are left."""
    this = get_current_job()
    attempt = int(this.meta.get(_ATTEMPT, 0)) + 1
    if _RETRY:
        this.meta[_ATTEMPT] = attempt
        this.save_meta()
    return attempt


async def _bulk(count: int) -> None:
    queue.enqueue_many([Queue.prepare_data(_JOB, (adapter.text(),), **_RETRY) for _ in range(count)])


def _enqueue(way: str, jobs: int, callers: int) -> float:
    if way == "bulk":
        return asyncio.run(adapter.in_bulk(_bulk, jobs))
    return adapter.spread_threads(lambda: queue.enqueue(_JOB, adapter.text(), **_RETRY), jobs, callers)


def _work() -> None:
    import benchmarks.peers.rq  # noqa: F401 - the child of each job finds it loaded

    kind = SimpleWorker if adapter.POOL == "simple" else Worker
    kind([queue], connection=connection).work(logging_level="CRITICAL")


if __name__ == "__main__":
    adapter.main(_enqueue, _work)
