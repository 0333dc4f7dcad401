"""SAQ on Redis."""

from __future__ import annotations

from typing import Any

import uvloop
from saq import Queue, Worker

from benchmarks.peers import adapter
from benchmarks.peers.job_counter import JobCounter

counter = JobCounter()


async def noop(context: Any, *, text: str) -> None:
    """The job."""
    counter.hit()


async def _enqueue(way: str, jobs: int, callers: int) -> float:
    queue = Queue.from_url(adapter.REDIS)
    await queue.connect()
    seconds = await adapter.spread(lambda: queue.enqueue("noop", text=adapter.TEXT), jobs, callers)
    await queue.disconnect()
    return seconds


async def _work() -> None:
    queue = Queue.from_url(adapter.REDIS)
    await queue.connect()
    await Worker(queue, [noop], concurrency=100).start()


if __name__ == "__main__":
    adapter.main(
        lambda way, jobs, callers: uvloop.run(_enqueue(way, jobs, callers)),
        lambda: uvloop.run(_work()),
    )
