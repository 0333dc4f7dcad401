"""Start-up actions of the handlers: run once per cluster and version, before the lifespans and before the agent has a lease.

An action that fails is tried again by every agent that has it, and none of them takes jobs until it has been done: the reason
is in the answer of the readiness probe. No job is claimed meanwhile, so no attempt is used up.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from typing import Literal

from jobmaster.client.locks.once import ONCE_TTL_SECONDS, run_once
from jobmaster.clock import SystemClock
from jobmaster.handlers import Handlers
from jobmaster.handlers.once import OnceAction
from jobmaster.model.errors import LockHeld, LockLost, Unavailable
from jobmaster.ports import Locks
from jobmaster.rules.backoff import backoff_delay
from jobmaster.settings.model import AgentSettings
from jobmaster_agents.agent import WORKING_MODES
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.probes import AgentLifecycle

AGAIN_SECONDS = 1.0
AGAIN_SECONDS_MAX = 60.0
"""Pauses after a failed action."""


async def run_once_actions(
    handlers: Handlers, agent: AgentSettings, locks: Locks, lifecycle: AgentLifecycle, log: EventLog
) -> bool:
    """Run each action that has not been done, in the order of their declaration; an agent that runs no jobs runs none. False:
    a signal came before that."""
    actions = handlers.once_actions if agent.mode in WORKING_MODES else []
    leaving = asyncio.ensure_future(lifecycle.leave.wait())
    try:
        for action in actions:
            if not await _until_done(action, locks, lifecycle, log, leaving):
                return False
    finally:
        leaving.cancel()
    return True


async def _until_done(
    action: OnceAction,
    locks: Locks,
    lifecycle: AgentLifecycle,
    log: EventLog,
    leaving: asyncio.Future[Literal[True]],
) -> bool:
    what = f"the start-up action {action.name} {action.version}"
    fields: dict[str, object] = {"action": action.name, "version": action.version}

    started = False

    def note(held: LockHeld | None) -> None:
        nonlocal started
        started = held is None
        lifecycle.waits_for_once = (
            f"it runs {what}" if held is None else f"it waits for {what}, which {held.holder or 'another program'} runs"
        )

    failures = unanswered = 0
    while not leaving.done():
        started = False
        running = asyncio.ensure_future(run_once(locks, SystemClock(), action, on_wait=note))
        try:
            await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait((running,))
        if running.cancelled() and leaving.done():
            return False
        error = _error_of(running)
        if error is None:
            lifecycle.waits_for_once = ""
            if running.result():
                log.info(Event.ONCE_ACTION_DONE, fields)
            return True
        away = isinstance(error, Unavailable) and not started
        failures, unanswered = (failures, unanswered + 1) if away else (failures + 1, 0)
        pause = _pause(unanswered if away else failures)
        why = _why(action, error)
        if away:  # nothing is known of the action
            lifecycle.waits_for_once = f"the master does not answer, so it waits before {what}: {why}"
            if unanswered == 1:
                log.warning(Event.ONCE_ACTION_WAITS, {**fields, "reason": why})
        else:
            lifecycle.waits_for_once = f"{what} failed and is tried again: {why}"
            log.error(Event.ONCE_ACTION_FAILED, {**fields, "failures": failures, "again_seconds": pause, "reason": why})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await asyncio.shield(leaving)
    return False


def _error_of(running: asyncio.Future[bool]) -> BaseException | None:
    if running.cancelled():
        return asyncio.CancelledError("the action ended with a cancellation that nothing outside requested")
    return running.exception()


def _why(action: OnceAction, error: BaseException) -> str:
    why = f"{type(error).__name__}: {error}"
    if isinstance(error, LockLost) and inspect.iscoroutinefunction(action.function):
        why += (
            f"; code that blocks the event loop for {ONCE_TTL_SECONDS:g} s keeps the lock from its renewal: write such an "
            "action as a plain function, which runs in a thread"
        )
    return why


def _pause(failures: int) -> float:
    return backoff_delay(failures, AGAIN_SECONDS, AGAIN_SECONDS_MAX) * (1.0 - 0.2 * random.random())
