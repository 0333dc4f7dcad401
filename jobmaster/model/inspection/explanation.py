"""Why a job does not run: as words for people, and as data."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from jobmaster.model.job import JobState


class WaitCause(StrEnum):
    """What a job waits for, or what has become of it. A step of a workflow whose parents have not ended has no job yet, and a
    job never waits for a unique key: it is replaced, or is not submitted."""

    ENDED = "ended"
    RUNNING = "running"
    CANCEL_REQUESTED = "cancel_requested"
    """It ends as cancelled unless it ends otherwise before."""
    CONFIRMATION = "confirmation"
    """Its handler has returned, and nothing has confirmed the run."""
    SIGNAL = "signal"
    DUE_LATER = "due_later"
    """It is held until its due time."""
    RETRY = "retry"
    """An attempt has failed; it is held until the next one."""
    BATCH_CANCELLED = "batch_cancelled"
    PAUSED = "paused"
    BREAKER = "breaker"
    """The circuit breaker of its handler is open or half-open."""
    FROZEN = "frozen"
    """Every bucket that could take it is frozen, or that in which it lies."""
    NO_BUCKET = "no_bucket"
    """No bucket serves its lane and priority."""
    NO_HANDLER = "no_handler"
    """No agent with such a bucket has its handler."""
    CAPABILITY = "capability"
    """The programs of these agents are too old for what its submit asks."""
    ORDERING_KEY = "ordering_key"
    """Another job of its ordering key comes first."""
    LIMIT = "limit"
    """A limit has no permit for it."""
    OWNER_SILENT = "owner_silent"
    """The agent that has its bucket has not renewed its lease."""
    BUCKET_LOST = "bucket_lost"
    """That agent is dead; the bucket waits for its rescue, or is being rescued."""
    STORE_SILENT = "store_silent"
    """The store in which it may lie does not answer this program."""
    QUEUE = "queue"
    """It is due and waits in the master for a place in a bucket."""
    BUCKET = "bucket"
    """It waits in a bucket."""
    SLOT = "slot"
    """An agent has it in memory, and has no free slot for it."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One reason."""

    cause: WaitCause
    text: str
    """A sentence without its full stop."""
    remedy: str | None = None
    """What an operator can do; ``None``: nothing needs to be done."""
    until: datetime | None = None
    """When it ends by itself (aware, UTC), where that is known."""
    by: str | None = None
    """Whom or what it waits for: the operator of a pause, a resource, a limit, a key, another job, an agent."""
    ahead: int | None = None
    """Jobs that come before it, as far as they are known."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job does not run, at one moment."""

    id: UUID
    state: JobState
    causes: tuple[Cause, ...]
    """At least one; the first is what keeps it from running now, the others would do so after it."""

    @property
    def text(self) -> str:
        """All causes, a line each."""
        return "\n".join(cause.text for cause in self.causes)
