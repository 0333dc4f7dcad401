"""SAQ on Redis."""

from __future__ import annotations

from typing import Any

import uvloop
from saq import Queue, Worker

from benchmarks.peers import adapter

_RETRIES: dict[str, Any] = {} if adapter.ATTEMPTS is None else {"retries": adapter.ATTEMPTS}


async def job(context: Any, *, text: str) -> str | None:
    """The job."""
    return await adapter.run_async(text, context["job"].attempts)


async def _enqueue(way: str, jobs: int, callers: int) -> float:
    queue = Queue.from_url(adapter.REDIS)
    await queue.connect()
    seconds = await adapter.spread(lambda: queue.enqueue("job", text=adapter.text(), **_RETRIES), jobs, callers)
    await queue.disconnect()
    return seconds


async def _work() -> None:
    queue = Queue.from_url(adapter.REDIS)
    await queue.connect()
    await Worker(queue, [job], concurrency=100).start()


if __name__ == "__main__":
    adapter.main(
        lambda way, jobs, callers: uvloop.run(_enqueue(way, jobs, callers)),
        lambda: uvloop.run(_work()),
    )
