"""Declarations of Spark jobs, and what becomes of the errors of a driver."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jobmaster.handlers import Cancel, Fail, Handlers, JobContext, Retry, Snooze
from jobmaster.model.errors import ConfigError, Conflict, InputError, Unavailable
from jobmaster.pipeline.jobs import SparkApplication, SparkFailed, driver_call, pipeline_handlers, spark_job
from jobmaster.pipeline.jobs.driver_errors import ViolationsFound, described
from jobmaster.pipeline.jobs.driver_process import DriverRun
from jobmaster.pipeline.jobs.orders import DriverResult, FunctionOrder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Day(msgspec.Struct):
    name: str


def totals(spark: SparkSession, day: Day, limit: int = 10) -> dict[str, int]:
    """Never called here."""
    return {day.name: limit}


async def late(spark: SparkSession) -> None: ...


def alone() -> None: ...


def test_a_function_over_a_session_is_a_handler_of_its_other_parameters() -> None:
    handlers, joined = Handlers(), Handlers()
    assert spark_job(handlers, name="sales.totals", timeout=3600)(totals) is totals
    handlers.every("@daily", args={"day": {"name": "today"}})(totals)
    joined.merge(handlers)
    for registry in (handlers, joined):
        handler = registry.of(totals)
        assert handler is not None
        assert (handler.name, handler.needs_context, len(registry)) == ("sales.totals", True, 1)
        assert handler.spec.schema["required"] == ["day"]
        assert [schedule.handler for schedule in registry.schedules] == ["sales.totals"]


def test_what_cannot_be_a_spark_job_is_refused() -> None:
    def inner(spark: SparkSession) -> None: ...

    for function, options, said in (
        (late, {}, "is a plain function"),
        (alone, {}, "no parameter for the Spark session"),
        (inner, {}, "inside another one"),
        (totals, {"mode": "process"}, "has no mode"),
    ):
        with pytest.raises(ConfigError) as caught:
            spark_job(Handlers(), **options)(function)  # type: ignore[arg-type]  # as the test says
        assert said in str(caught.value)


@pytest.mark.parametrize(
    "application",
    [
        {"conf": {"spark.submit.deployMode": "cluster"}},
        {"options": ("--deploy-mode", "cluster")},
        {"options": ("--deploy-mode=cluster",)},
    ],
)
def test_a_driver_that_nothing_would_end_is_refused(application: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="runs beside its agent"):
        SparkApplication("app.py", **application)
    assert SparkApplication("app.py", options=("--name", "cluster")).argv[-1] == "app.py"


def run(monkeypatch: pytest.MonkeyPatch, result: DriverResult | None) -> Any:
    """The call of a driver that ends with this result."""

    async def ends(*_: Any, **__: Any) -> DriverRun:
        return DriverRun(1, result=None if result is None else msgspec.to_builtins(result))

    async def no_java(_: str) -> dict[str, str]:
        return {}

    monkeypatch.setattr(driver_call, "run_driver", ends)
    monkeypatch.setattr(driver_call, "java_environment", no_java)
    order = FunctionOrder("m", "f", {}, "local", {}, "app", (), None)
    context: Any = JobContext[Any]
    return asyncio.run(driver_call.call_driver(context, order))


@pytest.mark.parametrize(
    ("raised", "expected", "said"),
    [
        (Fail("wrong"), Fail, "wrong"),
        (Cancel("pointless"), Cancel, "pointless"),
        (Retry(5, "again"), Retry, "again"),
        (Snooze(7, "later"), Snooze, "later"),
        (Unavailable("away"), Unavailable, "app: away"),
        (Conflict("another archiver runs"), Unavailable, "another archiver runs"),
        (InputError("no such lake", hint="name one"), Fail, r"app: no such lake \(name one\)"),
        (ViolationsFound('{"n":1}'), Fail, 'found violations: {"n":1}'),
        (ValueError("odd\nmore"), SparkFailed, "ValueError: odd"),
        (None, SparkFailed, "app ended with exit code 1"),
    ],
)
def test_an_error_of_the_driver_is_one_of_the_job(
    monkeypatch: pytest.MonkeyPatch, raised: Exception | None, expected: type[Exception], said: str
) -> None:
    """Another attempt is made where it may help."""
    result = None if raised is None else DriverResult(error=described(raised))
    with pytest.raises(expected, match=said) as caught:
        run(monkeypatch, result)
    if isinstance(raised, Retry | Snooze):
        assert caught.value.after_seconds == raised.after_seconds  # type: ignore[attr-defined]


def test_the_steps_of_the_pipeline_are_handlers_that_run_one_at_a_time() -> None:
    assert pipeline_handlers.names() == [
        f"pipeline.{step}" for step in ("archive", "audit", "compact", "rollup", "vacuum")
    ]
    for handler in pipeline_handlers:
        (limit,) = handler.options.limits
        assert (limit.name, limit.running) == ("jobmaster.pipeline", 1)
