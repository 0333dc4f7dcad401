"""What the page about circuit breakers takes for granted: a cluster without handlers."""

from __future__ import annotations

from typing import Any

from jobmaster import Cluster, Handlers

handlers = Handlers()


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    """Nothing is prepared."""


async def after(names: dict[str, Any]) -> None:
    """Both handlers have the breaker."""
    assert {handler.options.breaker.rule.name for handler in names["handlers"]} == {"stripe"}
