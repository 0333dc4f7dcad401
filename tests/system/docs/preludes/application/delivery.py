"""What `docs/delivery.md` takes for granted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jobmaster import Cluster, Fail, Handlers, JobContext, Snooze, call

handlers = Handlers()
url = "https://example.org/artifact"
builds = reports = SimpleNamespace()
_CONFIRMATION = Path("confirmation.txt")

__all__ = ["Fail", "JobContext", "Snooze", "builds", "handlers", "reports", "url"]


@handlers.job(name="build.wait", confirm="explicit", confirm_within=3600)
async def wait(ctx: JobContext) -> None:
    _CONFIRMATION.write_text(ctx.confirmation)


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    await cluster.submit(call(wait))
    while not (_CONFIRMATION.exists() and _CONFIRMATION.read_text()):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    names["confirmation"] = _CONFIRMATION.read_text()
