"""Taskiq with taskiq-redis, its list broker and results in Redis; workers by its own command."""

from __future__ import annotations

import uvloop
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

from benchmarks.peers import adapter

broker = ListQueueBroker(adapter.REDIS).with_result_backend(RedisAsyncResultBackend(adapter.REDIS))


@broker.task(task_name="job")
async def job(text: str) -> str | None:
    """The job."""
    return await adapter.run_async(text)


async def _enqueue(way: str, jobs: int, callers: int) -> float:
    await broker.startup()
    seconds = await adapter.spread(lambda: job.kiq(adapter.text()), jobs, callers)
    await broker.shutdown()
    return seconds


def _work() -> None:
    options = ["--workers", "1", "--max-async-tasks", "100", "--log-level", "CRITICAL"]
    adapter.become(["-m", "taskiq", "worker", "benchmarks.peers.taskiq:broker", *options])


if __name__ == "__main__":
    adapter.main(lambda way, jobs, callers: uvloop.run(_enqueue(way, jobs, callers)), _work)
