"""Start and end of the handlers' lifespans in an agent process: after the servers are open and before the agent has a lease.

A lifespan that fails or hangs at the start ends the process with the error of a wrong configuration: no bucket was opened, so
no job is claimed and no attempt is used up. After a graceful exit the lifespans are left within the rest of the grace time. A
process that lost its lease, or left buckets behind, does not wait for them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from types import FrameType

from jobmaster.handlers.lifespan import OpenLifespans
from jobmaster.model.errors import ConfigError
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.launch.launch_order import ChildConfig
from jobmaster_agents.launch.shared_deadline import arm_kernel_timer, disarm_kernel_timer
from jobmaster_agents.probes import AgentLifecycle

LEAVE_SECONDS_MIN = 1.0
"""Time to leave the lifespans when the handlers have used up the grace time."""
_BLOCKED_SECONDS = 2.0
"""After the time limit: a lifespan that has not been cancelled by then blocks the event loop."""
_KERNEL_SECONDS = 2.0
"""After that: a lifespan that holds the interpreter lets no thread of ours end the process."""


async def open_lifespans(
    lifespans: OpenLifespans, config: ChildConfig, lifecycle: AgentLifecycle, log: EventLog
) -> bool:
    """Enter the lifespans. False: a signal came before that was complete, and none is open.

    Raises:
        ConfigError: one of them failed, or did not yield in time.
    """
    if not lifespans.needed:
        return True
    lifecycle.lifespans = lifespans
    limit = config.settings.agents[config.agent].lifespan_timeout_seconds
    guard = threading.Timer(limit + _BLOCKED_SECONDS, _end_blocked, (lifespans, threading.get_ident()))
    guard.daemon = True
    if config.deadline is not None:  # it ends the process, which must be ours
        guard.start()
    opening = asyncio.ensure_future(lifespans.open())
    leaving = asyncio.ensure_future(lifecycle.leave.wait())
    try:
        await asyncio.wait((opening, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()
            await asyncio.wait((opening,))
            return False
        opening.result()
        return True
    except ConfigError as error:
        log.error(Event.LIFESPAN_FAILED, {"step": "start", "reason": str(error)}, trace=error.__cause__ is not None)
        raise
    finally:
        guard.cancel()
        leaving.cancel()


async def leave_lifespans(
    lifespans: OpenLifespans, config: ChildConfig, lifecycle: AgentLifecycle, log: EventLog, *, exit_code: int | None
) -> None:
    """Leave the lifespans after the last handler.

    Args:
        exit_code: the process will end with it, and the agent has given everything back; ``None``: it has not, and the
            lifespans are only cancelled. A lifespan that blocks the event loop is ended with the process.
    """
    if not lifespans.needed:
        return
    if exit_code is None:
        lifespans.abandon()
        return
    seconds = LEAVE_SECONDS_MIN if lifecycle.hurry.is_set() else max(lifecycle.seconds_left, LEAVE_SECONDS_MIN)
    limit = seconds + _BLOCKED_SECONDS
    guard = threading.Timer(limit, _leave_blocked, (lifespans, threading.get_ident(), log, exit_code))
    guard.daemon = True
    if config.deadline is None:
        disarm_kernel_timer()
    else:  # the process is ours; the agent has no lease any more that could end, and the timer stands behind the guard
        config.deadline.trusted_until = 0.0
        arm_kernel_timer(limit + _KERNEL_SECONDS)
        guard.start()
    try:
        if (reason := await lifespans.close(seconds)) is not None:
            log.error(Event.LIFESPAN_FAILED, {"step": "end", "reason": reason})
    finally:
        guard.cancel()
        disarm_kernel_timer()


def _end_blocked(lifespans: OpenLifespans, main_thread: int) -> None:
    """In a thread: end the process, because the lifespan blocks the event loop and cannot be cancelled."""
    lifespan = lifespans.entering
    if lifespan is None:
        return
    line = lifespan.line_in(_frames_of(main_thread))
    error = ConfigError(f"lifespan {lifespan.name}: it blocks the event loop", hint=line or "at an unknown line")
    sys.stderr.write(f"error: {error}\n")
    sys.stderr.flush()
    os._exit(error.exit_code)


def _leave_blocked(lifespans: OpenLifespans, main_thread: int, log: EventLog, exit_code: int) -> None:
    """In a thread: end the process. Nothing but the lifespans is left to be ended."""
    where = lifespans.line_in(_frames_of(main_thread))
    log.error(Event.LIFESPAN_FAILED, {"step": "end", "reason": f"it blocks the event loop, at {where}"})
    os._exit(exit_code)


def _frames_of(thread: int) -> list[FrameType]:
    """Frames of a thread, the outermost first."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)
    while frame is not None:
        frames.insert(0, frame)
        frame = frame.f_back
    return frames
