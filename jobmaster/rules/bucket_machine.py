"""The life of a bucket as one table; a missing entry is the error.

Two lives: ``ACTIVE -> COMPLETING -> READY_TO_DELETE`` (graceful exit) and ``ACTIVE|COMPLETING|FROZEN -> LOST ->
DRAINING -> READY_TO_DELETE`` (rescue). ``FROZEN`` is the operator's emergency stop. SQL and Lua restate only the guard;
``tests/integration/postgres`` compares the header of every statement with this table.
"""

from __future__ import annotations

from enum import StrEnum

from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import CodeError

S = BucketState


class BucketEvent(StrEnum):
    """What can happen to a bucket."""

    CLOSE_INTAKE = "close_intake"
    """Its owner leaves, or shrinks."""
    RETIRE = "retire"
    """Its owner has emptied it."""
    LOSE = "lose"
    """Death certificate of the owner, or the owner's own declaration."""
    TAKE = "take"
    """A healthy agent takes it to drain it; epoch + 1."""
    DRAINED = "drained"
    """The rescuer has emptied it."""
    ADOPT_REMAINS = "adopt_remains"
    """Keys of a retired bucket were found in a store."""
    FREEZE = "freeze"
    UNFREEZE = "unfreeze"
    """Epoch + 1."""


TRANSITIONS: dict[tuple[BucketState, BucketEvent], BucketState] = {
    (S.ACTIVE, BucketEvent.CLOSE_INTAKE): S.COMPLETING,
    (S.COMPLETING, BucketEvent.RETIRE): S.READY_TO_DELETE,
    (S.ACTIVE, BucketEvent.LOSE): S.LOST,
    (S.COMPLETING, BucketEvent.LOSE): S.LOST,
    (S.FROZEN, BucketEvent.LOSE): S.LOST,
    (S.DRAINING, BucketEvent.LOSE): S.LOST,
    (S.LOST, BucketEvent.TAKE): S.DRAINING,
    (S.DRAINING, BucketEvent.DRAINED): S.READY_TO_DELETE,
    (S.READY_TO_DELETE, BucketEvent.ADOPT_REMAINS): S.LOST,
    (S.ACTIVE, BucketEvent.FREEZE): S.FROZEN,
    (S.FROZEN, BucketEvent.UNFREEZE): S.ACTIVE,
}

EPOCH_BUMPS = frozenset({BucketEvent.TAKE, BucketEvent.UNFREEZE})
"""Events that need a new fencing number."""

WORKING_STATES = frozenset({S.ACTIVE, S.COMPLETING})
"""States in which the owner claims and runs."""

SETTLED_STATES = frozenset({S.READY_TO_DELETE})


def after(state: BucketState, event: BucketEvent) -> BucketState:
    """State after ``event``; ``CodeError`` when the table has no such entry."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise CodeError(f"a bucket that is {state} cannot {event}") from None


def sources(event: BucketEvent) -> frozenset[BucketState]:
    """States from which ``event`` is allowed: what a statement's guard must restate."""
    return frozenset(state for state, what in TRANSITIONS if what is event)
