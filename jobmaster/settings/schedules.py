"""The schedules of a configuration, and those that handlers declare, as definitions for the master."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import msgspec

from jobmaster.codec import decode_json
from jobmaster.encryption import EVERY_HANDLER
from jobmaster.handlers import Handlers
from jobmaster.handlers.registry import unknown_handler
from jobmaster.handlers.schedules import DeclaredSchedule, ScheduleDefaults, ScheduleOptions, declare_encoded
from jobmaster.model.errors import ConfigError, InputError
from jobmaster.model.job import Priority
from jobmaster.model.schedule import Schedule, ScheduleSource
from jobmaster.rules.recurrence import zone_of
from jobmaster.settings.model import ClusterSettings, ScheduleSettings


class Declared(NamedTuple):
    """A definition and the place that it comes from."""

    schedule: Schedule
    source: ScheduleSource


def schedule_defaults(settings: ClusterSettings) -> ScheduleDefaults:
    """What the configuration gives to schedules that say nothing of their own, and its limits."""
    limits, jobs = settings.limits, settings.jobs
    return ScheduleDefaults(
        zone=settings.zone,
        lane=jobs.lane,
        priority=Priority.parse(jobs.priority),
        args_bytes=limits.args_bytes,
        headers_bytes=limits.headers_bytes,
        tags=limits.tags,
        tag_chars=limits.tag_chars,
    )


def zone_problem(zone: str) -> InputError | None:
    """Why this is the name of no time zone; ``None`` when it is one."""
    try:
        zone_of(zone)
    except InputError as error:
        return error
    return None


def declared_schedule(name: str, schedule: ScheduleSettings) -> DeclaredSchedule:
    """A schedule of the configuration file.

    Raises:
        InputError: a value is none, or one is missing.
    """
    if not schedule.handler or not schedule.every:
        raise InputError(
            f"the schedule has no {'every' if schedule.handler else 'handler'}",
            hint='write handler: reports.nightly and every: "0 3 * * *"',
        )
    try:
        args = decode_json(schedule.args.encode())
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise InputError(f"args is not JSON: {error}", hint="""such as args: '{"month": "last"}'""") from None
    if not isinstance(args, dict):
        raise InputError("args must be a JSON object: argument name to value")
    options = ScheduleOptions(misfire=schedule.misfire, misfire_max=schedule.misfire_max, overlap=schedule.overlap)
    for key, value in (
        ("zone", schedule.zone),
        ("start", _moment(schedule.start, "start")),
        ("end", _moment(schedule.end, "end")),
        ("jitter", schedule.jitter_seconds),
        ("tags", schedule.tags),
        ("priority", schedule.priority),
        ("lane", schedule.lane),
        ("timeout", schedule.timeout_seconds),
        ("max_attempts", schedule.max_attempts),
        ("expires", schedule.expires_seconds),
        ("tenant", schedule.tenant),
    ):
        if value is not None:
            options[key] = value  # type: ignore[literal-required]
    declared = declare_encoded(name, schedule.every, schedule.handler, msgspec.json.encode(args), options)
    return declared._replace(source=ScheduleSource.YAML)


def declared_schedules(settings: ClusterSettings, handlers: Handlers) -> list[Declared]:
    """The definitions that an agent with this configuration and these handlers declares, by name.

    Raises:
        ConfigError: one cannot work here, or two have one name.
    """
    defaults = schedule_defaults(settings)
    found: dict[str, Declared] = {}
    sealed = settings.encryption.require
    for one in [*handlers.schedules, *_of_file(settings, handlers)]:
        if one.handler in sealed or EVERY_HANDLER in sealed:
            raise ConfigError(
                f"schedule {one.name!r} does not seal arguments, and encryption.require names its handler {one.handler!r}",
                hint="have the job of another handler submit it, or take the handler out of encryption.require",
            )
        if one.name in found:
            raise ConfigError(
                f"two schedules are called {one.name!r}: one in the code, one in the configuration",
                hint=f"rename schedules.{one.name}, or the one of @handlers.every",
            )
        try:
            found[one.name] = Declared(one.resolve(defaults), one.source)
        except InputError as error:
            raise ConfigError(f"schedule {one.name!r}: {error.message}", hint=error.hint) from None
    return [found[name] for name in sorted(found)]


def _of_file(settings: ClusterSettings, handlers: Handlers) -> Iterator[DeclaredSchedule]:
    for name, schedule in settings.schedules.items():
        try:
            one = declared_schedule(name, schedule)
            handler = handlers.get(one.handler)
            if handler is None:
                raise unknown_handler(one.handler, handlers.names(), "name one that a module under `handlers` declares")
            handler.check(one.args)
        except InputError as error:
            raise ConfigError(f"schedules.{name}: {error.message}", hint=error.hint) from None
        yield one._replace(
            handler_lane=handler.options.lane,
            handler_priority=handler.options.priority,
            handler_limited=bool(handler.options.limits),
            handler_tenant=handler.options.tenant,
            ordering_key=handler.ordering_key(one.args),
        )


def _moment(value: str | None, what: str) -> datetime | None:
    if value is None:
        return None
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise InputError(f"{what} {value!r} is not a time", hint="such as 2030-01-31T12:00:00Z") from None
