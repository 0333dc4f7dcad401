"""What type checkers accept of calls, and what they refuse; read by them and never run.

mypy reads it with the whole tree (``make lint``): a line that it would accept is an unused ``type: ignore`` there, and
an error. pyright is run by ``test_call.py``.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from jobmaster import Call, Cluster, ClusterTransaction, Handlers, JobContext, JobReceipt, SyncCluster, call

handlers = Handlers()


@handlers.job
async def resize(path: str, width: int = 800) -> int:
    return width


@handlers.job(priority="high")
def shrink(ctx: JobContext, path: str) -> str:
    return path


@handlers.job
async def grow(ctx: JobContext[int], path: str, *, times: int) -> float:
    return ctx.attempt / times


class Resources:
    def __init__(self) -> None:
        self.names: list[str] = []


@asynccontextmanager
async def lifespan() -> AsyncIterator[Resources]:
    yield Resources()


living = Handlers(lifespan=lifespan)


@living.around
async def timed(ctx: JobContext, run: Callable[[], Awaitable[object]]) -> object:
    return await run()


@living.job
async def use(ctx: JobContext[Resources]) -> list[str]:
    number: int = ctx.resources.names  # type: ignore[assignment]  # refused
    ctx.resources.missing()  # type: ignore[attr-defined]  # refused
    assert number
    return ctx.resources.names


names: Call[list[str]] = call(use)
Handlers(lifespan=use)  # type: ignore[arg-type]  # refused

accepted: tuple[Call[int], Call[str], Call[float]] = (
    call(resize, "a.png", width=3),
    call(shrink, "a.png"),
    call(grow, "a.png", times=3),
)


async def follow(cluster: Cluster, tx: ClusterTransaction, plain: SyncCluster, paths: Iterable[str]) -> None:
    receipt: JobReceipt[int] = await cluster.submit(call(resize, "a.png"), priority="high")
    width: int = await receipt.result()
    text: str = await receipt.result()  # type: ignore[assignment]  # refused
    again: JobReceipt[str] = await tx.submit(call(shrink, "a.png"))
    factor: float = plain.submit(call(grow, "a.png", times=2)).result()
    await cluster.submit_many(call(resize, path) for path in paths)
    await cluster.submit("images.resize", {"path": "a.png"})
    await cluster.submit(call("images.resize", path="a.png"))
    assert [width, text, again, factor]


call(resize, path=3)  # type: ignore[call-overload]  # refused
call(resize)  # type: ignore[call-overload]  # refused
call(resize, "a.png", 3, 4)  # type: ignore[call-overload]  # refused
call(resize, "a.png", path="b.png")  # type: ignore[call-arg, arg-type]  # refused
call(shrink, "a.png", 3)  # type: ignore[call-overload]  # refused
call(shrink, None, "a.png")  # type: ignore[call-overload]  # refused
call(grow, "a.png", factor=3)  # type: ignore[call-arg]  # refused
call("images.resize", "a.png")  # type: ignore[call-overload]  # refused
