"""What the page about batches takes for granted: two handlers, and a cluster for plain code."""

from __future__ import annotations

from typing import Any

import jobmaster
from jobmaster import Cluster, Handlers, JobContext, call
from jobmaster.settings.loader import load_settings

handlers = Handlers()
paths = [f"{number}.png" for number in range(50)]

__all__ = ["call", "paths"]


@handlers.job(name="images.resize")
async def resize(path: str) -> int:
    return len(path)


@handlers.job(name="images.report")
async def report(ctx: JobContext) -> str:
    return ctx.metadata["batch"]


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    names["plain"] = jobmaster.connect_sync(load_settings().settings, handlers=handlers)


async def after(names: dict[str, Any]) -> None:
    """All batches have succeeded, so the cancel of the last one changed nothing."""
    found = await names["cluster"].batches.list()
    assert [view.state for view in found] == ["SUCCEEDED"] * 3
    assert [view.size for view in found] == [50, 50, 51]
