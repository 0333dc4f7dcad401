"""A user's program that type checkers read in their strict modes: they accept it as it is. It is never run."""

from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

import jobmaster
from jobmaster import (
    Call,
    Cluster,
    Handlers,
    JobContext,
    JobReceipt,
    JobState,
    JobView,
    SyncCluster,
    call,
    chain,
    step,
)

handlers = Handlers()


@handlers.job(name="images.resize", priority="high", timeout=30)
async def resize(path: str, width: int = 800) -> int:
    return width


@handlers.every("5m", name="images.sweep")
@handlers.job(name="images.sweep", max_attempts=3)
def sweep(ctx: JobContext) -> str:
    return f"{ctx.job_id} {ctx.attempt}"


async def follow(cluster: Cluster, paths: Iterable[str]) -> list[int]:
    """Submits, waits, lists, changes: each value has its type without a cast."""
    one: JobReceipt[int] = await cluster.submit(call(resize, "a.png", width=3), durability="store_fsync")
    later: JobReceipt[str] = await cluster.submit(call(sweep), after=timedelta(minutes=5), tags=["nightly"])
    ids: Iterable[UUID] = (await cluster.submit_many(call(resize, path) for path in paths)).ids
    states: dict[UUID, JobState] = await cluster.wait_all(ids, timeout=60)
    views: list[JobView] = await cluster.jobs(state="FAILED", since=timedelta(hours=1))
    text: str = await later.result(timeout=30)
    state: JobState = await cluster.cancel(one)
    return [await one.result(), len(states), len(views), len(text), len(state)]


async def flow(cluster: Cluster) -> None:
    """A workflow of two steps."""
    await cluster.workflows.start("images", chain(step(call(resize, "a.png")), call(sweep)))


def plain(cluster: SyncCluster) -> int:
    """The same without asyncio."""
    return cluster.submit(call(resize, "b.png")).result(timeout=30)


async def main() -> None:
    """The whole program."""
    made: Call[int] = call(resize, "a.png")
    async with jobmaster.connect(handlers=handlers) as cluster:
        assert [made, *await follow(cluster, ["a.png"])]
