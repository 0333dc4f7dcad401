"""The result of an attempt in a worker process, as the worker sends it to its agent."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from jobmaster.model.job import Conclusion, ErrorInfo


class ResultKind(StrEnum):
    """How it ended."""

    OK = "ok"
    ERROR = "error"
    """The handler raised, or its result cannot be sent (reason ``result``), or its arguments do not fit it (reason
    ``arguments``: it never ran)."""
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    """The process ended while the job ran, or the handler tried to end it."""
    RETRY = "retry"
    """The handler asked for another attempt."""
    SNOOZE = "snooze"
    """The handler put its job off."""
    FAIL = "fail"
    """The handler failed its job, or its rules give up on the error."""
    CANCEL = "cancel"
    """The handler cancelled its job."""
    CANCELLED = "cancelled"
    """Stopped by its agent."""
    NOT_STARTED = "not_started"
    """No worker could be started, or it has no such handler: the job did not run and has used up no attempt."""


class AttemptResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the attempt ended, and what to write."""

    kind: ResultKind
    result: bytes | None = None
    """JSON, with OK only."""
    error: ErrorInfo | None = None
    """With every kind but OK."""
    after_seconds: float | None = None
    """With RETRY and SNOOZE: what the handler asked for; with ERROR: what its rules say; ``None`` = the usual back-off."""
    policy_problem: str = ""
    """With ERROR and FAIL: why the answer of the handler's ``retry`` did not count; empty: it did, or there is none."""
    conclusion: Conclusion | None = None
    """How the transaction with its outcome ended; ``None``: it had none."""
    ran_us: int = 0
