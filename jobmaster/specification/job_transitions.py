"""The life of a job's row as one table.

``None`` means that the master has no row yet (a SavePending copy). The statements are in the folders of
``jobmaster/master/sql`` that are named after the parts of the master; the running program does not read this table.
"""

from __future__ import annotations

from enum import StrEnum

from jobmaster.model.job import JobState

S = JobState


class JobEvent(StrEnum):
    """What can happen to a job's row."""

    HOLD = "hold"
    """Producer, flush, spill: first row, not in a bucket."""
    AWAIT_SIGNAL = "await_signal"
    """Producer: first row, waiting for a signal before its first run."""
    SIGNAL = "signal"
    """The signal came, or its time-out is over and the job runs without it."""
    ASSIGN_NEW = "assign_new"
    """Producer at level master, due now: first row, already in a bucket."""
    ONBOARD = "onboard"
    """token + 1."""
    PERSIST = "persist"
    """Claimed longer than persist_within, or a fenced start."""
    SUCCEED = "succeed"
    FAIL = "fail"
    EXPIRE = "expire"
    CANCEL = "cancel"
    RETRY_LATER = "retry_later"
    RETRY_HERE = "retry_here"
    """token + 1, stays in its bucket."""
    RELEASE = "release"
    """Graceful exit, no handler, anti-entropy, refused put."""
    RESCUE = "rescue"
    """token + 1."""
    CHANGE = "change"
    """Another due time, priority or lane, before the job has started."""
    ABANDON = "abandon"
    """Rescue of a job that may be started at most once, and was."""
    AWAIT_CONFIRMATION = "await_confirmation"
    """Its handler has returned; a call from outside must confirm the end."""
    CONFIRM = "confirm"
    UNCONFIRMED = "unconfirmed"
    """No confirmation came in time. token + 1."""
    MOVE = "move"
    """The master of another cluster has the job from now on."""
    REASSIGN = "reassign"
    """It runs longer than its complete_time: another agent gets it. token + 1."""


_OWNED = (None, S.ASSIGNED, S.PROCESSING)

TRANSITIONS: dict[tuple[JobState | None, JobEvent], JobState] = {
    (None, JobEvent.HOLD): S.HELD,
    (None, JobEvent.AWAIT_SIGNAL): S.WAITING,
    (S.WAITING, JobEvent.SIGNAL): S.HELD,
    (None, JobEvent.ASSIGN_NEW): S.ASSIGNED,
    (S.HELD, JobEvent.ONBOARD): S.ASSIGNED,
    (None, JobEvent.CANCEL): S.CANCELLED,
    (S.HELD, JobEvent.CANCEL): S.CANCELLED,
    (S.WAITING, JobEvent.CANCEL): S.CANCELLED,
    (S.HELD, JobEvent.EXPIRE): S.EXPIRED,
    (S.WAITING, JobEvent.EXPIRE): S.EXPIRED,
    **{(state, JobEvent.PERSIST): S.PROCESSING for state in _OWNED},
    **{(state, JobEvent.SUCCEED): S.SUCCEEDED for state in _OWNED},
    **{(state, JobEvent.FAIL): S.FAILED for state in _OWNED},
    **{(state, JobEvent.EXPIRE): S.EXPIRED for state in _OWNED},
    **{(state, JobEvent.RETRY_LATER): S.HELD for state in _OWNED},
    **{(state, JobEvent.RETRY_HERE): S.ASSIGNED for state in _OWNED},
    **{(state, JobEvent.RELEASE): S.HELD for state in _OWNED},
    **{(state, JobEvent.RESCUE): S.HELD for state in _OWNED},
    (S.HELD, JobEvent.CHANGE): S.HELD,
    (S.ASSIGNED, JobEvent.CHANGE): S.HELD,
    (S.PROCESSING, JobEvent.ABANDON): S.FAILED,
    (S.ASSIGNED, JobEvent.AWAIT_CONFIRMATION): S.WAITING,
    (S.PROCESSING, JobEvent.AWAIT_CONFIRMATION): S.WAITING,
    (S.PROCESSING, JobEvent.CONFIRM): S.SUCCEEDED,
    (S.WAITING, JobEvent.CONFIRM): S.SUCCEEDED,
    (S.WAITING, JobEvent.UNCONFIRMED): S.HELD,
    (S.PROCESSING, JobEvent.REASSIGN): S.HELD,
    (S.WAITING, JobEvent.FAIL): S.FAILED,
    (S.HELD, JobEvent.MOVE): S.MOVED,
    (S.WAITING, JobEvent.MOVE): S.MOVED,
    (S.ASSIGNED, JobEvent.CANCEL): S.CANCELLED,
    (S.PROCESSING, JobEvent.CANCEL): S.CANCELLED,
}
"""A cancel of an ASSIGNED or PROCESSING row only sets ``cancel_requested``. The owner makes the transition, or the next
statement that would write HELD or ASSIGNED."""

TOKEN_BUMPS = frozenset(
    {JobEvent.ONBOARD, JobEvent.RETRY_HERE, JobEvent.RESCUE, JobEvent.UNCONFIRMED, JobEvent.REASSIGN}
)
"""Events that need a new token."""
