"""When the cancellation of a handler on the loop is repeated, and when the handler is given up."""

from __future__ import annotations

from jobmaster_agents.outcomes.outcome_builder import StopCause

CANCEL_AGAIN_SECONDS = 2.0
"""A coroutine that has caught its cancellation can only be cancelled again."""
_GIVE_UP_SECONDS = 10.0
_GIVE_UP_RELEASED_SECONDS = 4.0
"""Less than the time that a leaving agent waits for handlers to stop."""


def should_detach(cause: StopCause, asked_seconds: float) -> bool:
    """True when a handler on the loop has ignored its cancellation for too long.

    Args:
        asked_seconds: time since the first cancellation.
    """
    return asked_seconds >= (_GIVE_UP_RELEASED_SECONDS if cause is StopCause.RELEASE else _GIVE_UP_SECONDS)
