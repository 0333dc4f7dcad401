"""What `docs/uniqueness.md` takes for granted: a handler, and a job of it that waits."""

from __future__ import annotations

from typing import Any

from jobmaster import Cluster, Handlers, SubmitAnswer, Unique

__all__ = ["handlers"]

handlers = Handlers()


@handlers.job(name="documents.index")
async def reindex(document: int) -> None:
    assert document == 7


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    held = await cluster.submit(reindex, {"document": 7}, unique=Unique(key="7", debounce="1m"), after=50)
    names["held"] = held.id


async def after(names: dict[str, Any]) -> None:
    """Each submit did what the page says."""
    assert names["first"].answer is SubmitAnswer.CREATED
    assert names["other"].answer is SubmitAnswer.CREATED
    assert (names["moved"].answer, names["moved"].id) == (SubmitAnswer.DEBOUNCED, names["held"])
