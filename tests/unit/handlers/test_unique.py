"""``Unique``: what it takes, and the key that it makes of arguments."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jobmaster import ConfigError, Handlers, InputError, Unique
from jobmaster.handlers import checked_unique
from jobmaster.model.flow.uniqueness import OnConflict, UniqueRule, UniqueTerm


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Unique(key="k"), UniqueRule("k", UniqueTerm.LIVE, 0, False, OnConflict.EXISTING)),
        (Unique(key="k", on_conflict="replace"), UniqueRule("k", UniqueTerm.LIVE, 0, False, OnConflict.REPLACE)),
        (Unique(key="k", window="1h30m"), UniqueRule("k", UniqueTerm.WINDOW, 5_400_000_000, False, OnConflict.EXISTING)),
        (
            Unique(key="k", throttle=60, on_conflict="reject"),
            UniqueRule("k", UniqueTerm.WINDOW, 60_000_000, True, OnConflict.REJECT),
        ),
        (
            Unique(key="k", debounce=timedelta(seconds=0.5)),
            UniqueRule("k", UniqueTerm.WAITING, 500_000, False, OnConflict.DEBOUNCE),
        ),
    ],
)  # fmt: skip
def test_what_a_submit_hands_to_the_master(given: Unique, expected: UniqueRule) -> None:
    assert checked_unique(given).rule(b"{}") == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"window": 1, "throttle": 1}, "window and throttle"),
        ({"window": 1, "debounce": 1}, "window and debounce"),
        ({"key": "k", "args": ["a"]}, "key and args"),
        ({"key": ""}, "is empty"),
        ({"key": "a\nb"}, r"U\+000A"),
        ({"key": "k" * 201}, "the limit is 200"),
        ({"key": 7}, "must be text"),
        ({"args": "path"}, "must be a list"),
        ({"args": []}, "must be a list"),
        ({"args": ["a", "a"]}, "twice"),
        ({"window": 0}, "0.001 to 316224000 seconds"),
        ({"window": -1}, "0.001 to 316224000 seconds"),
        ({"window": True}, "must be seconds"),
        ({"window": float("nan")}, "0.001 to 316224000 seconds"),
        ({"throttle": "1/h"}, "throttle of 'unique' is '1/h'"),
        ({"debounce": 1e12}, "0.001 to 316224000 seconds"),
        ({"on_conflict": "debounce"}, "'existing', 'reject' or 'replace'"),
        ({"on_conflict": "ignore"}, "'existing', 'reject' or 'replace'"),
        ({"on_conflict": 7}, "'existing', 'reject' or 'replace'"),
        ({"debounce": 1, "on_conflict": "replace"}, "debounce and on_conflict"),
    ],
)
def test_what_cannot_work_is_refused_with_one_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        checked_unique(Unique(**given))


def test_equal_arguments_make_equal_keys() -> None:
    every, one = checked_unique(Unique()), checked_unique(Unique(args=["b", "c"]))
    assert every.rule(b'{"b":1,"a":{"y":1,"x":2}}').key == every.rule(b'{"a": {"x":2,"y":1}, "b": 1}').key
    assert every.rule(b'{"b":1}').key != every.rule(b'{"b":"1"}').key
    assert one.rule(b'{"a":1,"b":2}').key == one.rule(b'{"b":2,"c":null}').key == '{"b":2,"c":null}'


def test_a_long_key_is_a_digest_of_the_arguments() -> None:
    long = [checked_unique(Unique()).rule(f'{{"a":"{"x" * 300}{end}"}}'.encode()).key for end in "ab"]
    assert long[0] != long[1]
    assert all(key.startswith("sha256 ") and len(key) <= 200 for key in long)


def test_a_handler_whose_key_names_no_argument_of_it_is_refused() -> None:
    handlers = Handlers()
    with pytest.raises(ConfigError, match=r"handler 'pay': args of 'unique' names 'costumer'"):

        @handlers.job(name="pay", unique=Unique(args=["costumer"]))
        async def pay(customer: int) -> None: ...

    with pytest.raises(ConfigError, match="handler 'pay': 'unique' has window and throttle"):

        @handlers.job(name="pay", unique=Unique(window=1, throttle=1))
        async def again(customer: int) -> None: ...


@pytest.mark.parametrize("unique", [Unique(), Unique(args=["customer", "token"])])
def test_a_handler_whose_key_would_show_a_secret_argument_is_refused(unique: Unique) -> None:
    """Lists and pages show keys."""
    handlers = Handlers()
    message = "handler 'pay': the key of 'unique' would show the secret argument 'token'"
    with pytest.raises(ConfigError, match=message) as raised:

        @handlers.job(name="pay", unique=unique, secret="token")
        async def pay(customer: int, token: str) -> None: ...

    assert raised.value.hint == "give 'unique' args=[...] without secret arguments, or key="
    assert handlers.get("pay") is None
    for other in (Unique(args=["customer"]), Unique(key="one")):

        @Handlers().job(name="pay", unique=other, secret="token")
        async def charge(customer: int, token: str) -> None: ...
