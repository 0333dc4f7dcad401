"""Schedules as they are declared: in code, in the configuration, and what is refused where it is written."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from jobmaster.codec import decode_headers
from jobmaster.handlers import Handlers, Limit
from jobmaster.handlers.schedules import ScheduleDefaults, expression_of
from jobmaster.model.errors import ConfigError, InputError
from jobmaster.model.job import Priority
from jobmaster.model.schedule import Misfire, Overlap, ScheduleSource
from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import ClusterSettings, Encryption, Limits, ScheduleSettings
from jobmaster.settings.schedules import declared_schedules

NIGHTLY = "0 3 * * *"


async def report(region: str, day: int = 1) -> None: ...


def declared(when: Any = NIGHTLY, /, **options: Any) -> Any:
    handlers = Handlers()
    handlers.add(report, name="report", lane="reports", priority="low")
    handlers.every(when, **{"args": {"region": "eu"}, **options})(report)
    (found,) = declared_schedules(ClusterSettings(), handlers)
    return found.schedule


def test_a_schedule_has_the_name_lane_and_priority_of_its_handler() -> None:
    schedule = declared()
    assert (schedule.name, schedule.handler, schedule.lane, schedule.priority) == (
        "report",
        "report",
        "reports",
        Priority.LOW,
    )
    assert (schedule.expression, schedule.zone) == (NIGHTLY, "UTC")
    assert (schedule.misfire, schedule.overlap) == (Misfire.LAST, Overlap.SKIP)
    assert json.loads(schedule.args) == {"region": "eu"}


def test_every_option_reaches_the_definition() -> None:
    start = datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    schedule = declared(
        name="nightly.eu",
        zone="Europe/Berlin",
        start=start,
        end=start + timedelta(days=30),
        jitter="30s",
        misfire="all",
        misfire_max=7,
        overlap="cancel_previous",
        tags=["eu"],
        priority="high",
        lane="fast",
        timeout=timedelta(minutes=2),
        max_attempts=2,
        expires="1h",
    )
    assert schedule.name == "nightly.eu"
    assert schedule.start_us == int(start.timestamp()) * 1_000_000
    assert schedule.end_us - schedule.start_us == 30 * 86_400_000_000
    assert (schedule.zone, schedule.jitter_seconds, schedule.expires_seconds) == ("Europe/Berlin", 30.0, 3600.0)
    assert (schedule.misfire, schedule.misfire_max, schedule.overlap) == ("all", 7, "cancel_previous")
    assert (schedule.priority, schedule.lane, schedule.tags) == (Priority.HIGH, "fast", ("eu",))
    assert json.loads(schedule.headers) == {"tags": ["eu"], "timeout_seconds": 120.0, "max_attempts": 2}


def test_a_function_without_job_becomes_a_handler() -> None:
    handlers = Handlers()

    @handlers.every("5m")
    async def tick() -> None: ...

    assert handlers.of(tick) is not None
    (found,) = declared_schedules(ClusterSettings(), handlers)
    assert (found.schedule.expression, found.source) == ("300s", ScheduleSource.CODE)


@pytest.mark.parametrize("required", ["report", "*"])
def test_a_schedule_of_a_handler_that_takes_sealed_jobs_alone_is_refused(required: str) -> None:
    handlers = Handlers()
    handlers.add(report, name="report")
    handlers.every(NIGHTLY, args={"region": "eu"})(report)
    sealing = Encryption(keys={"k": "a"}, active="k", require=[required])
    with pytest.raises(ConfigError, match="schedule 'report' does not seal arguments"):
        declared_schedules(ClusterSettings(encryption=sealing), handlers)
    with pytest.raises(ValueError, match=r"encryption.require needs encryption.keys"):
        Encryption(require=[required])


def test_every_below_job_is_refused() -> None:
    handlers = Handlers()
    with pytest.raises(ConfigError, match=r"write @handlers.every above @handlers.job"):

        @handlers.job(name="other")
        @handlers.every("5m")
        async def tick() -> None: ...


def test_two_definitions_of_one_name_are_one_error() -> None:
    handlers = Handlers()
    handlers.add(report, name="report")
    handlers.every(NIGHTLY, args={"region": "eu"})(report)
    with pytest.raises(ConfigError, match="two schedules are called 'report'"):
        handlers.every(NIGHTLY, args={"region": "us"})(report)
    handlers.every(NIGHTLY, name="report.us", args={"region": "us"})(report)
    assert [one.name for one in handlers.schedules] == ["report", "report.us"]


def test_two_registries_with_one_name_cannot_be_merged() -> None:
    one, other = Handlers(), Handlers()
    for registry, when in ((one, "5m"), (other, "6m")):
        registry.add(report, name="report")
        registry.every(when, args={"region": "eu"})(report)
    with pytest.raises(ConfigError, match="two schedules are called 'report'"):
        one.merge(other)


def test_merged_registries_keep_their_schedules() -> None:
    one, other = Handlers(), Handlers()
    other.add(report, name="report")
    other.every("5m", args={"region": "eu"})(report)
    one.merge(other)
    assert [schedule.name for schedule in one.schedules] == ["report"]


@pytest.mark.parametrize(
    ("when", "options", "message"),
    [
        ("0 0 30 2 *", {}, "no month 2 has a day 30"),
        ("5 minutes", {}, "has 2 fields"),
        ("5mins", {}, "neither a cron expression nor a duration"),
        (0, {}, "an interval must be between 1 second"),
        (-5, {}, "an interval must be between 1 second"),
        ("500ms", {}, "an interval must be between 1 second"),
        (timedelta(microseconds=1), {}, "an interval must be between 1 second"),
        ("-5m", {}, "it cannot be negative"),
        (True, {}, "True is no time for a schedule"),
        (None, {}, "None is no time for a schedule"),
        (NIGHTLY, {"zone": "Europe/Berlim"}, "there is no time zone 'Europe/Berlim'"),
        (NIGHTLY, {"zone": 1}, "'zone' must be the name of a time zone"),
        ("5m", {"zone": "Europe/Berlin"}, "an interval has no zone"),
        (NIGHTLY, {"args": {}}, "missing argument 'region'"),
        (NIGHTLY, {"args": {"region": "eu", "dya": 2}}, "unknown argument 'dya'"),
        (NIGHTLY, {"args": ["eu"]}, "'args' must be a mapping"),
        (NIGHTLY, {"misfire": "never"}, "'misfire' must be one of 'skip', 'last', 'all'"),
        (NIGHTLY, {"misfire_max": 0}, "'misfire_max' must be a whole number from 1"),
        (NIGHTLY, {"misfire_max": 10**6}, "'misfire_max' must be a whole number from 1"),
        (NIGHTLY, {"overlap": "wait"}, "'overlap' must be one of"),
        (NIGHTLY, {"jitter": -1}, "'jitter' must be a positive number"),
        (NIGHTLY, {"jitter": "2d"}, "'jitter' must be at most a day"),
        ("5m", {"jitter": "5m"}, "must be less than the interval"),
        (NIGHTLY, {"start": datetime(2026, 1, 1)}, "'start' is a naive datetime"),  # noqa: DTZ001
        (NIGHTLY, {"end": "2026"}, "'end' must be an aware datetime"),
        (NIGHTLY, {"expires": 0}, "'expires' must be a positive number"),
        (NIGHTLY, {"expires": 1e300}, "'expires' must be a positive number .* of at most 3660 days"),
        (NIGHTLY, {"expires": float("nan")}, "'expires' must be a positive number"),
        (NIGHTLY, {"expires": "4000d"}, "of at most 3660 days, not '4000d'"),
        (NIGHTLY, {"timeout": 10**400}, "'timeout' must be a positive number .* of at most 3660 days"),
        (NIGHTLY, {"tags": "eu"}, "'tags' must be a list"),
        (NIGHTLY, {"lane": "No Lane"}, "is not the name of a lane"),
        (NIGHTLY, {"priority": "urgent"}, "unknown priority"),
        (NIGHTLY, {"max_attempts": 0}, "'max_attempts' must be a whole number"),
        (NIGHTLY, {"name": ""}, "the name of a schedule is empty"),
        (NIGHTLY, {"name": "a\nb"}, r"contains the character U\+000A"),
        (NIGHTLY, {"every": 5}, "a schedule has no option 'every'"),
    ],
)
def test_what_can_never_work_is_refused_where_it_is_declared(when: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        declared(when, **options)
    assert caught.value.message.startswith("schedule "), "the error does not name the schedule"


def test_a_range_in_which_nothing_fires_is_refused() -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    with pytest.raises(ConfigError, match="never fires between"):
        declared("0 0 29 2 *", start=start, end=start + timedelta(days=40))


@pytest.mark.parametrize(
    ("when", "expression"),
    [
        ("@hourly", "0 * * * *"),
        ("1h30m", "5400s"),
        (90, "90s"),
        (timedelta(seconds=1.5), "1.5s"),
        ("* * * * * *", "* * * * * *"),
    ],
)
def test_times_have_one_stored_form(when: Any, expression: str) -> None:
    assert expression_of(when) == expression


def test_limits_of_the_cluster_count() -> None:
    handlers = Handlers()
    handlers.add(report, name="report")
    handlers.every(NIGHTLY, args={"region": "x" * 100}, tags=["a", "b"])(report)
    with pytest.raises(ConfigError, match="the arguments have 113 bytes, the limit is 50"):
        declared_schedules(ClusterSettings(limits=Limits(args_bytes=50)), handlers)
    with pytest.raises(ConfigError, match="a schedule may have 1 tags"):
        declared_schedules(ClusterSettings(limits=Limits(tags=1)), handlers)
    with pytest.raises(InputError, match="tags and options have"):
        handlers.schedules[0].resolve(ScheduleDefaults(headers_bytes=3))


# ------------------------------------------------------------ the configuration


def settings_of(text: str, folder: Path) -> ClusterSettings:
    path = folder / "jobmaster.yaml"
    path.write_text(text)
    return load_settings(path, env={}).settings


def reports() -> Handlers:
    handlers = Handlers()
    handlers.add(report, name="report")
    return handlers


def test_a_schedule_of_the_configuration(tmp_path: Path) -> None:
    settings = settings_of(
        """
