"""What the wire forms carry, and what they refuse."""

from __future__ import annotations

import datetime
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmaster.agentstore.library import sources
from jobmaster.clock import SystemClock, new_id
from jobmaster.codec import (
    DEPTH_MAX,
    ID_AT,
    cut_text,
    decode_entries,
    decode_entry,
    decode_error,
    decode_headers,
    decode_json,
    encode_args,
    encode_entry,
    encode_error,
    encode_headers,
    error_of,
)
from jobmaster.model.errors import InvalidArguments
from jobmaster.model.job import Entry, ErrorInfo, Headers

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_an_entry_comes_back_and_its_id_stands_where_the_store_functions_look_for_it() -> None:
    entry = Entry(new_id(), 3, "images.resize", b'{"a":1}', 17, b"{}", 2, 1)
    data = encode_entry(entry)
    assert data[ID_AT] == entry.id
    first, last = ID_AT.start + 1, ID_AT.stop  # Lua counts from 1 and includes the last byte
    for name in ("find", "withdraw"):
        assert f"string.sub(page[i], {first}, {last})" in sources()[name]
    assert f"at bytes {first}..{last}" in sources()["prelude"]
    assert decode_entry(data) == entry
    assert decode_entries([data, data]) == [entry, entry]


def test_bytes_that_are_no_entry_are_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_entry(b"\x98\xc4\x10short")


def test_empty_headers_are_no_bytes_at_all() -> None:
    assert encode_headers(Headers()) == b""
    assert decode_headers(b"") == Headers()
    full = Headers(tags=("a",), metadata={"k": "v"}, timeout_seconds=1.5, max_attempts=2, expires_us=3, key="k")
    assert decode_headers(encode_headers(full)) == full


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_every_json_value_survives_as_an_argument(args: dict[str, Any]) -> None:
    assert decode_json(encode_args(args)) == args


@given(st.integers())
def test_integers_of_any_size_survive(number: int) -> None:
    assert decode_json(encode_args({"n": number})) == {"n": number}


def test_nul_inside_text_is_allowed() -> None:
    assert decode_json(encode_args({"a": "x\0y"})) == {"a": "x\0y"}


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        [1, {"deep": [math.nan]}],
        (None, math.nan),
        msgspec.defstruct("Point", [("x", float)])(math.nan),
    ],
)
def test_nan_and_infinity_are_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidArguments, match=r"argument 'bad'.*cannot carry"):
        encode_args({"good": None, "bad": value})


def test_none_is_not_taken_for_nan() -> None:
    when = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert encode_args({"a": None, "b": when, "c": b"x"}) == b'{"a":null,"b":"2026-01-01T00:00:00Z","c":"eA=="}'


@pytest.mark.parametrize(
    ("value", "words"),
    [("\ud800", "lone surrogate"), (object(), "unsupported"), ({"k": {1, object()}}, "unsupported")],
)
def test_what_cannot_travel_is_refused_by_name(value: object, words: str) -> None:
    with pytest.raises(InvalidArguments, match=f"argument 'bad'.*{words}"):
        encode_args({"good": 1, "bad": value})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({1: "a", "1": "b"}, r"argument 'x' has the keys 1 and '1', which are both written as '1'"),
        ([{"deep": {2.5: 1, "2.5": 2}}], r"argument 'x'\[0\]\['deep'\] has the keys 2.5 and '2.5'"),
    ],
)
def test_keys_that_would_become_one_are_refused(value: object, words: str) -> None:
    with pytest.raises(InvalidArguments, match=words):
        encode_args({"x": value})
    assert encode_args({"x": {1: "a", 2: {"1": "b"}}}) == b'{"x":{"1":"a","2":{"1":"b"}}}'


def test_nesting_is_bounded_so_that_what_was_accepted_can_be_read_anywhere() -> None:
    assert decode_json(encode_args({"x": nested(DEPTH_MAX)})) == {"x": nested(DEPTH_MAX)}
    with pytest.raises(InvalidArguments, match="argument 'x' is nested deeper"):
        encode_args({"x": nested(DEPTH_MAX + 1)})
    with pytest.raises(InvalidArguments, match=r"argument 'x'.*nested deeper"):
        encode_args({"x": nested(100_000)})


def test_wide_is_not_deep() -> None:
    wide = [[index] for index in range(10 * DEPTH_MAX)]
    assert decode_json(encode_args({"x": wide})) == {"x": wide}


@given(st.text(max_size=3000), st.integers(min_value=0, max_value=2000))
def test_cut_text_fits_keeps_both_ends_and_is_marked(text: str, limit: int) -> None:
    cut, was_cut = cut_text(text, limit)
    assert was_cut == (len(text.encode()) > limit)
    if was_cut:
        assert f"cut to {limit}" in cut
        assert len(cut.encode()) <= max(limit, 60)
    else:
        assert cut == text


@pytest.mark.parametrize("text", ["x" * 100_000, "\x01" * 100_000, "é\ud800" * 50_000])
def test_an_error_fits_its_limit_whatever_its_text(text: str) -> None:
    data = encode_error(ErrorInfo(type="E", message=text, traceback=text), 4096)
    assert len(data) <= 4096
    assert decode_error(data).truncated


def test_an_exception_that_cannot_be_read_is_recorded_all_the_same() -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    info = error_of(Hostile())
    assert info.type.endswith("Hostile")
    assert "RuntimeError" in info.message


def test_ids_of_one_process_only_grow() -> None:
    made = [new_id() for _ in range(10_000)]
    assert made == sorted(set(made))
    assert all(len(one) == 16 and one[6] >> 4 == 7 for one in made)


def test_the_clock_goes_forward_and_agrees_with_the_ids() -> None:
    clock = SystemClock()
    assert clock.boottime() <= clock.boottime()
    assert abs(int.from_bytes(new_id()[:6], "big") * 1000 - clock.wall_us()) < 5_000_000
