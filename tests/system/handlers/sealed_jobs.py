"""Handlers of jobs whose payloads are sealed."""

from __future__ import annotations

from jobmaster.handlers import Handlers, JobContext, Limit

handlers = Handlers()


@handlers.job(name="echo", max_attempts=1)
async def echo(text: str) -> dict[str, str]:
    return {"said": text}


@handlers.job(name="echo_threaded")
def echo_threaded(text: str) -> dict[str, str]:
    return {"said": text}


@handlers.job(name="echo_isolated", mode="process")
def echo_isolated(text: str) -> dict[str, str]:
    return {"said": text}


@handlers.job(name="echo_limited", limit=Limit("echo", 10))
async def echo_limited(ctx: JobContext, text: str) -> dict[str, str]:
    return {"said": text}


@handlers.job(name="fail", max_attempts=2, delays=[0.01])
async def fail(text: str) -> None:
    raise ValueError(f"refused {text}")
