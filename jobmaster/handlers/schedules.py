"""The declaration of a schedule: options of ``@handlers.every`` and ``cluster.schedules.put``, checked and resolved.

A declaration is checked where it is written. What it leaves open (zone, lane, priority) comes from its handler, then from the
cluster's configuration, so the definition that is stored is made by ``DeclaredSchedule.resolve``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypedDict

from jobmaster.codec import encode_args, encode_headers
from jobmaster.handlers.handler import Handler
from jobmaster.handlers.names import check_lane, check_name, check_tags
from jobmaster.model.errors import InputError
from jobmaster.model.flow.tenant import checked_tenant
from jobmaster.model.job import Headers, Priority
from jobmaster.model.schedule import MISFIRE_MAX_LIMIT, Misfire, Overlap, Schedule, ScheduleSource
from jobmaster.rules.capabilities import Capability
from jobmaster.rules.recurrence import (
    INTERVAL_SECONDS_MAX,
    JITTER_SECONDS_MAX,
    ZONE_DEFAULT,
    Recurrence,
    checked_cron,
    interval_text,
    interval_us,
)
from jobmaster.units import UnitError, parse_duration

NAME_CHARS_MAX = 200
SECONDS_MAX = INTERVAL_SECONDS_MAX
"""Longest ``timeout`` and ``expires``."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

When = str | float | timedelta
"""A cron expression (``"0 3 * * *"``, ``"@daily"``), or an interval (``"5m"``, a timedelta, or seconds)."""


class ScheduleOptions(TypedDict, total=False):
    """Options of a schedule. What is left out comes from the handler, then from the cluster's configuration."""

    zone: str
    """IANA time zone of a cron expression, such as ``Europe/Berlin``. Default: the setting ``zone``."""
    start: datetime
    """No fire before this time (aware). It is the first fire of an interval."""
    end: datetime
    """No fire after this time (aware)."""
    jitter: float | timedelta | str
    """Each job is due up to this much after its nominal time; the same fire has the same delay in every process."""
    misfire: Misfire | Literal["skip", "last", "all"]
    """What becomes of fires that nothing could decide in time: none, the newest (default), or the newest ``misfire_max``."""
    misfire_max: int
    """Most fires that ``misfire="all"`` makes up for, or that wait with ``overlap="queue"``. Default: 10."""
    overlap: Overlap | Literal["skip", "queue", "parallel", "cancel_previous"]
    """What becomes of a fire while a job of an earlier fire has not ended. Default: ``skip``."""
    tags: Sequence[str]
    """Of the schedule and of each of its jobs."""
    priority: Priority | int | Literal["very_low", "low", "medium", "high", "critical"]
    lane: str
    timeout: float | timedelta | str
    """Seconds that one attempt may run."""
    max_attempts: int
    expires: float | timedelta | str
    """A job that has not started this long after its due time ends as EXPIRED."""
    tenant: str
    """For whom its jobs run. Default: the tenant that the handler declares."""


class ScheduleDefaults(NamedTuple):
    """What a cluster's configuration gives to schedules that say nothing of their own, and its limits."""

    zone: str = ZONE_DEFAULT
    lane: str = "default"
    priority: Priority = Priority.MEDIUM
    args_bytes: int = 1 << 30
    headers_bytes: int = 1 << 30
    tags: int = 1 << 16
    tag_chars: int = 1 << 16


class DeclaredSchedule(NamedTuple):
    """A declaration, checked as far as it can be without the cluster's configuration."""

    name: str
    expression: str
    handler: str
    args: bytes
    options: ScheduleOptions
    handler_lane: str | None = None
    handler_priority: Priority | None = None
    handler_limited: bool = False
    handler_tenant: str | None = None
    source: ScheduleSource = ScheduleSource.CODE
    ordering_key: str | None = None
    """Of its jobs, as the handler declares it."""

    def resolve(self, defaults: ScheduleDefaults) -> Schedule:
        """The definition that is stored.

        Raises:
            InputError: an option is none, or the definition is over a limit of the cluster.
        """
        options: dict[str, Any] = {key: value for key, value in self.options.items() if value is not None}
        get = options.get
        if len(self.args) > defaults.args_bytes:
            raise InputError(f"the arguments have {len(self.args)} bytes, the limit is {defaults.args_bytes}")
        tags = check_tags(get("tags"), "schedule", defaults.tags, defaults.tag_chars)
        tenant = self.handler_tenant if (named := get("tenant")) is None else checked_tenant(named)
        attempts = None if "max_attempts" not in options else _whole(get("max_attempts"), "max_attempts", 1, 1 << 31)
        headers = encode_headers(
            Headers(
                requires=(Capability.LIMITS.value,) if self.handler_limited else (),
                tags=tags,
                timeout_seconds=_seconds(get("timeout"), "timeout", least=1e-6),
                max_attempts=attempts,
                ordering_key=self.ordering_key,
                tenant=None if tenant is None else (tenant,),
            )
        )
        if len(headers) > defaults.headers_bytes:
            raise InputError(f"tags and options have {len(headers)} bytes, the limit is {defaults.headers_bytes}")
        interval = interval_us(self.expression) / 1_000_000
        if interval and "zone" in options:
            raise InputError(
                "an interval has no zone: it counts elapsed time", hint="leave out 'zone', or give a cron expression"
            )
        zone = ZONE_DEFAULT if interval else get("zone", defaults.zone)
        if not isinstance(zone, str):
            raise InputError(f"'zone' must be the name of a time zone, not {zone!r}")
        start_us, end_us = _moment_us(get("start"), "start"), _moment_us(get("end"), "end")
        Recurrence(self.expression, zone, start_us=start_us, end_us=end_us)
        lane = check_lane(options["lane"]) if "lane" in options else self.handler_lane or defaults.lane
        return Schedule(
            name=self.name,
            handler=self.handler,
            expression=self.expression,
            zone=zone,
            start_us=start_us,
            end_us=end_us,
            jitter_seconds=_jitter(get("jitter"), interval),
            misfire=Misfire(_word(get("misfire", Misfire.LAST), "misfire", [one.value for one in Misfire])),
            misfire_max=_whole(get("misfire_max", 10), "misfire_max", 1, MISFIRE_MAX_LIMIT),
            overlap=Overlap(_word(get("overlap", Overlap.SKIP), "overlap", [one.value for one in Overlap])),
            expires_seconds=_seconds(get("expires"), "expires", least=1e-6),
            args=self.args,
            headers=headers,
            priority=int(_priority(get("priority")) or self.handler_priority or defaults.priority),
            lane=lane,
            tags=tags,
        )


