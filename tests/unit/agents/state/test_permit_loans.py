"""Permits that are lent to an agent: when it asks, what it may use until it knows the answer, and what it gives back."""

from __future__ import annotations

from math import inf

import pytest

from jobmaster.model.flow.limit import LimitKey, Loan, LoanQuestion
from jobmaster_agents.state.permit_loans import (
    ASK_SECONDS,
    ASK_SOON_SECONDS,
    HOT_STARTS,
    IDLE_SECONDS,
    Borrowed,
    PermitLoans,
    soon_seconds,
)
from tests.support.hand_clock import HandClock

LIMIT = ("api", "")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def loans(clock: HandClock) -> PermitLoans:
    return PermitLoans(lambda: clock.now)


def ask(loans: PermitLoans, waiting: int = 100) -> list[LoanQuestion]:
    return loans.questions(lambda _: waiting)


def borrow(loans: PermitLoans, permits: int, share: int | None = None) -> None:
    """So many permits are lent."""
    for _ in range(HOT_STARTS):
        loans.take(LIMIT, 1)
    ask(loans, waiting=0)
    answer(loans, permits, permits if share is None else share)


def answer(loans: PermitLoans, permits: int, share: int) -> tuple[int, list[LimitKey]]:
    """How many permits are free now, and limits that are not lent."""
    free, refused = loans.answered([Loan(*LIMIT, permits, share)])
    return sum(count for _, count in free), refused


def test_permits_are_borrowed_when_many_jobs_are_to_start_in_a_short_time(loans: PermitLoans, clock: HandClock) -> None:
    """They are not admitted first: where many agents ask for permits one by one, none of them gets many."""
    hot = []
    loans.on_hot = lambda: hot.append(clock.now)
    for _ in range(2):
        assert {loans.take(LIMIT, 1) for _ in range(HOT_STARTS - 1)} == {Borrowed.NONE_LENT}
        clock.now += 2 * ASK_SECONDS
    assert not hot
    assert not ask(loans)
    assert loans.ask_after_seconds == IDLE_SECONDS
    found = [loans.take(LIMIT, 1) for _ in range(HOT_STARTS + 2)]
    assert found[HOT_STARTS - 1 :] == [Borrowed.ALL_IN_USE] * 3, "these wait for the answer"
    assert hot == [clock.now]
    assert ask(loans, waiting=3) == [LoanQuestion("api", "", 0, HOT_STARTS, 1)], "as many as were to start, or wait"


def test_a_job_asks_for_its_start_when_the_answer_does_not_come(loans: PermitLoans, clock: HandClock) -> None:
    for _ in range(HOT_STARTS):
        loans.take(LIMIT, 1)
    ask(loans)
    assert loans.take(LIMIT, 1) is Borrowed.ALL_IN_USE
    clock.now += 30
    assert loans.take(LIMIT, 1) is Borrowed.NONE_LENT


def test_an_agent_with_a_share_waits_for_what_others_give_back(loans: PermitLoans, clock: HandClock) -> None:
    borrow(loans, 0, 4)
    assert loans.take(LIMIT, 1) is Borrowed.ALL_IN_USE
    assert loans.starts_soon(LIMIT) == inf
    clock.now += 9
    ask(loans)
    assert answer(loans, 0, 4) == (0, [])
    assert loans.starts_soon(LIMIT) == inf
    clock.now += 2
    assert loans.starts_soon(LIMIT) == 0, "the runs of others are long ones"
    assert answer(loans, 4, 4) == (4, [])
    assert loans.take(LIMIT, 1) is Borrowed.TAKEN
    assert loans.starts_soon(LIMIT) == inf, "its rate is not known yet"


def test_so_many_jobs_run_with_lent_permits_and_no_more(loans: PermitLoans) -> None:
    borrow(loans, 2)
    assert [loans.take(LIMIT, 1) for _ in range(3)] == [Borrowed.TAKEN, Borrowed.TAKEN, Borrowed.ALL_IN_USE]
    assert loans.give_back(LIMIT, 1) == 1
    assert loans.take(LIMIT, 1) is Borrowed.TAKEN


