"""Which jobs are meant: the filters of lists, counts and bulk operations, and their check.

What a filter costs. ``state`` with the states HELD, ASSIGNED and PROCESSING alone, and ``due_after`` and ``due_before``, have
indexes: the cost is that of the jobs that fit them, however long the history is. ``batch`` and ``workflow`` are ranges of
ids, and so are ``since`` and ``until``. All others are compared row by row, from the newest job of that range backwards.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict
from uuid import UUID

from jobmaster.client.options import moment_us
from jobmaster.handlers import Handlers, check_lane, check_name
from jobmaster.model.errors import InputError, UnknownHandler
from jobmaster.model.flow.tenant import checked_tenant
from jobmaster.model.ids import parse
from jobmaster.model.job import MASTER_STATES, JobState, Priority
from jobmaster.model.job_view import JobFilter
from jobmaster.model.suggestion import did_you_mean
from jobmaster.ports import Queries

METADATA_MAX = 20
"""Names of metadata in one filter."""
METADATA_CHARS_MAX = 4000
_FINGERPRINT = re.compile(r"[0-9a-f]{12}")
_SECONDS_MAX = 1e12

State = (
    JobState
    | Literal["HELD", "ASSIGNED", "PROCESSING", "WAITING", "SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "MOVED"]
)
Since = datetime | timedelta | float
"""A time (aware), or how long ago (seconds)."""
Due = datetime | timedelta | float
"""A time (aware), or how long from now (seconds); a negative one: how long ago."""


class JobFilters(TypedDict, total=False):
    """Which jobs are meant; what is left out, or ``None``, admits every job."""

    state: State | str | Iterable[State | str] | None
    """One state or several."""
    handler: Callable[..., Any] | str | None
    """The function, or the name."""
    lane: str | None
    priority: Priority | str | int | None
    tag: str | None
    metadata: Mapping[str, str] | None
    """Names and texts; a job has all of them."""
    batch: UUID | str | None
    """Jobs of this batch (an id of a batch, or ``ctx.batch``)."""
    workflow: UUID | str | None
    """Jobs of the steps of this workflow."""
    schedule: str | None
    """Fires of this schedule."""
    tenant: str | None
    error: str | None
    """The type of the recorded error (``ValueError``, with or without its module), or the fingerprint of a group of
    failures."""
    due_after: Due | None
    """HELD, and due at this time (aware) or later; a ``timedelta`` or seconds: so far from now by the master's clock."""
    due_before: Due | None
    """HELD, and due before this time; likewise."""
    since: Since | None
    """Created at this time (aware) or later; a ``timedelta`` or seconds: so long ago by the master's clock."""
    until: Since | None
    """Created before this time; likewise."""


async def checked_filter(queries: Queries, handlers: Handlers, filters: JobFilters, caller: str) -> JobFilter:
    """The filter of a list, a count or a bulk operation. Times that are relative are counted from now.

    Args:
        caller: name of the called method, for messages.

    Raises:
        InputError: a filter that there is not, or a value that no job can have.
        Unavailable: the master, whose clock is needed, does not answer.
    """
    for name in filters:
        if name not in JobFilters.__annotations__:
            known = ", ".join(JobFilters.__annotations__)
            raise InputError(
                f"{caller} has no filter {name!r}",
                hint=did_you_mean(name, JobFilters.__annotations__) or f"there are {known}",
            )
    given = {name: value for name, value in filters.items() if value is not None}
    chosen: dict[str, Any] = {name: _CHECKS[name](value) for name, value in given.items() if name in _CHECKS}
    if "state" in given:
        chosen["states"] = _states(given["state"])
    if "handler" in given:
        chosen["handler"] = _handler(given["handler"], handlers)
    if "error" in given:
        error = check_name(given["error"], "'error'")
        chosen["error_group" if _FINGERPRINT.fullmatch(error) else "error_type"] = error
    chosen |= await _times(queries, given)
    return JobFilter(**chosen)