def declare(name: str, when: object, handler: Handler, args: object, options: ScheduleOptions) -> DeclaredSchedule:
    """A schedule of a handler that is declared in this process.

    Raises:
        InputError: name, time, arguments or an option is none; the sentence names it.
    """
    if args is not None and not isinstance(args, Mapping):
        raise InputError(f"'args' must be a mapping of names to values, not {type(args).__name__}")
    encoded = encode_args(handler.plain(dict(args or {})))
    handler.check(encoded)
    return declare_encoded(name, when, handler.name, encoded, options)._replace(
        handler_lane=handler.options.lane,
        handler_priority=handler.options.priority,
        ordering_key=handler.ordering_key(encoded),
        handler_limited=bool(handler.options.limits),
        handler_tenant=handler.options.tenant,
    )


def declare_encoded(name: str, when: object, handler: str, args: bytes, options: ScheduleOptions) -> DeclaredSchedule:
    """A schedule of any handler, with encoded arguments.

    Raises:
        InputError: name, time or an option is none; the sentence names it.
    """
    check_schedule_name(name)
    unknown = options.keys() - ScheduleOptions.__annotations__.keys()
    if unknown:
        raise InputError(
            f"a schedule has no option {', '.join(sorted(map(repr, unknown)))}",
            hint=f"valid are {', '.join(ScheduleOptions.__annotations__)}",
        )
    declared = DeclaredSchedule(name, expression_of(when), handler, args, options)
    declared.resolve(ScheduleDefaults())  # every mistake shows where the declaration is written
    return declared


def check_schedule_name(name: object) -> str:
    """The name; ``InputError`` when it can be none."""
    return check_name(name, "the name of a schedule", NAME_CHARS_MAX)


def expression_of(when: object) -> str:
    """The expression that is stored: a cron expression, or an interval such as ``300s``.

    Raises:
        InputError: it is neither.
    """
    if isinstance(when, timedelta):
        return interval_text(when.total_seconds())
    if isinstance(when, int | float) and not isinstance(when, bool):
        return interval_text(when)
    if not isinstance(when, str):
        raise InputError(
            f"{when!r:.200} is no time for a schedule",
            hint="give a cron expression, a timedelta, or a duration such as 5m",
        )
    if when.strip().startswith("@") or len(when.split()) > 1:
        return checked_cron(when)
    try:
        return interval_text(parse_duration(when.strip()))
    except UnitError as error:
        if when.strip().startswith("-"):
            raise InputError(f"{when!r:.200}: {error}", hint="an interval is written as 5m or 1h30m") from None
        near = f"did you mean {error.suggestion!r}?" if error.suggestion else None
        raise InputError(
            f"{when!r:.200} is neither a cron expression nor a duration",
            hint=near or "such as '0 3 * * *' (minute hour day-of-month month day-of-week), '5m' or '1h30m'",
        ) from None


# ------------------------------------------------------------ options


def _priority(value: object) -> Priority | None:
    try:
        return None if value is None else Priority.parse(value)  # type: ignore[arg-type]
    except ValueError as error:
        raise InputError(str(error)) from None


def _word(value: object, what: str, valid: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in valid:
        raise InputError(f"{what!r} must be one of {', '.join(map(repr, valid))}, not {value!r}")
    return str(value)


def _whole(value: object, what: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"{what!r} must be a whole number from {least} to {most}, not {value!r}")
    return value


def _seconds(value: object, what: str, *, least: float = 0.0) -> float | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, str):
        try:
            seconds = parse_duration(seconds)
        except UnitError as error:
            raise InputError(f"{what!r}: {error}, not {value!r}") from None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not least <= seconds <= SECONDS_MAX:
        raise InputError(
            f"{what!r} must be a positive number of seconds or a duration of at most {SECONDS_MAX // 86_400} days, "
            f"not {value!r:.200}"
        )
    return float(seconds)


def _jitter(value: object, interval: float) -> float:
    jitter = _seconds(value, "jitter") or 0.0
    if jitter > JITTER_SECONDS_MAX:
        raise InputError(f"'jitter' must be at most a day, not {value!r}")
    if interval and jitter >= interval:
        raise InputError(f"'jitter' ({jitter:g} s) must be less than the interval ({interval:g} s)")
    return jitter


def _moment_us(value: object, what: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InputError(f"{what!r} must be an aware datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InputError(
            f"{what!r} is a naive datetime ({value.isoformat()}): its time zone is unknown",
            hint="use datetime(..., tzinfo=ZoneInfo('Europe/Berlin'))",
        )
    return (value - _EPOCH) // timedelta(microseconds=1)