def test_until_the_answer_no_more_is_in_use_than_the_question_keeps(loans: PermitLoans, clock: HandClock) -> None:
    """The master may have lent the rest to another agent by then."""
    borrow(loans, 5)
    loans.take(LIMIT, 1)
    clock.now += 2 * ASK_SECONDS
    (question,) = ask(loans, waiting=1)
    assert question.keeps == 4, "of ten that it wanted, and which are less with time"
    assert [loans.take(LIMIT, 1) for _ in range(4)] == [Borrowed.TAKEN] * 3 + [Borrowed.ALL_IN_USE]
    loans.give_back(LIMIT, 1)
    assert loans.take(LIMIT, 1) is Borrowed.TAKEN, "what it keeps is in use again"
    assert answer(loans, 5, 5) == (1, [])
    assert loans.take(LIMIT, 1) is Borrowed.TAKEN


def test_after_a_lost_answer_it_has_what_it_kept(loans: PermitLoans, clock: HandClock) -> None:
    borrow(loans, 5)
    clock.now += 4 * ASK_SECONDS
    (question,) = ask(loans, waiting=0)
    assert question.keeps == 2
    (question,) = ask(loans)
    assert (question.keeps, question.sequence) == (2, 3), "the master may have left it no more"
    assert [loans.take(LIMIT, 1) for _ in range(3)] == [Borrowed.TAKEN] * 2 + [Borrowed.ALL_IN_USE]


def test_what_is_more_than_its_share_is_given_back_as_jobs_end(loans: PermitLoans) -> None:
    borrow(loans, 3)
    for _ in range(3):
        loans.take(LIMIT, 1)
    ask(loans)
    answer(loans, 3, 1)
    assert loans.ask_after_seconds == ASK_SOON_SECONDS
    assert loans.give_back(LIMIT, 1) == 0
    assert loans.take(LIMIT, 1) is Borrowed.ALL_IN_USE
    loans.give_back(LIMIT, 1)
    (question,) = ask(loans)
    assert question.keeps == 1
    pauses = []
    for _ in range(5):
        answer(loans, 1, 1)
        pauses.append(loans.ask_after_seconds)
        ask(loans)
    assert pauses == sorted(pauses)
    assert pauses[-1] == ASK_SECONDS


def test_jobs_of_a_limit_that_is_not_lent_ask_for_their_starts_and_it_rests(
    loans: PermitLoans, clock: HandClock
) -> None:
    for _ in range(HOT_STARTS):
        loans.take(LIMIT, 1)
    ask(loans)
    assert answer(loans, 0, 0) == (0, [LIMIT])
    assert {loans.take(LIMIT, 1) for _ in range(HOT_STARTS)} == {Borrowed.NONE_LENT}
    assert not ask(loans)
    clock.now += 10
    for _ in range(HOT_STARTS):
        loans.take(LIMIT, 1)
    assert ask(loans)


def test_what_it_does_not_use_goes_back_with_time_however_often_it_asks(loans: PermitLoans, clock: HandClock) -> None:
    took = {}
    for pause in (ASK_SECONDS, ASK_SOON_SECONDS):
        borrow(loans, 8)
        began, wanted = clock.now, []
        while questions := ask(loans, waiting=0):
            clock.now += pause
            wanted.append(questions[0].wanted)
            most = min(8, questions[0].wanted)
            answer(loans, most, most)
        assert wanted == sorted(wanted, reverse=True)
        assert wanted[-1] == 0
        took[pause] = clock.now - began
        assert loans.take(LIMIT, 1) is Borrowed.NONE_LENT
        clock.now += 10
    assert took[ASK_SOON_SECONDS] == pytest.approx(took[ASK_SECONDS], abs=2 * ASK_SECONDS)


def test_how_many_start_soon_is_known_from_the_starts(loans: PermitLoans, clock: HandClock) -> None:
    assert loans.starts_soon(LIMIT) == 0
    borrow(loans, 5)
    assert loans.starts_soon(LIMIT) == inf, "not known in the first seconds"
    ask(loans)
    for _ in range(50):
        loans.take(LIMIT, 1)
        loans.give_back(LIMIT, 1)
    clock.now += soon_seconds(LIMIT)
    ask(loans)
    assert loans.starts_soon(LIMIT) == pytest.approx(50)
