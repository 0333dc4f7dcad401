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
from jobmaster_agents.launch.shared_deadline import disarm_kernel_timer
from jobmaster_agents.probes import AgentLifecycle

LEAVE_SECONDS_MIN = 1.0
"""Time to leave the lifespans when the handlers have used up the grace time."""
_BLOCKED_SECONDS = 2.0
"""After the time limit: a lifespan that has not been cancelled by then blocks the event loop."""


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
    lifespans: OpenLifespans, config: ChildConfig, lifecycle: AgentLifecycle, log: EventLog, *, in_order: bool
) -> None:
    """Leave the lifespans after the last handler.

    Args:
        in_order: the agent has given everything back; otherwise they are only cancelled.
    """
    if not lifespans.needed:
        return
    if not in_order:
        lifespans.abandon()
        return
    # The agent has no lease any more that could end.
    disarm_kernel_timer()
    if config.deadline is not None:
        config.deadline.trusted_until = 0.0
    seconds = LEAVE_SECONDS_MIN if lifecycle.hurry.is_set() else max(lifecycle.seconds_left, LEAVE_SECONDS_MIN)
    if (reason := await lifespans.close(seconds)) is not None:
        log.error(Event.LIFESPAN_FAILED, {"step": "end", "reason": reason})


def _end_blocked(lifespans: OpenLifespans, main_thread: int) -> None:
    """In a thread: end the process, because the lifespan blocks the event loop and cannot be cancelled."""
    lifespan = lifespans.entering
    if lifespan is None:
        return
    frames: list[FrameType] = []
    frame = sys._current_frames().get(main_thread)
    while frame is not None:
        frames.insert(0, frame)
        frame = frame.f_back
    error = ConfigError(
        f"lifespan {lifespan.name}: it blocks the event loop", hint=lifespan.line_in(frames) or "at an unknown line"
    )
    sys.stderr.write(f"error: {error}\n")
    sys.stderr.flush()
    os._exit(error.exit_code)
