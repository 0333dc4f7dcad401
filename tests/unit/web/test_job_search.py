"""The search line of the jobs page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobmaster.model.errors import InputError
from jobmaster.web.pages.job_search import QUERY_CHARS_MAX, parsed_search


def test_qualifiers_are_the_filters_of_a_list() -> None:
    text = 'state:failed,cancelled handler:images.resize tag:"two words" since:2h until:2030-01-31T12:00:00Z meta.customer:7'
    assert parsed_search(text).filters == {
        "state": ["failed", "cancelled"],
        "handler": "images.resize",
        "tag": "two words",
        "since": timedelta(hours=2),
        "until": datetime(2030, 1, 31, 12, tzinfo=UTC),
        "metadata": {"customer": "7"},
    }


def test_due_times_lie_ahead_and_with_a_minus_behind() -> None:
    assert parsed_search("due-before:1h due-after:-5m").filters == {
        "due_before": timedelta(hours=1),
        "due_after": timedelta(minutes=-5),
    }


def test_digits_are_the_beginning_of_an_id() -> None:
    assert parsed_search(" 0193F2A0-11 ").job == "0193f2a011"
    assert parsed_search("").filters == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stat:failed", "did you mean 'state'"),
        ("colour:red", "there are state"),
        ("resize", "handler:resize"),
        ("abc", "4 digits"),
        ("state:failed state:held", "twice"),
        ("tag:", "for example tag:eu"),
        ("since:yesterday", "since:30m"),
        ("since:2030-01-31T12:00:00", "its zone"),
        ('tag:"eu', "quote"),
        ("0193f2a0 state:held", "id alone"),
        ("x" * (QUERY_CHARS_MAX + 1), "characters"),
        ("since:" + "9" * 500, "neither a duration"),
        ("due-before:--1h", "due-before:30m"),
        ("meta.:x", "meta.NAME"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence_with_a_remedy(text: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        parsed_search(text)
    assert said in f"{raised.value.message} {raised.value.hint}"
