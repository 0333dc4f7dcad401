"""What the page about FastAPI takes for granted: nothing. Its snippets are whole applications."""

from __future__ import annotations

from typing import Any

from jobmaster import Cluster, Handlers

handlers = Handlers()


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    pass
