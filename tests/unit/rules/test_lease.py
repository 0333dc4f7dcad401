"""The lease rules, over a whole grid of times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmaster.rules import lease
from jobmaster.rules.lease import LeaseStatus, Term
from jobmaster.settings.model import Leases

SECONDS = st.floats(min_value=0.2, max_value=600.0)
MOMENT = st.floats(min_value=0.0, max_value=1e6)


@given(MOMENT, SECONDS)
def test_deadlines_come_in_order_and_before_the_masters(sent: float, seconds: float) -> None:
    term = lease.term(sent, seconds)
    assert sent < term.soft_until < term.hard_until < term.trusted_until
    assert term.trusted_until <= sent + seconds  # the master counts from later


@pytest.mark.parametrize(
    ("now", "lease_status"),
    [
        (0.0, LeaseStatus.TRUSTED),
        (4.999, LeaseStatus.TRUSTED),
        (5.0, LeaseStatus.SOFT),
        (8.999, LeaseStatus.SOFT),
        (9.0, LeaseStatus.ENDED),
        (9.999, LeaseStatus.ENDED),
        (1e9, LeaseStatus.ENDED),
    ],
)
def test_the_status_changes_exactly_at_the_deadlines(now: float, lease_status: LeaseStatus) -> None:
    assert lease.lease_status(now, lease.term(0.0, 10.0)) is lease_status


def test_without_a_term_nothing_is_allowed() -> None:
    assert lease.lease_status(0.0, None) is LeaseStatus.ENDED


@pytest.mark.parametrize("sent", [0.0, 1.0, 5.0, 8.9])
@pytest.mark.parametrize("took", [0.0, 0.1, 1.0, 4.0, 8.9, 9.0, 9.1, 50.0])
def test_a_reply_counts_only_before_both_deadlines(sent: float, took: float) -> None:
    present = lease.term(0.0, 10.0)
    replied = sent + took
    answer = lease.renewed(present, sent, replied, 10.0)
    if replied >= present.hard_until or took >= 9.0:
        assert answer is None
    else:
        assert answer == lease.term(sent, 10.0)


def test_trust_counts_from_the_sending_not_from_the_reply() -> None:
    answer = lease.renewed(lease.term(0.0, 10.0), 3.0, 7.0, 10.0)
    assert answer is not None
    assert answer.trusted_until == 13.0


def test_an_older_answer_never_shortens_the_term() -> None:
    present = lease.term(5.0, 10.0)
    assert lease.renewed(present, 3.0, 6.0, 10.0) == present


def test_the_first_lease_needs_no_earlier_one() -> None:
    assert lease.renewed(None, 2.0, 3.0, 10.0) == Term(7.0, 11.0, 12.0)
    assert lease.renewed(None, 2.0, 11.0, 10.0) is None


@given(MOMENT, st.lists(st.tuples(SECONDS, st.floats(0.0, 20.0)), max_size=20))
def test_trust_never_outlives_what_the_master_granted(start: float, steps: list[tuple[float, float]]) -> None:
    """The master's own deadline is at least sent + lease for the last call it answered; trust must end before it."""
    term = lease.renewed(None, start, start, 10.0)
    now, granted = start, start + 10.0
    for wait, took in steps:
        now += wait % 12.0
        sent, now = now, now + took
        granted = max(granted, sent + 10.0)  # it may have been executed at once and answered late
        answer = lease.renewed(term, sent, now, 10.0)
        if answer is None:
            break
        term = answer
        assert term.trusted_until <= granted


def test_a_crash_is_noticed_at_most_two_seconds_after_the_lease() -> None:
    """The promise of ``leases.lease``: the failure detector runs once in ``leader_renew``."""
    assert Leases().leader_renew_seconds <= 2.0


def test_three_renewals_fit_into_a_lease_before_it_becomes_hard() -> None:
    """One failed renewal is no event: the third of three still comes before the deadline."""
    defaults = Leases()
    assert defaults.renew_seconds * 2 < lease.term(0.0, defaults.lease_seconds).hard_until
    assert defaults.renew_seconds < lease.term(0.0, defaults.lease_seconds).soft_until


def test_a_small_cluster_keeps_its_timing() -> None:
    for agents in (0, 1, 50, 300):
        assert lease.lease_timing(agents, 10.0, 3.0, 100.0) == (10.0, 3.0)


@given(st.integers(1, 60_000), st.floats(1.0, 60.0), st.floats(1.0, 1000.0))
def test_all_renewals_together_stay_under_the_budget(agents: int, seconds: float, budget: float) -> None:
    found = lease.lease_timing(agents, seconds, seconds / 3.0, budget)
    assert found.lease_seconds >= seconds
    assert found.renew_seconds == pytest.approx(found.lease_seconds / 3.0)
    assert agents / found.renew_seconds <= budget * 1.0001 or found.lease_seconds == pytest.approx(600.0)


def test_one_agent_more_or_less_changes_nothing() -> None:
    assert lease.lease_timing(1000, 10.0, 3.0, 100.0) == lease.lease_timing(1001, 10.0, 3.0, 100.0)


@given(MOMENT, SECONDS, SECONDS, st.floats(0.0, 100.0))
def test_a_shorter_lease_is_trusted_less_from_the_moment_of_sending(
    first: float, longer: float, shorter: float, later: float
) -> None:
    present = lease.term(first, longer)
    sent = first + later
    found = lease.shortened(present, sent, shorter)
    assert found.trusted_until <= max(sent + shorter, present.trusted_until)
    assert found.trusted_until == min(present.trusted_until, lease.term(sent, shorter).trusted_until)
