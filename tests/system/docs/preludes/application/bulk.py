"""What the page about bulk operations takes for granted: jobs that have failed."""

from __future__ import annotations

from typing import Any

from jobmaster import Cluster, Handlers

handlers = Handlers()

__all__ = ["handlers"]


@handlers.job(name="images.resize", max_attempts=1)
async def resize(path: str) -> int:
    raise OSError("no space left on device")


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    receipts = [await cluster.submit("images.resize", {"path": f"{number}.png"}) for number in range(5)]
    await cluster.wait_all(receipts, timeout=60)


async def after(names: dict[str, Any]) -> None:
    """Each of them ran again."""
    assert names["preview"].eligible == 5
    assert (names["operation"].state, names["operation"].changed) == ("DONE", 5)
