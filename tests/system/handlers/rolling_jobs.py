"""Handlers of a program before and after a deploy that gives one of them a limit."""

from __future__ import annotations

from typing import Any

from jobmaster.handlers import Handlers, JobContext, Limit
from tests.system.jobs import witness


async def note(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "ran")


def declared(**options: Any) -> Handlers:
    """The handlers; the options are those of ``rolling.charge``."""
    handlers = Handlers()
    handlers.add(note, name="rolling.note")
    handlers.add(note, name="rolling.charge", **options)
    return handlers


handlers = declared(limit=Limit("rolling", 2))
