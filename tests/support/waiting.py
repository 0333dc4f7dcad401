"""Waiting for a condition, never for a time: one function for each way of asking.

A limit ends a hang and says nothing about speed (``tests/support/patience.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.patience import PATIENCE_SECONDS, patient

_TURNS = 1000


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Let the loop turn until the condition holds; after many turns with pauses, for what other processes change."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            turns = 0
            while not condition():
                await asyncio.sleep(0 if turns < _TURNS else 0.002)
                turns += 1
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


async def eventually(
    condition: Callable[[], Awaitable[Any]],
    seconds: float = PATIENCE_SECONDS,
    what: str | Callable[[], str] = "the condition",
    *,
    pause: float = 0.02,
) -> Any:
    """The first true answer of a condition that asks a server; fails with ``what`` (asked then) at the limit.

    Args:
        seconds: what it takes at most on an idle machine.
        pause: seconds between two questions at first.
    """
    began, limit = time.monotonic(), patient(seconds)
    asked = began
    while not (answer := await condition()):
        now = time.monotonic()
        if now >= began + limit:
            raise AssertionError(f"waited {limit} s for {what if isinstance(what, str) else what()}")
        await asyncio.sleep(_pause(pause, now - began, now - asked))
        asked = time.monotonic()
    return answer


def _pause(shortest: float, waited: float, took: float) -> float:
    """Seconds to the next question: a twentieth of the wait so far, and never less than the last answer took.

    Tests share the processors with what they wait for.
    """
    return max(shortest, min(waited / 20, 0.2), min(took, 1.0))


def wait_until(condition: Callable[[], Any], seconds: float, what: str | Callable[[], str]) -> Any:
    """The first true answer of a condition, for a test without a loop; otherwise as ``eventually``."""
    began, limit = time.monotonic(), patient(seconds)
    asked = began
    while not (answer := condition()):
        now = time.monotonic()
        if now >= began + limit:
            raise AssertionError(f"waited {limit} s for {what if isinstance(what, str) else what()}")
        time.sleep(_pause(0.01, now - began, now - asked))
        asked = time.monotonic()
    return answer
