"""Handlers of the tests that run a bucket worker, and a record of what they did."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.handlers import Handlers
from jobmaster.model.job import Entry, Headers

handlers = Handlers()
ran: list[str] = []
go = asyncio.Event()
"""Ends the handlers that wait."""
free_thread = threading.Event()
"""Ends the handler that blocks its thread."""


@handlers.job(name="note")
async def note() -> str:
    ran.append("note")
    return "done"


@handlers.job(name="wait", timeout=1e6)
async def wait() -> str:
    ran.append("wait")
    await go.wait()
    return "done"


@handlers.job(name="fail", backoff=7, backoff_jitter=0.0)
async def fail() -> None:
    raise RuntimeError("on purpose")


@handlers.job(name="fenced", start="fenced", timeout=1e6)
async def fenced() -> None:
    ran.append("fenced")


@handlers.job(name="thread", mode="thread")
def thread() -> None:
    ran.append("thread")


@handlers.job(name="busy-thread", mode="thread")
def busy_thread() -> None:
    ran.append("busy")
    free_thread.wait(10)


@handlers.job(name="fenced-thread", mode="thread", start="fenced")
def fenced_thread() -> None:
    ran.append("fenced-thread")


def reset() -> None:
    """Nothing has run, and what waits goes on waiting."""
    ran.clear()
    go.clear()
    free_thread.clear()


def job(name: str = "note", token: int = 1, *, rescues: int = 0, **headers: Any) -> Entry:
    """A job of one of these handlers."""
    return Entry(new_id(), token, name, b"{}", headers=encode_headers(Headers(**headers)), rescues=rescues)
