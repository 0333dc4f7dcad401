"""How an attempt ended that did not run in a slot: in a worker process, or in a task of its own."""

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
    """The process died under the job, or the handler tried to end it."""
    RETRY = "retry"
    """The handler asked for another attempt."""
    CANCEL = "cancel"
    """The handler cancelled its job."""
    CANCELLED = "cancelled"
    """Stopped by its agent."""
    NOT_STARTED = "not_started"
    """No worker could be had, or it has no such handler: the job did not run and has used up no attempt."""


class AttemptResult(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended, with what to record."""

    kind: ResultKind
    result: bytes | None = None
    """JSON, with OK only."""
    error: ErrorInfo | None = None
    """With every kind but OK."""
    retry_after_seconds: float | None = None
    """With RETRY: what the handler asked for; ``None`` = the usual back-off."""
    conclusion: Conclusion | None = None
    """How its transaction ended together with its outcome, when it had one."""
    ran_us: int = 0
