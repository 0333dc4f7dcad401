"""What the page about signals takes for granted: handlers. Its own handler is in no agent, so its job stays where it is."""

from __future__ import annotations

from typing import Any

from jobmaster import Cluster, Handlers

handlers = Handlers()


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    assert await cluster.signals.waiting() == []


async def after(names: dict[str, Any]) -> None:
    """The job has received the payload."""
    assert names["sent"].delivered == 1
    (job,) = await names["cluster"].jobs()
    assert job.headers.received.payload == '{"amount":20}'
