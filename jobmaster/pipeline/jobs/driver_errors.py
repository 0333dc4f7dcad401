"""Errors that pass from a driver to the handler that waits for it."""

from __future__ import annotations

import msgspec

from jobmaster.handlers import Cancel, Decision, Fail, Retry, Snooze
from jobmaster.handlers.decisions import asked_seconds, decision_in
from jobmaster.model import errors
from jobmaster.model.errors import JobMasterError

_TRIED_AGAIN = (errors.Unavailable, errors.OutcomeUnknown, errors.Conflict)
"""Errors that another attempt may not meet."""


class DriverError(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error in the driver."""

    kind: str
    """Name of the class."""
    message: str
    hint: str | None = None
    after: float | None = None
    """Of a ``Retry`` or ``Snooze``: seconds."""
    ours: bool = False
    """The class is one of JobMaster. A class of foreign code may have the same name, and means nothing else by it."""


class ViolationsFound(Exception):
    """A check found violations; the text is its summary as JSON."""


def described(error: Exception) -> DriverError:
    """An exception for the handler."""
    decision = decision_in(error)
    if decision is not None:
        kind = next(each.__name__ for each in type(decision).__mro__ if each.__bases__ == (Decision,))
        return DriverError(kind, decision.reason, after=asked_seconds(decision), ours=True)
    if isinstance(error, JobMasterError):
        return DriverError(type(error).__name__, error.message, error.hint, ours=True)
    text = (str(error).strip().splitlines() or [""])[0].encode(errors="replace").decode()  # half a surrogate is no JSON
    return DriverError(type(error).__name__, text, ours=isinstance(error, ViolationsFound))


def known_error(name: str, error: DriverError) -> Exception | None:
    """The exception for the handler; ``None``: it is one of foreign code.

    Args:
        name: of the application, for the text.
    """
    if not error.ours:
        return None
    match error.kind:
        case "Fail":
            return Fail(error.message)
        case "Cancel":
            return Cancel(error.message)
        case "Retry":
            return Retry(error.after, error.message)
        case "Snooze":
            return Snooze(error.after or 0.0, error.message)
        case "ViolationsFound":
            return Fail(f"{name} found violations: {error.message}")
    kind = getattr(errors, error.kind, None)
    if not isinstance(kind, type) or not issubclass(kind, JobMasterError):
        return None
    if issubclass(kind, _TRIED_AGAIN):
        return errors.Unavailable(f"{name}: {error.message}", hint=error.hint)
    return Fail(f"{name}: {error.message}" + (f" ({error.hint})" if error.hint else ""))
