"""One tree of errors; each class says whose fault it is and each instance how to mend it.

``InputError`` is the caller's, ``ConfigError`` the operator's, ``Unavailable`` a server's, ``Refused`` the cluster's own
considered "no". ``OutcomeUnknown`` is neither success nor failure: send the same id again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobmaster.model.job import ErrorInfo, JobState


class JobMasterError(Exception):
    """Root of the tree.

    Args:
        message: one sentence, what is wrong and where.
        hint: one sentence, how to mend it; ``None`` when the message says it all.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InputError(JobMasterError):
    """The caller sent something that can never work; nothing was stored."""

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
    """No such job, bucket or agent."""

    exit_code = 3


class Conflict(JobMasterError):
    """The thing has moved on: same id or idempotency key with another payload, or a state that forbids the action."""

    exit_code = 4


class WaitTimeout(JobMasterError):
    """The time given to ``wait``, ``result`` or ``wait_saved`` is over; the job goes on."""

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
        timed_out: it had the call and did not finish it in its time. A batch may have been too large for it: who sends it
            again sends less at once.
    """

    exit_code = 69

    def __init__(self, message: str, *, hint: str | None = None, timed_out: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.timed_out = timed_out


class OutcomeUnknown(Unavailable):
    """A write may or may not have happened. ``job_ids`` are the ids to send again; doing so is always safe."""

    def __init__(
        self, message: str, *, job_ids: Sequence[bytes] = (), hint: str | None = None, timed_out: bool = False
    ) -> None:
        super().__init__(message, hint=hint or "send the same id again: it is stored at most once", timed_out=timed_out)
        self.job_ids = tuple(job_ids)


class Refused(JobMasterError):
    """The cluster is able but not willing: wrong schema version, eviction policy, durability level not reachable."""

    exit_code = 77


class ValueRefused(Refused):
    """The master cannot store a value of a row (text with NUL, a number out of its range), now or ever; other rows it may."""


class AccessRefused(Refused):
    """The master or a store does not allow this user something, or something stands between. No job is to blame for it."""


class SchemaMismatch(Refused):
    """The master's schema is older or newer than this program."""


class StoreRefused(Refused):
    """The agent store's version, settings or contents do not fit this cluster."""


class DurabilityRefused(Refused):
    """The named durability level cannot be reached on this store."""


class Unserved(Refused):
    """No agent has a bucket of the job's lane and priority, and the submit said ``on_unserved="raise"``."""


class BucketsFull(Refused):
    """Every matching bucket is over its high-water mark and the policy is ``raise`` (or ``block`` timed out)."""


class ConfigError(JobMasterError):
    """One or more problems in the configuration; ``problems`` lists every one with its place."""

    exit_code = 78

    def __init__(self, message: str, *, problems: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class CodeError(JobMasterError):
    """An invariant of our own does not hold; please report it. The process that meets it stops."""

    exit_code = 70
