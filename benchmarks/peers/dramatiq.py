"""Dramatiq on Redis; workers by its own command."""

from __future__ import annotations

from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers import adapter

dramatiq.set_broker(RedisBroker(url=adapter.REDIS))
_RETRIES: dict[str, Any] = {} if adapter.ATTEMPTS is None else {"max_retries": adapter.ATTEMPTS - 1}


@dramatiq.actor(**_RETRIES)
def job(text: str) -> None:
    """The job; its system keeps no result."""
    adapter.run(text)


def _work() -> None:
    options = ["--processes", "1", "--threads", str(adapter.at_once(8)), "--skip-logging"]
    adapter.become(["-m", "dramatiq", "benchmarks.peers.dramatiq", *options])


if __name__ == "__main__":
    adapter.main(
        lambda way, jobs, callers: adapter.spread_threads(lambda: job.send(adapter.text()), jobs, callers), _work
    )
