"""What `docs/handlers.md` takes for granted: nothing. Its snippets declare handlers."""

from __future__ import annotations

from typing import Any

from jobmaster import Cluster, Handlers

handlers = Handlers()


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    pass
