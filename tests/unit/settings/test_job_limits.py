"""``job_limits`` of the configuration: their numbers stand over those of the code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobmaster.handlers import Handlers, Limit
from jobmaster.model.errors import ConfigError
from jobmaster.model.flow.limit import LimitValues
from jobmaster.settings.job_limits import declared_limits, unknown_limits
from jobmaster.settings.loader import LoadedSettings

handlers = Handlers()


@handlers.job(name="charge", limit=[Limit("stripe", 100, rate="50/s"), Limit("tenant", 2, key="{tenant}")])
async def charge(tenant: str) -> None: ...


@pytest.mark.parametrize(
    ("text", "stripe"),
    [
        ("{}", LimitValues("stripe", 100, 50.0, 50.0)),
        ("{running: 7}", LimitValues("stripe", 7, 50.0, 50.0)),
        ("{rate: 120/m}", LimitValues("stripe", 100, 2.0, 2.0)),
        ("{burst: 5}", LimitValues("stripe", 100, 50.0, 5.0)),
        ("{running: 7, rate: 0.5/s, burst: 3}", LimitValues("stripe", 7, 0.5, 3.0)),
    ],
)
def test_what_is_given_stands_over_the_code(
    load: Callable[..., LoadedSettings], text: str, stripe: LimitValues
) -> None:
    given = "" if text == "{}" else f"job_limits:\n  stripe: {text}\n"
    settings = load(f"cluster: prod\n{given}").settings
    assert declared_limits(settings.job_limits, handlers) == [stripe, LimitValues("tenant", 2, None, None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stripe: {}", "limit 'stripe' has no number"),
        ("stripe: {running: 0}", "job_limits.stripe.running"),
        ("stripe: {rate: soon}", 'rate must be like "50/s"'),
        ("stripe: {burst: 0.5}", "job_limits.stripe.burst"),
        ("stripe: 100", "job_limits.stripe"),
        ("'no name': {running: 1}", "no name"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(
    complain: Callable[..., list[str]], text: str, message: str
) -> None:
    (problem,) = complain(f"job_limits:\n  {text}\n")
    assert message in problem
    assert "cluster.yaml" in problem


def test_a_burst_goes_with_a_rate_of_the_code(load: Callable[..., LoadedSettings]) -> None:
    settings = load("job_limits:\n  tenant: {burst: 5}\n").settings
    with pytest.raises(ConfigError, match=r"job_limits\.tenant: .*burst goes with a rate"):
        declared_limits(settings.job_limits, handlers)


def test_a_name_that_no_handler_has_is_reported_with_the_nearest_one(load: Callable[..., LoadedSettings]) -> None:
    settings = load("job_limits:\n  strype: {running: 5}\n  other: {running: 5}\n").settings
    known: Any = unknown_limits(settings.job_limits, handlers)
    assert known == ["other", "strype (did you mean 'stripe'?)"]
    assert declared_limits(settings.job_limits, handlers)[0].running == 100
