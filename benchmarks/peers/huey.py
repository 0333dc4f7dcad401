"""Huey on Redis; workers by its own command."""

from __future__ import annotations

from huey import RedisHuey

from benchmarks.peers import adapter
from benchmarks.peers.job_counter import JobCounter

counter = JobCounter()
queue = RedisHuey("bench", url=adapter.REDIS, read_timeout=1)


@queue.task(name="noop")
def noop(text: str) -> None:
    """The job."""
    counter.hit()


def _work() -> None:
    options = ["-k", "process", "-w", "1", "-q"]
    command = ["-m", "huey.bin.huey_consumer", "benchmarks.peers.huey.queue", *options]
    adapter.become(command)


if __name__ == "__main__":
    # Tasks bear the name of their module, which must be the same in producers and workers.
    from benchmarks.peers.huey import noop

    adapter.main(lambda way, jobs, callers: adapter.spread_threads(lambda: noop(adapter.TEXT), jobs, callers), _work)