async def _times(queries: Queries, given: Mapping[str, Any]) -> dict[str, int]:
    bounds = {name: given[name] for name in ("since", "until", "due_after", "due_before") if name in given}
    relative = any(isinstance(bound, timedelta | int | float) for bound in bounds.values())
    now_us = await queries.now_us() if relative else 0
    times = {}
    for name, bound in bounds.items():
        if isinstance(bound, datetime):
            times[f"{name}_us"] = moment_us(bound, name, InputError)
        elif name in ("since", "until"):
            times[f"{name}_us"] = now_us - _seconds_us(bound, name, 0, "at least 0 for 'so long ago'")
        else:
            times[f"{name}_us"] = now_us + _seconds_us(bound, name, -_SECONDS_MAX, "for 'so far from now'")
    return times


def _seconds_us(bound: object, name: str, least: float, meaning: str) -> int:
    seconds = bound.total_seconds() if isinstance(bound, timedelta) else bound
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not least <= seconds < _SECONDS_MAX:
        raise InputError(
            f"{name!r} must be an aware datetime, or a timedelta or seconds of {meaning}, not {bound!r:.200}"
        )
    return int(seconds * 1_000_000)


def _handler(handler: object, handlers: Handlers) -> str:
    if isinstance(handler, str):
        return check_name(handler, "'handler'")
    declared = handlers.of(handler) if callable(handler) else None
    if declared is None:
        raise UnknownHandler(
            f"{getattr(handler, '__qualname__', handler)!r:.200} is not declared as a handler of this cluster",
            hint="give the handler's name",
        )
    return declared.name


def _states(value: object) -> tuple[JobState, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return (_state(value),)
    return tuple(_state(one) for one in value)


def _state(value: object) -> JobState:
    name = value.upper() if isinstance(value, str) else value
    if name in MASTER_STATES:
        return JobState(str(name))
    valid = sorted(state.value for state in MASTER_STATES)
    if name in (JobState.SAVE_PENDING, JobState.QUEUED):
        raise InputError(
            f"jobs that are {name} have no row in the master, so no list shows them",
            hint="cluster.get(job) finds one by its id",
        )
    near = did_you_mean(str(name), valid)
    raise InputError(f"{value!r:.200} is not a state of a job", hint=near or f"valid are {', '.join(valid)}")


def _priority(value: Any) -> Priority:
    try:
        return Priority.parse(value)
    except ValueError as error:
        raise InputError(f"'priority': {error}") from None


def _metadata(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or not value or len(value) > METADATA_MAX:
        raise InputError(
            f"'metadata' must be a mapping of 1 to {METADATA_MAX} names to texts, not {value!r:.200}",
            hint="such as metadata={'invoice': '17'}",
        )
    for name, text in value.items():
        check_name(name, f"metadata name {name!r:.200}")
        if not isinstance(text, str) or len(text) > METADATA_CHARS_MAX or not _storable(text):
            raise InputError(
                f"metadata {name!r} must be a text of at most {METADATA_CHARS_MAX} characters without U+0000, "
                f"not {text!r:.200}",
                hint="metadata of jobs is text: str() it",
            )
    return dict(value)


def _storable(text: str) -> bool:
    """Whether the database can compare with it: no NUL, and no half of a character."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _id(name: str) -> Callable[[object], UUID]:
    def checked(value: object) -> UUID:
        if isinstance(value, UUID | str | bytes):
            with contextlib.suppress(ValueError):
                return UUID(bytes=parse(value))
        raise InputError(f"'{name}' must be an id, not {value!r:.200}")

    return checked


_CHECKS: dict[str, Callable[[Any], object]] = {
    "lane": check_lane,
    "priority": _priority,
    "tag": lambda value: check_name(value, "'tag'"),
    "metadata": _metadata,
    "batch": _id("batch"),
    "workflow": _id("workflow"),
    "schedule": lambda value: check_name(value, "'schedule'"),
    "tenant": checked_tenant,
}
