"""Permits that are lent to an agent: when it asks, what it may use until it knows the answer, and what it gives back."""

from __future__ import annotations

import pytest

from jobmaster.model.flow.limit import Loan, LoanQuestion
from jobmaster_agents.state.permit_loans import (
    ASK_SECONDS,
    ASK_SOON_SECONDS,
    HOT_STARTS,
    IDLE_SECONDS,
    Borrowed,
    PermitLoans,
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
        loans.admitted(LIMIT)
    ask(loans)
    loans.answered([Loan(*LIMIT, permits, permits if share is None else share)])


def test_permits_are_borrowed_from_many_admissions_in_a_short_time_on(loans: PermitLoans, clock: HandClock) -> None:
    hot = []
    loans.on_hot = lambda: hot.append(clock.now)
    for _ in range(HOT_STARTS - 1):
        loans.admitted(LIMIT)
    clock.now += 2 * ASK_SECONDS
    for _ in range(HOT_STARTS - 1):
        loans.admitted(LIMIT)
    assert not hot
    assert not ask(loans)
    assert loans.take(LIMIT, 1) is Borrowed.NONE_LENT
    assert loans.ask_after_seconds == IDLE_SECONDS
    for _ in range(HOT_STARTS):
        loans.admitted(LIMIT)
    assert hot == [clock.now]
    assert ask(loans, waiting=3) == [LoanQuestion("api", "", 0, HOT_STARTS, 1)], "as many as were admitted, or wait"


def test_so_many_jobs_run_with_lent_permits_and_no_more(loans: PermitLoans) -> None:
    borrow(loans, 2)
    assert [loans.take(LIMIT, 1) for _ in range(3)] == [Borrowed.TAKEN, Borrowed.TAKEN, Borrowed.ALL_IN_USE]
    assert loans.give_back(LIMIT, 1) == 1
    assert loans.take(LIMIT, 1) is Borrowed.TAKEN


def test_until_the_answer_no_more_is_in_use_than_at_the_question(loans: PermitLoans) -> None:
    """The master may have lent the rest to another agent by then."""
    borrow(loans, 5)
    loans.take(LIMIT, 1)
    loans.take(LIMIT, 1)
    assert ask(loans)[0].keeps == 2
    assert loans.take(LIMIT, 1) is Borrowed.ALL_IN_USE
    loans.give_back(LIMIT, 1)
    assert loans.take(LIMIT, 1) is Borrowed.TAKEN, "what it keeps is in use again"
    assert loans.answered([Loan(*LIMIT, 4, 4)]) == [(LIMIT, 2)]
    assert loans.take(LIMIT, 1) is Borrowed.TAKEN


def test_after_a_lost_answer_it_has_what_it_kept(loans: PermitLoans) -> None:
    borrow(loans, 5)
    loans.take(LIMIT, 1)
    ask(loans)
    (question,) = ask(loans)
    assert (question.keeps, question.sequence) == (1, 3)
    assert loans.take(LIMIT, 1) is Borrowed.ALL_IN_USE


def test_what_is_more_than_its_share_is_given_back_as_jobs_end(loans: PermitLoans) -> None:
    borrow(loans, 3)
    for _ in range(3):
        loans.take(LIMIT, 1)
    ask(loans)
    loans.answered([Loan(*LIMIT, 3, 1)])
    assert loans.ask_after_seconds == ASK_SOON_SECONDS
    assert loans.give_back(LIMIT, 1) == 0
    assert loans.take(LIMIT, 1) is Borrowed.ALL_IN_USE
    loans.give_back(LIMIT, 1)
    (question,) = ask(loans)
    assert question.keeps == 1
    loans.answered([Loan(*LIMIT, 1, 1)])
    assert loans.ask_after_seconds == ASK_SECONDS


def test_a_limit_that_is_not_lent_is_asked_for_start_by_start_and_rests(loans: PermitLoans, clock: HandClock) -> None:
    borrow(loans, 0)
    assert loans.take(LIMIT, 1) is Borrowed.NONE_LENT
    for _ in range(HOT_STARTS):
        loans.admitted(LIMIT)
    assert not ask(loans)
    clock.now += 10
    for _ in range(HOT_STARTS):
        loans.admitted(LIMIT)
    assert ask(loans)


def test_what_it_does_not_use_goes_back_within_some_questions(loans: PermitLoans) -> None:
    borrow(loans, 8)
    wanted = []
    while questions := ask(loans, waiting=0):
        wanted.append(questions[0].wanted)
        loans.answered([Loan(*LIMIT, min(8, questions[0].wanted), min(8, questions[0].wanted))])
    assert wanted == sorted(wanted, reverse=True)
    assert wanted[-1] == 0
    assert len(wanted) < 20
    assert loans.take(LIMIT, 1) is Borrowed.NONE_LENT


def test_how_many_start_soon_is_known_from_the_starts(loans: PermitLoans, clock: HandClock) -> None:
    assert loans.starts_soon(LIMIT) == 0
    borrow(loans, 5)
    assert loans.starts_soon(LIMIT) == float("inf"), "not known in the first second"
    for _ in range(50):
        loans.take(LIMIT, 1)
        loans.give_back(LIMIT, 1)
    clock.now += 2
    ask(loans)
    assert loans.starts_soon(LIMIT) == pytest.approx(25)