zone: Europe/Berlin
schedules:
  nightly:
    handler: report
    every: "30 3 * * *"
    args: '{"region": "eu"}'
    overlap: queue
    jitter: 1m
    expires: 1h
    tags: [eu]
    tenant: acme
    start: "2026-01-01T00:00:00+01:00"
  often: {handler: limited, every: 5m, args: '{"region": "us"}'}
""",
        tmp_path,
    )
    handlers = reports()
    handlers.add(report, name="limited", tenant="zoo", limit=Limit("reports", 1))
    nightly, often = declared_schedules(settings, handlers)
    assert nightly.source is ScheduleSource.YAML
    assert (nightly.schedule.expression, nightly.schedule.zone) == ("30 3 * * *", "Europe/Berlin")
    assert (nightly.schedule.overlap, nightly.schedule.jitter_seconds, nightly.schedule.tags) == (
        "queue",
        60.0,
        ("eu",),
    )
    assert nightly.schedule.start_us == 1_767_222_000_000_000
    assert (often.schedule.expression, often.schedule.zone) == ("300s", "UTC")
    headers = decode_headers(nightly.schedule.headers), decode_headers(often.schedule.headers)
    assert [each.tenant for each in headers] == [("acme",), ("zoo",)]
    assert headers[1].requires == ("limits",), "an agent that knows no limits would start it without a permit"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("{every: 5m}", "schedules.s", "the schedule has no handler"),
        ("{handler: report}", "schedules.s", "the schedule has no every"),
        ("{handler: report, every: '0 0 31 4 *'}", "schedules.s", "no month 4 has a day 31"),
        ("{handler: report, every: 5m, zone: Europe/Paris}", "schedules.s", "an interval has no zone"),
        ("{handler: report, every: 5m, args: 'x'}", "schedules.s", "args is not JSON"),
        ("{handler: report, every: 5m, args: '[1]'}", "schedules.s", "args must be a JSON object"),
        ("{handler: report, every: 5m, start: '2026-01-01T00:00'}", "schedules.s", "naive datetime"),
        ("{handler: report, every: 5m, misfire_max: 0}", "schedules.s.misfire_max", "expected a whole number"),
        ("{handler: report, every: 5m, tenant: a b}", "schedules.s", "is not the name of a tenant"),
        ("{handler: report, every: 5m, overlap: wait}", "schedules.s.overlap", "expected one of"),
    ],
)
def test_a_mistake_in_the_configuration_has_its_place(text: str, place: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(f"schedules:\n  s: {text}\n", tmp_path)
    (problem,) = caught.value.problems
    assert place in problem
    assert message in problem


def test_the_zone_of_the_cluster_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of("zone: Europe/Berlim\n", tmp_path)
    assert "there is no time zone 'Europe/Berlim'" in caught.value.problems[0]
    assert "did you mean 'Europe/Berlin'" in caught.value.problems[0]


def test_a_schedule_of_the_configuration_needs_a_handler_of_the_code() -> None:
    schedules = {"nightly": ScheduleSettings(handler="reports", every="5m")}
    with pytest.raises(ConfigError, match=r"schedules\.nightly: there is no handler 'reports'"):
        declared_schedules(ClusterSettings(schedules=schedules), reports())
    schedules = {"nightly": ScheduleSettings(handler="report", every="5m", args='{"region": 5}')}
    with pytest.raises(ConfigError, match=r"schedules\.nightly: handler 'report'"):
        declared_schedules(ClusterSettings(schedules=schedules), reports())


def test_code_and_configuration_cannot_share_a_name() -> None:
    handlers = reports()
    handlers.every("5m", args={"region": "eu"})(report)
    schedules = {"report": ScheduleSettings(handler="report", every="5m", args='{"region": "eu"}')}
    with pytest.raises(
        ConfigError, match="two schedules are called 'report': one in the code, one in the configuration"
    ):
        declared_schedules(ClusterSettings(schedules=schedules), handlers)
