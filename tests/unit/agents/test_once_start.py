"""Start-up actions that end in an unusual way: cancelled by themselves, with a blocked loop, while the master is away."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from jobmaster.clock import SystemClock
from jobmaster.handlers import Handlers
from jobmaster.model.errors import Unavailable
from jobmaster.settings.model import AgentSettings
from jobmaster.testing.memory.locks import MemoryLocks
from jobmaster_agents import once_start
from jobmaster_agents.event_log import LOGGER_NAME, EventLog, JsonLines
from jobmaster_agents.probes import AgentLifecycle
from tests.support.waiting import until


class Start:
    """The start of an agent with one action."""

    def __init__(self, action: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
        self.handlers = Handlers()
        self.handlers.once("load", version="1")(action)
        self.locks = MemoryLocks(SystemClock())
        self.lifecycle = AgentLifecycle(SystemClock())
        self._caplog = caplog

    async def run(self) -> bool:
        return await once_start.run_once_actions(self.handlers, AgentSettings(), self.locks, self.lifecycle, EventLog())

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [
            json.loads(JsonLines().format(record)) for record in self._caplog.records if record.name == LOGGER_NAME
        ]
        return [line for line in lines if line.get("event") == name]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(once_start, "AGAIN_SECONDS", 0.01)
    caplog.set_level(logging.INFO, LOGGER_NAME)


async def test_an_action_that_ends_with_a_cancellation_of_its_own_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    async def action() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise asyncio.CancelledError

    start = Start(action, caplog)
    assert await start.run(), "the agent goes on to its lifespans"
    (failed,) = start.events("once_action_failed")
    assert failed["failures"] == 1
    assert "a cancellation that nothing outside requested" in failed["reason"]
    assert calls == 2


async def test_a_signal_cancels_the_action_and_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    begun = asyncio.Event()

    async def action() -> None:
        begun.set()
        await asyncio.Event().wait()

    start = Start(action, caplog)
    running = asyncio.ensure_future(start.run())
    await begun.wait()
    start.lifecycle.leave.set()
    assert not await running
    assert not start.events("once_action_failed")


async def test_an_async_action_that_blocks_its_loop_for_the_ttl_names_the_remedy(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmaster.client.locks.once.ONCE_TTL_SECONDS", 0.1)

    async def action() -> None:
        time.sleep(0.2)

    start = Start(action, caplog)
    running = asyncio.ensure_future(start.run())
    await until(lambda: start.events("once_action_failed"))
    start.lifecycle.leave.set()
    assert not await running
    reason = start.events("once_action_failed")[0]["reason"]
    assert reason.startswith("LockLost: ")
    assert "write such an action as a plain function" in reason


async def test_a_master_that_is_away_is_no_failure_of_the_action(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    start = Start(lambda: None, caplog)
    is_done = start.locks.is_done

    async def away(name: str, version: str) -> bool:
        nonlocal asked
        asked += 1
        if asked <= 3:
            raise Unavailable("away")
        return await is_done(name, version)

    monkeypatch.setattr(start.locks, "is_done", away)
    assert await start.run()
    assert not start.events("once_action_failed")
    (waits,) = start.events("once_action_waits")
    assert waits["reason"] == "Unavailable: away"


async def test_an_action_that_raises_unavailable_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    def action() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Unavailable("the server of the rates")

    start = Start(action, caplog)
    assert await start.run()
    assert len(start.events("once_action_failed")) == 1
    assert not start.events("once_action_waits")
