"""What the page about pydantic takes for granted: nothing. Its snippet is a whole program."""

from __future__ import annotations

from typing import Any

from jobmaster import Cluster, Handlers

handlers = Handlers()


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    pass
