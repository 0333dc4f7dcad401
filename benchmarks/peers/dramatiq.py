"""Dramatiq on Redis; workers by its own command."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers import adapter
from benchmarks.peers.job_counter import JobCounter

counter = JobCounter()
dramatiq.set_broker(RedisBroker(url=adapter.REDIS))


@dramatiq.actor
def noop(text: str) -> None:
    """The job."""
    counter.hit()


def _work() -> None:
    options = ["--processes", "1", "--threads", "8", "--skip-logging"]
    adapter.become(["-m", "dramatiq", "benchmarks.peers.dramatiq", *options])


if __name__ == "__main__":
    adapter.main(
        lambda way, jobs, callers: adapter.spread_threads(lambda: noop.send(adapter.TEXT), jobs, callers), _work
    )
