"""A published schema refuses what the signature it was made from refuses, and nothing else."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmaster.client.published_schema import problems
from jobmaster.codec import decode_json
from jobmaster.handlers import Handlers
from jobmaster.model.errors import InvalidArguments


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


def work(
    path: str,
    count: Annotated[int, msgspec.Meta(ge=1, lt=10)],
    colour: Colour = Colour.RED,
    points: list[Point] | None = None,
    pair: tuple[int, str] = (1, "a"),
    weights: dict[str, float] = {},  # noqa: B006 - only its schema is used
    mode: Literal["fast", "slow", 3] = "fast",
    anything: Any = None,
    short: Annotated[str, msgspec.Meta(min_length=1, max_length=3, pattern="^a")] = "a",
    few: Annotated[list[int], msgspec.Meta(min_length=1, max_length=2)] = [1],  # noqa: B006
    flag: bool = False,
) -> None: ...


HANDLER = Handlers().add(work, name="w")
SCHEMA: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(HANDLER.spec.schema))
GOOD: dict[str, Any] = {"path": "p", "count": 3}


def fits_signature(args: object) -> bool:
    try:
        HANDLER.check(msgspec.json.encode(args))
    except InvalidArguments:
        return False
    return True


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"path": 1}, "argument 'path': expected string, got integer"),
        ({"count": 0}, "argument 'count': 0 is less than 1"),
        ({"count": 10}, "argument 'count': 10 is not less than 10"),
        ({"count": True}, "argument 'count': expected integer, got boolean"),
        ({"colour": "green"}, "argument 'colour': 'green' is none of"),
        ({"points": [{"y": 1}]}, "argument 'points'[0]: missing field 'x'"),
        ({"points": [{"x": "a"}]}, "argument 'points'[0].x: expected number, got string"),
        ({"pair": [1]}, "at least 2"),
        ({"pair": ["a", "a"]}, "argument 'pair'[0]: expected integer, got string"),
        ({"weights": {"a": "b"}}, "argument 'weights'.a: expected number, got string"),
        ({"mode": "medium"}, "argument 'mode': 'medium' is none of"),
        ({"short": "b"}, "does not match"),
        ({"short": "abcd"}, "at most 3"),
        ({"few": []}, "at least 1"),
        ({"few": [1, 2, 3]}, "at most 2"),
        ({"flag": 1}, "argument 'flag': expected boolean, got integer"),
        ({"pth": "x"}, "unknown argument 'pth' (did you mean 'path'?)"),
    ],
)
def test_what_the_signature_refuses_is_named(change: dict[str, Any], words: str) -> None:
    args = {**GOOD, **change}
    assert not fits_signature(args)
    assert words in "; ".join(problems(SCHEMA, args))


def test_missing_arguments_are_named_all_at_once() -> None:
    assert problems(SCHEMA, {}) == ["missing argument 'path'", "missing argument 'count'"]


names = st.sampled_from(list(SCHEMA["properties"]))
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-3, 12)
    | st.floats(-3, 12)
    | st.sampled_from(["a", "ab", "red", "fast", ""])
)
values = leaves | st.lists(leaves, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "a"]), leaves, max_size=2)


@given(st.dictionaries(names, values | st.lists(values, max_size=2), max_size=6))
def test_schema_and_signature_agree(change: dict[str, Any]) -> None:
    args = {**GOOD, **change}
    assert (problems(SCHEMA, decode_json(msgspec.json.encode(args))) == []) == fits_signature(args)
