"""A circuit breaker as handlers declare it: what is refused, and which errors count."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jobmaster import Breaker, Handlers
from jobmaster.model.errors import ConfigError


class Unreachable(ConnectionError):
    """An error of this module."""


HERE = f"{Unreachable.__module__}.Unreachable"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"failures": 0}, "'failures'"),
        ({"failures": 1.1}, "'failures'"),
        ({"failures": float("nan")}, "'failures'"),
        ({"failures": "0.5"}, "'failures'"),
        ({"window": 0.5}, "'window'"),
        ({"window": 3601}, "'window'"),
        ({"min_calls": 0}, "'min_calls'"),
        ({"min_calls": 1.5}, "'min_calls'"),
        ({"min_calls": True}, "'min_calls'"),
        ({"open_for": 0}, "'open_for'"),
        ({"half_open": 0}, "'half_open'"),
        ({"half_open": 1001}, "'half_open'"),
        ({"on": "TimeoutError"}, "'on'"),
        ({"on": [int]}, "'on'"),
    ],
)
def test_values_that_cannot_be_meant_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match="stripe") as refused:
        Breaker("stripe", **options)
    assert named in str(refused.value)


def test_a_name_alone_has_the_defaults_and_times_may_be_timedeltas() -> None:
    handlers = Handlers()

    @handlers.job(name="a", breaker="stripe")
    async def a() -> None: ...

    declared = handlers.get("a")
    assert declared is not None
    assert declared.options.breaker == Breaker("stripe")
    assert Breaker("s", window=timedelta(minutes=1)).rule.window_seconds == 60.0
    with pytest.raises(ConfigError, match="'breaker' must be"):
        handlers.add(lambda: None, name="b", breaker=7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is empty"):
        Breaker("")


@pytest.mark.parametrize(
    ("breaker", "reason", "error_type", "counts"),
    [
        (Breaker("s"), "error", "ValueError", True),
        (Breaker("s"), "error", HERE, True),
        (Breaker("s"), "error", "SystemExit", False),
        (Breaker("s", on=ConnectionError), "error", HERE, True),
        (Breaker("s", on=ConnectionError), "error", "ConnectionResetError", True),
        (Breaker("s", on=ConnectionError), "error", "ValueError", False),
        (Breaker("s", on=(ConnectionError, ValueError)), "given_up", "ValueError", True),
        (Breaker("s", ignore=ConnectionError), "error", HERE, False),
        (Breaker("s"), "timeout", "Timeout", True),
        (Breaker("s", ignore=TimeoutError), "timeout", "Timeout", False),
        (Breaker("s"), "crashed", "WorkerCrashed", True),
        (Breaker("s"), "snoozed", "jobmaster.handlers.decisions.Snooze", None),
        (Breaker("s"), "cancelled", "Cancelled", None),
        (Breaker("s"), "arguments", "InvalidArguments", None),
        (Breaker("s"), "abandoned", "Abandoned", None),
    ],
)
def test_which_ends_of_a_run_are_failures_of_the_resource(
    breaker: Breaker, reason: str, error_type: str, counts: bool | None
) -> None:
    assert breaker.is_failure(reason, error_type) is counts
    assert breaker.is_failure(reason, error_type) is counts, "the same when it is asked again"
