"""Durations and sizes: what is read, what is refused with which suggestion, and that text and value round-trip."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmaster.units import (
    DURATION_PATTERN,
    DURATION_SECONDS_MAX,
    SIZE_BYTES_MAX,
    SIZE_PATTERN,
    UnitError,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
    rounded_duration,
    rounded_size,
    rounded_us,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("30s", 30.0),
        ("5m", 300.0),
        ("250ms", 0.25),
        ("1h30m", 5400.0),
        ("2d", 172_800.0),
        ("1d2h3m4s5ms6us", 93_784.005006),
        ("10", 10.0),
        ("1.5", 1.5),
        ("1.5h", 5400.0),
        ("0.1s", 0.1),
        ("100ms", 0.1),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("5min", "5m"),
        ("30 s", "30s"),
        ("30sec", "30s"),
        ("2 hours", "2h"),
        ("1H30M", "1h30m"),
        ("5µs", "5us"),
        ("m", None),
        ("", None),
        ("-5s", None),
        ("5x", None),
        ("30m1h", None),
        ("1h1h", None),
        ("1..5s", None),
        (".5s", None),
        ("1e3", None),
        ("five", None),
        ("9" * 500, None),
        ("40000d", None),
    ],
)
def test_what_is_no_duration_is_refused_with_what_was_meant(text: str, suggestion: str | None) -> None:
    with pytest.raises(UnitError) as caught:
        parse_duration(text)
    assert caught.value.suggestion == suggestion
    assert "expected a duration" in str(caught.value)
    assert ("it cannot be negative" in str(caught.value)) == text.startswith("-")


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("128KiB", 131_072),
        ("1MB", 1_000_000),
        ("1kB", 1000),
        ("1.5GiB", 1_610_612_736),
        ("2TiB", 2 * 2**40),
    ],
)
def test_a_size_is_read_in_bytes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("128K", "128KiB"),
        ("128 KiB", "128KiB"),
        ("1mb", "1MB"),
        ("64kib", "64KiB"),
        ("1.5", None),
        ("0.3B", None),
        ("-1", None),
        ("", None),
        ("KiB", None),
        ("1EiB", None),
        ("9999999999TiB", None),
        ("9" * 500, None),
    ],
)
def test_what_is_no_size_is_refused_with_what_was_meant(text: str, suggestion: str | None) -> None:
    with pytest.raises(UnitError) as caught:
        parse_size(text)
    assert caught.value.suggestion == suggestion
    assert "expected a size" in str(caught.value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (10, "10s"), (90, "1m30s"), (5400, "1h30m"), (86_400, "1d"), (0.25, "250ms"), (3.5, "3.5s")],
)
def test_a_duration_is_written_as_a_person_would(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0"), (512, "512"), (1024, "1KiB"), (131_072, "128KiB"), (1_000_000, "1MB"), (1025, "1025")],
)
def test_a_size_is_written_as_a_person_would(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@given(st.floats(min_value=0, max_value=DURATION_SECONDS_MAX, allow_nan=False))
def test_every_duration_round_trips(seconds: float) -> None:
    text = format_duration(seconds)
    assert parse_duration(text) == seconds
    assert re.search(DURATION_PATTERN, text)


@given(st.integers(min_value=0, max_value=SIZE_BYTES_MAX))
def test_every_size_round_trips(size_bytes: int) -> None:
    text = format_size(size_bytes)
    assert parse_size(text) == size_bytes
    assert re.search(SIZE_PATTERN, text)


@given(st.text(alphabet="0123456789.dhmsu", max_size=12))
def test_pattern_and_parser_agree_on_durations(text: str) -> None:
    # Longer values than a century are the one thing the pattern cannot see.
    try:
        parse_duration(text)
        parses = True
    except UnitError as error:
        parses = "at most 100 years" in str(error)
    assert parses == bool(re.search(DURATION_PATTERN, text))


@given(st.one_of(st.text(max_size=30), st.from_regex(DURATION_PATTERN), st.from_regex(SIZE_PATTERN)))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_duration, parse_size):
        try:
            assert parse(text) >= 0
        except UnitError:
            pass


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.000_012, "12µs"),
        (0.0015, "1.5ms"),
        (0.003, "3ms"),
        (0.34, "340ms"),
        (2.5, "2.5s"),
        (59.94, "59.9s"),
        (90, "1m 30s"),
        (252, "4m 12s"),
        (240, "4m"),
        (7200, "2h"),
        (11100, "3h 5m"),
        (1051200, "12d 4h"),
        (-3, "-3.0s"),
    ],
)
def test_a_duration_for_people_has_two_figures(seconds: float, text: str) -> None:
    assert rounded_duration(seconds) == text
    assert rounded_us(seconds * 1_000_000) == text


def test_an_absent_duration_is_a_dash() -> None:
    assert rounded_us(None) == "-"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0B"), (1023, "1023B"), (1536, "1.5KiB"), (102_000_000, "97.3MiB"), (1 << 50, "1.02e+03TiB")]
)
def test_sizes_in_tables_have_three_digits(size: int, text: str) -> None:
    assert rounded_size(size) == text
