"""Handlers that only some agents of a test have."""

from __future__ import annotations

from jobmaster.handlers import Handlers

handlers = Handlers()


@handlers.job(name="rare")
async def rare() -> str:
    return "found"
