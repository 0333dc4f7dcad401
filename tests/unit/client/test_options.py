"""The options of a submit: every bad one is one clear error, before anything leaves the process."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmaster.client.options import SubmitOptions, check_submit_options
from jobmaster.clock import new_id
from jobmaster.codec import decode_headers
from jobmaster.model import ids
from jobmaster.model.errors import ClockSkew, InputError, InvalidDueTime
from jobmaster.model.job import Durability, Headers, OnFull, Priority
from jobmaster.model.job_view import moment
from jobmaster.settings.model import Limits

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOW_US = int(NOW.timestamp()) * 1_000_000


def terms(**options: Any) -> Any:
    return check_submit_options(cast(SubmitOptions, options), Limits(), NOW_US)


def test_options_that_were_not_given_stay_unset() -> None:
    assert terms().headers == b""
    assert terms().due_us == 0
    assert terms().priority is None


def test_everything_given_arrives() -> None:
    said = terms(
        at=NOW + timedelta(hours=1),
        priority="high",
        lane="payroll",
        durability="master",
        tags=["a", "b"],
        metadata={"k": "v\0"},
        timeout=timedelta(seconds=9),
        max_attempts=2,
        expires=7200,
        on_full="spill",
        idempotency_key="key",
    )
    assert said.due_us == NOW_US + 3_600_000_000
    assert (said.priority, said.lane, said.durability) == (Priority.HIGH, "payroll", Durability.MASTER)
    assert said.on_full is OnFull.SPILL
    assert decode_headers(said.headers) == Headers(
        tags=("a", "b"), metadata={"k": "v\0"}, timeout_seconds=9.0, max_attempts=2,
        expires_us=NOW_US + 7_200_000_000, key="key",
    )  # fmt: skip


def test_at_most_once_travels_in_the_headers_and_allows_one_attempt() -> None:
    assert decode_headers(terms(delivery="at_most_once").headers) == Headers(at_most_once=True)
    assert b'"at_most_once":true' in terms(delivery="at_most_once", tags=["a"]).headers, "what the master looks for"
    for wrong, said in (
        ({"delivery": "at_most_once", "max_attempts": 3}, "one attempt"),
        ({"delivery": "at_most_once", "complete_time": 3}, "has one start"),
        ({"complete_time": 3, "timeout": 3}, "must be less than 'timeout'"),
        ({"complete_time": -1}, "'complete_time' must be 0"),
        ({"complete_time": 1e-9}, r"must be 0 \(no limit\), or 0.000001 to 316224000 seconds, not 1e-09"),
        ({"complete_time": timedelta.max}, "to 316224000 seconds"),
        ({"accept_time": 316_224_000.5}, "'accept_time' must be 0"),
        ({"accept_time": math.nan}, "'accept_time' must be 0"),
        ({"accept_time": "1s"}, "'accept_time' must be a number of seconds"),
        ({"accept_time": True}, "'accept_time' must be a number of seconds"),
        ({"accept_time": False}, "'accept_time' must be a number of seconds"),
        ({"cancel_slow": 1}, "'cancel_slow' must be True or False"),
        ({"delivery": "at_least_once"}, "the handler's own holds"),
        ({"delivery": "sometimes"}, "only be 'at_most_once'"),
    ):
        with pytest.raises(InputError, match=said):
            terms(**wrong)


@pytest.mark.parametrize(
    ("options", "due_us"),
    [
        ({"at": NOW - timedelta(days=9)}, 0),
        ({"at": NOW}, 0),
        ({"after": -5}, 0),
        ({"after": 0}, 0),
        ({"after": 0.5}, NOW_US + 500_000),
        ({"after": timedelta(minutes=1)}, NOW_US + 60_000_000),
        ({"at": NOW.astimezone(timezone(timedelta(hours=-11))) + timedelta(seconds=1)}, NOW_US + 1_000_000),
        ({"at": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))}, 0),
    ],
)
def test_due_times(options: dict[str, Any], due_us: int) -> None:
    assert terms(**options).due_us == due_us


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at": datetime(2026, 5, 1)}, "naive"),  # noqa: DTZ001 - the mistake itself
        ({"at": "2026-05-01"}, "aware datetime, not str"),
        ({"at": NOW, "after": 1}, "both"),
        ({"at": NOW + timedelta(days=3661)}, "3661 days ahead, the limit is 3660"),
        ({"at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))}, "days ahead"),
        ({"after": 3661 * 86400}, "days ahead"),
        ({"after": 1e300}, r"at most 1e\+12 seconds"),
        ({"after": math.nan}, "finite"),
        ({"after": math.inf}, "finite"),
        ({"after": "5m"}, "finite seconds"),
        ({"after": True}, "finite"),
        ({"expires": 0}, "not in the future"),
        ({"after": 100, "expires": 50}, "not after the due time"),
        ({"after": 100, "expires": 100}, "not after the due time"),
        ({"expires": NOW}, "not in the future"),
        ({"expires": datetime(2027, 5, 1)}, "naive"),  # noqa: DTZ001
    ],
)
def test_times_that_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidDueTime, match=words):
        terms(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"priority": "urgent"}, "valid are very_low, low, medium, high, critical"),
        ({"priority": 9}, "unknown priority 9"),
        ({"lane": "Pay Roll"}, "not the name of a lane"),
        ({"lane": 3}, "not the name of a lane"),
        ({"durability": "disk"}, "valid are store, store_fsync, master"),
        ({"on_full": "drop"}, "valid are block, raise, spill"),
        ({"tags": "abc"}, "list of texts"),
        ({"tags": ["x\n"]}, r"U\+000A"),
        ({"tags": ["x\0"]}, r"U\+0000"),
        ({"tags": ["x"] * 17}, "16 tags, 17"),
        ({"tags": ["x" * 65]}, "65 characters, the limit is 64"),
        ({"tags": [""]}, "empty"),
        ({"tags": [3]}, "must be text"),
        ({"metadata": {"k": 3}}, "metadata 'k' must be text"),
        ({"metadata": {"k\0": "v"}}, r"U\+0000"),
        ({"metadata": {"k": "\ud800"}}, "surrogate"),
        ({"metadata": {"k": "v" * 20_000}}, "bytes together, the limit is 16384"),
        ({"metadata": [1]}, "mapping"),
        ({"timeout": 0}, "more than 0"),
        ({"timeout": math.nan}, "more than 0"),
        ({"accept_time": "5s"}, "a number of seconds or a timedelta, not '5s'"),
        ({"complete_time": True}, "a number of seconds or a timedelta, not True"),
        ({"max_attempts": 0}, "at least 1"),
        ({"max_attempts": 1.5}, "whole number"),
        ({"idempotency_key": ""}, "empty"),
        ({"idempotency_key": "a\x07"}, r"U\+0007"),
        ({"idempotency_key": "x" * 201}, "201"),
        ({"job_id": "nonsense"}, "is not an id"),
        ({"job_id": b"short"}, "16 bytes"),
        ({"job_id": 7}, "is not an id"),
        ({"job_id": bytes(16)}, "not a UUIDv7"),
        ({"path": "a.png"}, "arguments of the handler go into one mapping"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        terms(**options)


def test_a_distant_due_time_has_no_hundreds_of_digits() -> None:
    with pytest.raises(InvalidDueTime) as caught:
        terms(after=1e300)
    assert len(str(caught.value)) < 200


def test_an_id_of_another_time_is_clock_skew() -> None:
    job_id = new_id()
    created_us = ids.created_ms(job_id) * 1000
    assert check_submit_options({"job_id": ids.text(job_id)}, Limits(), created_us).job_id == job_id
    for off_seconds in (-3601, 3601):
        with pytest.raises(ClockSkew, match="3601 s off"):
            check_submit_options({"job_id": job_id}, Limits(), created_us + off_seconds * 1_000_000)


@given(st.one_of(st.integers(), st.floats(), st.timedeltas(), st.integers(-(10**400), 10**400)))
def test_a_span_of_any_size_is_stored_and_read_back_or_refused(span: object) -> None:
    for name in ("expires", "after"):
        try:
            found = terms(**{name: span})
        except InputError:
            continue
        expires_us = decode_headers(found.headers).expires_us if found.headers else None
        assert expires_us is None or expires_us > NOW_US
        assert expires_us is None or moment(expires_us) is not None


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_time_that_may_be_stored_can_be_shown(us: int) -> None:
    assert (moment(us) is None) == (us == 0)
