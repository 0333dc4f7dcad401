"""Real handlers for real processes. What they did is written to files, independent of both stores."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from jobmaster.handlers import Handlers, JobContext, Retry

handlers = Handlers()


def witness(ctx: JobContext, path: str, word: str) -> None:
    """One line, appended atomically: id, token, attempt, pid, word."""
    line = f"{ctx.job_id.hex} {ctx.token} {ctx.attempt} {os.getpid()} {word}\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)


@handlers.job(name="noop")
async def noop() -> None:
    return None


@handlers.job(name="add")
async def add(one: int, other: int) -> int:
    return one + other


@handlers.job(name="note")
async def note(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "ran")


@handlers.job(name="stamped")
async def stamped(ctx: JobContext, path: str) -> None:
    witness(ctx, path, f"{time.time():.3f}")


@handlers.job(name="fenced_stamped", start="fenced")
async def fenced_stamped(ctx: JobContext, path: str) -> None:
    witness(ctx, path, f"{time.time():.3f}")


@handlers.job(name="started_at")
async def started_at(ctx: JobContext) -> int:
    return time.time_ns() // 1000


@handlers.job(name="until_file", timeout=600)
async def until_file(ctx: JobContext, path: str, gate: str) -> str:
    """Runs until the gate file exists."""
    witness(ctx, path, "began")
    while not Path(gate).exists():  # noqa: ASYNC110 - the gate is a file, so that other processes can open it
        await asyncio.sleep(0.02)
    witness(ctx, path, "ended")
    ctx.log("ended")
    ctx.progress(1, 1)
    return "through"


@handlers.job(name="fails", max_attempts=2, backoff=0.01)
async def fails(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "tried")
    ctx.log(f"attempt {ctx.attempt}", "warning")
    raise RuntimeError("as asked")


@handlers.job(name="fails_for_now", max_attempts=5)
async def fails_for_now(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "tried")
    raise Retry(after=200.0)


@handlers.job(name="third_time", max_attempts=5, backoff=0.01)
async def third_time(ctx: JobContext) -> int:
    if ctx.attempt < 3:
        raise Retry(after=0.01)
    return ctx.attempt


@handlers.job(name="blocks_loop", max_attempts=2)
async def blocks_loop(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "blocking")
    if ctx.rescues == 0:
        time.sleep(3600)
    witness(ctx, path, "through")


@handlers.job(name="threaded", mode="thread")
def threaded(one: int) -> int:
    return one + 1


@handlers.job(name="stuck", mode="thread", timeout=0.3, max_attempts=1)
def stuck() -> None:
    time.sleep(3600)


@handlers.job(name="isolated", mode="process")
def isolated() -> int:
    return os.getpid()


@handlers.job(name="dies", mode="process", max_attempts=1)
def dies() -> None:
    os._exit(7)


@handlers.job(name="kills_process", max_attempts=1)
async def kills_process(ctx: JobContext, path: str) -> None:
    witness(ctx, path, f"kills {ctx.rescues}")
    os.kill(os.getpid(), signal.SIGKILL)


@handlers.job(name="kills_agent", max_attempts=10)
async def kills_agent(ctx: JobContext, path: str) -> None:
    """Takes the whole agent with it, also from a worker process of its own."""
    witness(ctx, path, "killing")
    os.kill(os.getpid() if ctx.rescues < 2 else os.getppid(), signal.SIGKILL)
    await asyncio.sleep(60)


@handlers.job(name="fenced", start="fenced")
async def fenced(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "ran")


@handlers.job(name="noted_in_process", mode="process", max_attempts=3, backoff=0.01)
def noted_in_process(ctx: JobContext, path: str, dies: bool = False) -> None:
    """Short; ends its worker process at its first attempt if it is asked to."""
    witness(ctx, path, "ran")
    if dies and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
