"""What `docs/schedules.md` takes for granted: the handlers on the agents, and the names of the standard library."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from jobmaster import Cluster, Handlers, NewSchedule, call
from jobmaster.settings.model import ClusterSettings
from jobmaster.testing import Jobs

handlers = Handlers()

__all__ = ["NewSchedule", "ZoneInfo", "call", "datetime", "timedelta"]


@handlers.job(name="reports.refresh")
async def refresh(region: str) -> None: ...


async def before(cluster: Cluster, names: dict[str, Any]) -> None: ...


async def after(names: dict[str, Any]) -> None:
    """Run the test that the page shows."""
    await names["test_nightly"](Jobs(ClusterSettings(), names["handlers"]))
