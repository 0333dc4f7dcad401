"""Since when rows can have been written that a look at a server sees and the last one did not."""

from __future__ import annotations

from datetime import UTC, datetime

from jobmaster.rules.new_rows import Look, next_look


def _at(minute: int) -> datetime:
    return datetime(2026, 1, 1, 12, minute, tzinfo=UTC)


def _looks(*running: set[int]) -> list[datetime | None]:
    """What each look of a minute answers when these transactions run at it."""
    last: Look | None = None
    found = []
    for minute, numbers in enumerate(running):
        last, since = next_look(last, _at(minute), min(numbers, default=100), numbers)
        found.append(since)
    return found


def test_without_open_transactions_rows_are_new_since_the_last_look() -> None:
    assert _looks(set(), set(), set()) == [None, _at(0), _at(1)]


def test_rows_of_a_transaction_that_has_ended_are_new_since_the_look_before_its_first_one() -> None:
    assert _looks(set(), {7}, {7, 8}, {8}, set()) == [None, _at(0), _at(1), _at(0), _at(1)]


def test_rows_of_a_transaction_that_ran_at_the_first_look_can_be_of_any_time_once_it_has_ended() -> None:
    assert _looks({7}, {7}, set(), set()) == [None, _at(0), None, _at(2)]
