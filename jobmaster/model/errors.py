"""One tree of errors. The class tells callers, operators and servers apart; the hint of an instance is the remedy.

``InputError``: the caller's input is wrong. ``ConfigError``: the configuration is wrong. ``Unavailable``: a server does not
answer. ``Refused``: the cluster works and refuses. ``OutcomeUnknown``: neither success nor failure, send the same id again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from datetime import datetime

    from jobmaster.model.job import ErrorInfo, JobState


class JobMasterError(Exception):
    """Root of the tree.

    Args:
        message: one sentence: the mistake and its place.
        hint: one sentence: the remedy; ``None`` when the message is enough.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InputError(JobMasterError):
    """Input that can never be accepted; nothing was stored."""

    exit_code = 2


class UnknownHandler(InputError):
    """No agent has published, and this process has not declared, a handler of that name."""


class InvalidArguments(InputError):
    """Arguments do not fit the handler's signature, cannot be encoded, or are too large."""


class InvalidDueTime(InputError):
    """A due time that is not a time, or further away than the limit."""


class UnknownLane(InputError):
    """No agent serves the lane."""


class ClockSkew(InputError):
    """The time inside a job's id is more than the limit away from the store's clock."""


class NotFound(JobMasterError):
    """No such job, bucket or agent. ``id_bytes`` are the jobs of a wait that do not exist."""

    exit_code = 3

    def __init__(self, message: str, *, id_bytes: Sequence[bytes] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.id_bytes = tuple(id_bytes)


class Conflict(JobMasterError):
    """The state forbids the action, or the same id or idempotency key exists with another payload."""

    exit_code = 4


class NotUnique(Conflict):
    """Another job holds the unique key. ``holder`` is its id."""

    def __init__(self, message: str, *, holder: UUID, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.holder = holder


class LockHeld(Conflict):
    """Another program holds the lock. ``holder`` names it, ``expires_at`` is the end of the lock unless it is renewed (aware,
    UTC; ``None``: not known)."""

    def __init__(
        self, message: str, *, holder: str = "", expires_at: datetime | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.holder = holder
        self.expires_at = expires_at


class LockLost(JobMasterError):
    """The lock is not held any more, before its holder has given it back: another program may have it."""

    exit_code = 4


class WaitTimeout(JobMasterError):
    """The time-out of ``wait``, ``result`` or ``wait_saved`` is over; the job continues."""

    exit_code = 6


class JobFailed(JobMasterError):
    """``result()`` of a job that ended in another state than SUCCEEDED. ``info`` is the recorded error, if there is one."""

    def __init__(
        self, message: str, *, state: JobState | None = None, info: ErrorInfo | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.state = state
        self.info = info


class Unavailable(JobMasterError):
    """A server cannot be reached or does not answer in time.

    Args:
        timed_out: the server had the call and did not finish it in time. A batch may have been too large: a repetition sends
            less at once.
        blocked: another open transaction holds a lock that the call waited for.
    """

    exit_code = 69

    def __init__(
        self, message: str, *, hint: str | None = None, timed_out: bool = False, blocked: bool = False
    ) -> None:
        super().__init__(message, hint=hint)
        self.timed_out = timed_out
        self.blocked = blocked


class OutcomeUnknown(Unavailable):
    """A write may or may not have happened. ``job_ids`` are the ids to send again; doing so is always safe.

    ``id_bytes`` has the same ids as 16 bytes each.
    """

    def __init__(
        self, message: str, *, id_bytes: Sequence[bytes] = (), hint: str | None = None, timed_out: bool = False
    ) -> None:
        super().__init__(message, hint=hint or "send the same id again: it is stored at most once", timed_out=timed_out)
        self.id_bytes = tuple(id_bytes)

    @property
    def job_ids(self) -> tuple[UUID, ...]:
        """Ids of the jobs that may or may not be stored."""
        return tuple(UUID(bytes=id_) for id_ in self.id_bytes)


class Refused(JobMasterError):
    """The cluster answers and refuses: wrong schema version, eviction policy, durability level not reachable."""

    exit_code = 77


class ValueRefused(Refused):
    """The master can never store a value of this row (text with NUL, a number out of range); other rows are not affected."""


class AccessRefused(Refused):
    """The master or a store denies this user an access, or a proxy does. No job is the cause."""


class SchemaMismatch(Refused):
    """The master's schema is older or newer than this program."""


class StoreRefused(Refused):
    """The agent store's version, settings or contents do not fit this cluster."""


class DurabilityRefused(Refused):
    """The named durability level cannot be reached on this store."""


class Unserved(Refused):
    """No agent has a bucket of the job's lane and priority, and the submit has ``on_unserved="raise"``."""


class BucketsFull(Refused):
    """Every matching bucket is over its high-water mark and the policy is ``raise`` (or ``block`` timed out)."""


class ConfigError(JobMasterError):
    """One or more problems in the configuration; ``problems`` lists every one with its place."""

    exit_code = 78

    def __init__(self, message: str, *, problems: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class CodeError(JobMasterError):
    """An invariant of this program does not hold; please report it. The process stops."""

    exit_code = 70
