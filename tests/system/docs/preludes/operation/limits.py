"""What the page about limits takes for granted: a cluster in which the limit is known."""

from __future__ import annotations

from typing import Any

from jobmaster import Cluster, Handlers

handlers = Handlers()


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    await cluster.limits.set("stripe", 100, force=True)


async def after(names: dict[str, Any]) -> None:
    """Each block did what the page says."""
    declared = {limit.name for handler in names["handlers"] for limit in handler.options.limits}
    assert declared == {"stripe", "tenant", "geocoder", "gpu"}
    assert names["view"].running == 50
    assert await names["cluster"].limits.list() == []
