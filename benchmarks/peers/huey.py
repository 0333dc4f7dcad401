"""Huey on Redis; workers by its own command."""

from __future__ import annotations

from typing import Any

from huey import RedisHuey

from benchmarks.peers import adapter

queue = RedisHuey("bench", url=adapter.REDIS, read_timeout=1)


@queue.task(name="job", context=True, retries=(adapter.ATTEMPTS or 1) - 1)
def job(text: str, task: Any = None) -> str | None:
    """The job; ``task`` has the retries that are left."""
    return adapter.run(text, (adapter.ATTEMPTS or 1) - task.retries)


def _work() -> None:
    kind = ["-k", "thread", "-w", "100"] if adapter.KIND == "wait_10ms" else ["-k", "process", "-w", "1"]
    adapter.become(["-m", "huey.bin.huey_consumer", "benchmarks.peers.huey.queue", *kind, "-q"])


if __name__ == "__main__":
    # Tasks bear the name of their module, which must be the same in producers and workers.
    from benchmarks.peers.huey import job

    adapter.main(lambda way, jobs, callers: adapter.spread_threads(lambda: job(adapter.text()), jobs, callers), _work)
