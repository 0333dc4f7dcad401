"""Periodic tasks: a tick returns the delay until the next one (as in solid_queue and oban-py).

Only ``run_periodically`` has ``except Exception``: a tick that fails is logged, counted and repeated with a growing, capped
delay. ``CodeError`` (an invariant of our own is broken) passes and ends the process, which the lease makes safe. A task with
an ``asyncio.Event`` called ``kicked`` is woken by it before its delay is over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from jobmaster.model.errors import CodeError, Unavailable
from jobmaster.rules.backoff import backoff_delay, is_logged
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog

BACKOFF_SECONDS = 0.2
BACKOFF_SECONDS_MAX = 15.0
SPREAD = 0.1
"""Share by which a delay is shortened at random, so that agents do not act at the same moment.
Never lengthened: a task relies on its delay as an upper limit."""


class PeriodicTask(Protocol):
    """A background task."""

    @property
    def name(self) -> str:
        """One word, for logs, metrics and task names."""
        ...

    async def tick(self) -> float:
        """Do what is due; seconds until the next tick."""
        ...


class Stop(Protocol):
    """``asyncio.Event`` or ``anyio.Event``: set once, when the task is to end after its present tick."""

    def is_set(self) -> bool: ...

    def wait(self) -> Awaitable[object]: ...


Chance = Callable[[], float]
"""A number in [0, 1)."""


async def run_periodically(
    task: PeriodicTask,
    stop: Stop,
    telemetry: Telemetry,
    jitter: Chance = random.random,
    log: EventLog | None = None,
) -> None:
    """Tick until ``stop`` is set (the present tick is finished) or the task is cancelled.

    Raises:
        CodeError: from a tick, unchanged.
    """
    log = log or EventLog()
    stopped = asyncio.ensure_future(_wait(stop))
    kicked: asyncio.Event | None = getattr(task, "kicked", None)
    failures = 0
    try:
        while not stop.is_set():
            if kicked is not None:
                kicked.clear()  # before the tick: a kick during it asks for another one
            try:
                delay = await task.tick()
            except CodeError:
                raise
            except Exception as error:
                failures += 1
                note_failure(log, telemetry, task.name, error, failures)
                delay = backoff_delay(failures, BACKOFF_SECONDS, BACKOFF_SECONDS_MAX)
            else:
                if failures:
                    log.info(Event.PERIODIC_TASK_RECOVERED, {"task": task.name, "failures": failures})
                failures = 0
            telemetry.periodic_task_ticks[task.name] += 1
            # A kick does not cut a back-off short: kicks come in streams, and the store may just be down.
            await _pause(delay * (1.0 - SPREAD * jitter()), stopped, None if failures else kicked)
    finally:
        stopped.cancel()


async def _wait(stop: Stop) -> None:
    await stop.wait()


async def _pause(seconds: float, stopped: asyncio.Future[None], kicked: asyncio.Event | None) -> None:
    """Wait for the delay, the stop or a kick, whichever is first."""
    if seconds <= 0.0 or stopped.done() or (kicked is not None and kicked.is_set()):
        await asyncio.sleep(0)  # a task that always has work must not starve the loop
        return
    # What asyncio.wait does, without its sets and its checks of each argument: an idle agent does hardly anything else.
    loop = asyncio.get_running_loop()
    kick = loop.create_task(_wait(kicked)) if kicked is not None else None
    over: asyncio.Future[None] = loop.create_future()

    def end(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    timer = loop.call_later(seconds, end)
    stopped.add_done_callback(end)
    if kick is not None:
        kick.add_done_callback(end)
    try:
        await over
    finally:
        timer.cancel()
        stopped.remove_done_callback(end)
        if kick is not None:
            kick.remove_done_callback(end)
            kick.cancel()


def note_failure(log: EventLog, telemetry: Telemetry, name: str, error: Exception, failures: int) -> None:
    """Count and log the failure of a task, or of a part of one that has a name of its own.

    Args:
        failures: in a row; not each of many is logged.
    """
    telemetry.periodic_task_failures[name] += 1
    if not is_logged(failures):
        return
    fields = {"task": name, "failures": failures, "error": type(error).__name__, "reason": str(error)}
    if isinstance(error, Unavailable | TimeoutError):
        log.warning(Event.PERIODIC_TASK_FAILED, fields)
    else:
        log.error(Event.PERIODIC_TASK_FAILED, fields, trace=True)
