"""What a check against a published schema accepts, the agent that published it accepts, and the other way round."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobmaster.handlers import Handler, Handlers
from jobmaster.model.agent import HandlerSpec
from jobmaster.model.errors import InvalidArguments
from jobmaster.pipeline.datasource.rows.args_checker import ArgsChecker


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


class Circle(msgspec.Struct, tag="circle"):
    radius: int


class Square(msgspec.Struct, tag="square"):
    side: int


TYPES: tuple[Any, ...] = (
    int, float, str, bool, bytes, datetime, date, timedelta, UUID, Decimal, Point, Circle | Square,
    Literal["fast", 3], Literal[1, 2], int | None, float | None, int | str, datetime | None, int | float,
    list[int], set[int], tuple[int, str], tuple[int, ...], dict[str, int], dict[int, str], list[Point], list[datetime],
    dict[str, list[int | None]], Annotated[int, msgspec.Meta(ge=1, lt=10)], Annotated[int, msgspec.Meta(multiple_of=3)],
    Annotated[str, msgspec.Meta(min_length=1, max_length=3)], Any,
)  # fmt: skip


def handler_of(kind: Any) -> Handler:
    def work(n: Any) -> None: ...

    work.__annotations__ = {"n": kind, "return": None}
    return Handlers().add(work, name="w")


HANDLERS = [handler_of(kind) for kind in TYPES]
TEXTS = st.sampled_from([
    "", "a", "3", "3.0", "aGk=", "2030-01-31", "2030-01-31T12:00:00Z", "2030-01-31T12:00:00", "12:00:00",
    "PT5S", "P1D", "fast",
    "circle", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "1.50", "nan",
])  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-12, 12), st.integers(-12, 12).map(float), st.just(2.5), st.just(1e300),
    st.just(2**53 + 2.0), st.just(10**20), TEXTS,
)  # fmt: skip
NAMES = st.sampled_from(["x", "y", "side", "radius", "type", "1", "2", "a"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)


def accepts(handler: Handler, args: bytes) -> bool:
    try:
        handler.check(args)
    except InvalidArguments:
        return False
    return True


def checker_of(handler: Handler, *, lax: bool) -> ArgsChecker:
    spec = msgspec.json.decode(msgspec.json.encode(handler.spec), type=HandlerSpec)  # as the master gives it back
    return ArgsChecker(spec, lax=lax, limit_bytes=100_000)


STRICT = {id(handler): checker_of(handler, lax=False) for handler in HANDLERS}
LAX = {id(handler): checker_of(handler, lax=True) for handler in HANDLERS}


@settings(max_examples=500)
@given(handler=st.sampled_from(HANDLERS), value=VALUES)
def test_what_the_check_accepts_the_agent_accepts(handler: Handler, value: Any) -> None:
    args = json.dumps({"n": value}).encode()
    for checker in (STRICT[id(handler)], LAX[id(handler)]):
        checked = checker.check(args)
        if checked.problem is None:
            assert accepts(handler, checked.args), (handler.spec.schema, args, checked.args)
    if accepts(handler, args):
        checked = STRICT[id(handler)].check(args)
        assert checked.problem is None, (handler.spec.schema, args, checked.problem)


@pytest.mark.parametrize(
    ("kind", "sent", "stored"),
    [
        (int, 3.0, 3),
        (int | None, 3.0, 3),
        (list[int], [1.0, 2], [1, 2]),
        (dict[str, int], {"a": 4.0}, {"a": 4}),
        (Point, {"x": 1.0, "y": 2.0}, {"x": 1, "y": 2.0}),
        (tuple[int, str], [1.0, "a"], [1, "a"]),
        (float, 3.0, 3.0),
        (int | float, 3.0, 3.0),
    ],
    ids=str,
)
def test_a_whole_float_for_an_integer_is_stored_as_an_integer(kind: Any, sent: Any, stored: Any) -> None:
    handler = handler_of(kind)
    checked = checker_of(handler, lax=False).check(json.dumps({"n": sent}).encode())
    assert checked.problem is None
    assert json.dumps(json.loads(checked.args)) == json.dumps({"n": stored})
    handler.check(checked.args)


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf", "Infinity"])
@pytest.mark.parametrize("kind", [float, float | None, int | float])
def test_a_text_that_is_no_finite_number_is_refused(kind: Any, text: str) -> None:
    """Found by ``test_what_the_check_accepts_the_agent_accepts``: the encoder writes null for such a float."""
    checked = checker_of(handler_of(kind), lax=True).check(json.dumps({"n": text}).encode())
    assert checked.problem is not None
    assert "n" in checked.problem


def test_a_text_with_such_letters_is_stored_as_it_is() -> None:
    checked = checker_of(handler_of(str | None), lax=True).check(b'{"n":"Nancy is infinite"}')
    assert checked == (b'{"n":"Nancy is infinite"}', None)


def test_a_fraction_for_an_integer_is_refused() -> None:
    assert (
        checker_of(HANDLERS[0], lax=False).check(b'{"n":3.5}').problem == "argument 'n': expected integer, got number"
    )
