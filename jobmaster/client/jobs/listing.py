"""Lists of jobs by filter, page by page.

A list reads the primary key from its newest id downwards, in steps. Each step is one short statement that reads a bounded
number of rows, however few of them fit: a rare filter over a long history takes many statements, and none of them takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from jobmaster.client.options import moment_us
from jobmaster.handlers import Handlers, check_lane, check_name
from jobmaster.model.errors import InputError, UnknownHandler
from jobmaster.model.job import MASTER_STATES, JobState, Priority
from jobmaster.model.job_view import JobFilter, JobView
from jobmaster.model.suggestion import did_you_mean
from jobmaster.ports import Queries

LIMIT, LIMIT_MAX = 100, 1000
"""Jobs of one page: the default, and the most."""
READS, READS_MAX, READS_GROWTH = 1000, 64_000, 4
"""Rows that the first step reads, that one step reads at most, and how much more the next one reads."""
_HIGHEST = b"\xff" * 16

State = JobState | Literal["HELD", "ASSIGNED", "PROCESSING", "WAITING", "SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"]
Since = datetime | timedelta | float
"""A time (aware), or how long ago (seconds)."""


class JobFilters(TypedDict, total=False):
    """Which jobs a list shows; what is left out, or ``None``, admits every job."""

    state: State | str | Iterable[State | str] | None
    """One state or several."""
    handler: Callable[..., Any] | str | None
    """The function, or the name."""
    lane: str | None
    priority: Priority | str | int | None
    tag: str | None
    since: Since | None
    """Created at this time (aware) or later; a ``timedelta`` or seconds: so long ago by the master's clock."""
    until: Since | None
    """Created before this time; likewise."""


async def list_jobs(
    queries: Queries,
    handlers: Handlers,
    filters: JobFilters,
    *,
    limit: int,
    after: bytes | None,
    payload: bool,
) -> list[JobView]:
    """One page of jobs with a row in the master; see ``Cluster.jobs``."""
    chosen = _checked(handlers, filters)
    since, until = filters.get("since"), filters.get("until")
    if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
        raise InputError(
            f"'limit' must be a whole number from 1 to {LIMIT_MAX}, not {limit!r}",
            hint="read the next page with after=page[-1]",
        )
    relative = any(isinstance(bound, timedelta | int | float) for bound in (since, until))
    now_us = await queries.now_us() if relative else 0
    lowest = b"\0" * 16 if since is None else _first_id(since, "since", now_us)
    highest = _HIGHEST if until is None else _before(_first_id(until, "until", now_us))
    if after is not None:
        highest = min(highest, _before(after))
    found: list[JobView] = []
    reads = READS
    while lowest <= highest:
        step = await queries.jobs(chosen, lowest, highest, reads=reads, limit=limit - len(found), payload=payload)
        found += step.jobs
        if len(found) == limit:
            break
        highest = _before(step.read_to)
        reads = min(reads * READS_GROWTH, READS_MAX)
    return found


def _checked(handlers: Handlers, filters: JobFilters) -> JobFilter:
    """The filter of a list.

    Raises:
        InputError: a filter that there is not, or a value that no job can have.
    """
    for name in filters:
        if name not in JobFilters.__annotations__:
            known = ", ".join(JobFilters.__annotations__)
            raise InputError(
                f"jobs() has no filter {name!r}",
                hint=did_you_mean(name, JobFilters.__annotations__) or f"there are {known}",
            )
    handler, lane, tag = filters.get("handler"), filters.get("lane"), filters.get("tag")
    priority = filters.get("priority")
    if handler is not None and not isinstance(handler, str):
        declared = handlers.of(handler)
        if declared is None:
            raise UnknownHandler(
                f"{getattr(handler, '__qualname__', handler)!r} is not declared as a handler of this cluster",
                hint="list by the handler's name",
            )
        handler = declared.name
    try:
        level = None if priority is None else Priority.parse(priority)
    except ValueError as error:
        raise InputError(f"'priority': {error}") from None
    return JobFilter(
        states=_states(filters.get("state")),
        handler=None if handler is None else check_name(handler, "'handler'"),
        lane=None if lane is None else check_lane(lane),
        priority=level,
        tag=None if tag is None else check_name(tag, "'tag'"),
    )


def _states(value: object) -> tuple[JobState, ...]:
    if value is None:
        return ()
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
    raise InputError(f"{value!r} is not a state of a job", hint=near or f"valid are {', '.join(valid)}")


def _first_id(bound: Since, name: str, now_us: int) -> bytes:
    """The lowest id of a job that was created at a time or later."""
    if isinstance(bound, datetime):
        us = moment_us(bound, name, InputError)
    else:
        us = now_us - _ago_us(bound, name)
    return (min(max(us // 1000, 0), (1 << 48) - 1)).to_bytes(6, "big") + bytes(10)


def _ago_us(bound: object, name: str) -> int:
    seconds = bound.total_seconds() if isinstance(bound, timedelta) else bound
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e12:
        raise InputError(
            f"{name!r} must be an aware datetime, or a timedelta or seconds of at least 0 for 'so long ago', not {bound!r}"
        )
    return int(seconds * 1_000_000)


def _before(id_: bytes) -> bytes:
    """The next lower id; of the lowest one, one that no range begins with."""
    number = int.from_bytes(id_, "big")
    return (number - 1).to_bytes(16, "big") if number else b""
