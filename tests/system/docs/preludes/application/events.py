"""What the page about events takes for granted: a handler, a place to keep cursors, and a cluster for plain code."""

from __future__ import annotations

from typing import Any

import jobmaster
from jobmaster import Cluster, Handlers
from jobmaster.model.event import ClusterEvent
from jobmaster.settings.loader import load_settings

handlers = Handlers()
saved_cursor = "start"
saved: list[str] = []

__all__ = ["finished", "save", "saved_cursor"]


@handlers.job(name="pay")
async def pay(employee: int) -> int:
    return employee


async def save(event: ClusterEvent, cursor: str) -> None:
    saved.append(cursor)


def finished() -> bool:
    return bool(saved)


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    names["plain"] = jobmaster.connect_sync(load_settings().settings, handlers=handlers)


async def after(names: dict[str, Any]) -> None:
    assert saved
