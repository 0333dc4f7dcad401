"""What `docs/jobs.md` takes for granted: a handler that fails for one path, and two jobs that have failed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from jobmaster import Cluster, Fail, Handlers, call

handlers = Handlers()
paths = ["a.png", "b.png"]

__all__ = ["call", "paths", "timedelta"]


@handlers.job(name="images.resize")
async def resize(path: str) -> int:
    if path == "broken.png":
        raise Fail("no image")
    return len(path)


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    for name in ("job", "other_job"):
        names[name] = await cluster.submit(call(resize, "broken.png"))
        await names[name].wait(timeout=60)
