"""``Limit``: what it takes, and what a job takes of it."""

from __future__ import annotations

from typing import Any

import pytest

from jobmaster import ConfigError, Handlers, InputError, Limit
from jobmaster.model.errors import InvalidArguments
from jobmaster.model.flow.limit import LimitUse, LimitValues


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"running": 100}, LimitValues("api", 100, None, None)),
        ({"rate": "600/m"}, LimitValues("api", None, 10.0, 10.0)),
        ({"rate": "10/5s", "burst": 4}, LimitValues("api", None, 2.0, 4.0)),
        ({"rate": 0.5}, LimitValues("api", None, 0.5, 1.0)),
        ({"running": 1, "rate": "1/d"}, LimitValues("api", 1, 1 / 86400, 1.0)),
    ],
)
def test_the_numbers_of_a_limit(given: dict[str, Any], values: LimitValues) -> None:
    assert Limit("api", **given).values == values


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give how many jobs may run at once, or a rate"),
        ({"running": 0}, "0 is not a number of jobs that may run at once"),
        ({"running": -1}, "-1 is not"),
        ({"running": True}, "True is not"),
        ({"running": 1.5}, "1.5 is not"),
        ({"running": 1_000_001}, "1000001 is not"),
        ({"rate": "soon"}, 'rate must be like "50/s"'),
        ({"rate": 0}, "at least one start a year"),
        ({"rate": "5/0s"}, "at least one start a year"),
        ({"rate": 2e6}, "at most 1e\\+06/s"),
        ({"running": 1, "burst": 5}, "burst goes with a rate"),
        ({"rate": 1, "burst": 0.5}, "burst must be a number of 1 to"),
        ({"running": 2, "weight": 3}, "weight 3 is more than the limit, 2"),
        ({"running": 2, "weight": 0}, "weight must be a whole number of at least 1"),
        ({"running": 2, "key": 7}, "key must be a template or a function"),
        ({"running": 2, "key": "{a"}, "is no template"),
        ({"running": 2, "key": "{a.b}"}, "may only name arguments"),
        ({"running": 2, "key": "all"}, "names no argument"),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_meant_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Limit("api", **given)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 101, None, "ü"])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(InputError, match="is not the name of a limit"):
        Limit(name, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 100}, "handler 'charge': limit must be a Limit or a list of them, not 100"),
        ({"limit": [Limit("a", 1), Limit("a", 1)]}, "limit 'a' is given twice"),
        ({"limit": [Limit(f"n{n}", 1) for n in range(9)]}, "may have 8 limits, and 9 are given"),
        ({"limit": Limit("a", 1, key="{customer}")}, "handler 'charge': limit 'a': the key .* names 'customer'"),
        ({"limit": Limit("a", 1), "complete_time": 5}, "a limit cannot count that run"),
        ({"limit": Limit("a", 1), "start": "lease"}, "needs start 'fenced'"),
    ],
)
def test_handlers_that_cannot_have_it_are_refused(options: dict[str, Any], message: str) -> None:
    async def charge(order: int) -> None: ...

    with pytest.raises(ConfigError, match=message):
        Handlers().job(name="charge", **options)(charge)


ONE = Limit("a", 1)


@pytest.mark.parametrize(
    ("options", "borrows"),
    [
        ({"limit": ONE}, True),
        ({"limit": Limit("a", 1, key="{order}")}, True),
        ({"limit": ONE, "max_attempts": 9, "timeout": 5}, True),
        ({}, False),
        ({"limit": [ONE, Limit("b", 1)]}, False),
        ({"limit": Limit("a", 1, rate="5/s")}, False),
        ({"limit": Limit("a", rate="5/s")}, False),
        ({"limit": Limit("a", 9, weight=2)}, False),
        ({"limit": Limit("a", 9, weight=lambda arguments: 1)}, False),
        ({"limit": ONE, "delivery": "at_most_once"}, False),
        ({"limit": ONE, "start": "fenced"}, False),
        ({"limit": ONE, "transactional": True}, False),
        ({"limit": ONE, "confirm": "explicit"}, False),
        ({"limit": ONE, "mode": "process"}, False),
    ],
)
def test_what_may_start_with_a_lent_permit(options: dict[str, Any], borrows: bool) -> None:
    """What needs no other write before its start; never a job that is to be started once, or that has an ordering key."""

    async def charge(order: int) -> None: ...

    handlers = Handlers()
    handlers.job(name="charge", **options)(charge)
    handler = handlers.get("charge")
    assert handler is not None
    found = handler.options
    assert found.borrows is borrows
    assert not found.once().borrows
    assert not found.ordered().borrows


def test_a_handler_in_a_thread_starts_with_no_lent_permit() -> None:
    handlers = Handlers()
    handlers.job(name="charge", limit=ONE)(lambda: None)
    handler = handlers.get("charge")
    assert handler is not None
    assert not handler.options.borrows


def test_two_handlers_give_one_limit_the_same_numbers() -> None:
    handlers = Handlers()
    handlers.job(name="one", limit=Limit("api", 5))(lambda: None)
    with pytest.raises(ConfigError, match="limit 'api' has different numbers in handlers 'one' and 'two'"):
        handlers.job(name="two", limit=Limit("api", 6))(lambda: None)


def test_a_job_takes_what_its_arguments_say_defaults_included() -> None:
    handlers = Handlers()
    limits = [Limit("tenant", 2, key="{tenant}"), Limit("gpu", 8, weight=lambda given: given["gpus"])]

    @handlers.job(name="train", limit=limits)
    async def train(tenant: str, gpus: int = 3) -> None: ...

    (handler,) = handlers
    assert handler.limit_uses(b'{"tenant":"acme"}') == (LimitUse("tenant", "acme", 1), LimitUse("gpu", "", 3))
    for args, message in (
        (b'{"tenant":"a","gpus":0}', "must be a whole number of 1 to"),
        (b'{"tenant":"%s"}' % (b"a" * 201), "has 201 characters"),
        (b'{"tenant":"a\\u0000"}', "unprintable"),
        (b"{}", "missing argument 'tenant'"),
    ):
        with pytest.raises(InvalidArguments, match=message):
            handler.limit_uses(args)
