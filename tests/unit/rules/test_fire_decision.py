"""Which fires of a schedule are decided now, and how."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmaster.model.schedule import FIRE_LINES_MAX, FireOutcome, Misfire, Overlap, Schedule
from jobmaster.rules.fire_decision import FireDecision, decide_fires, newest_us
from jobmaster.rules.recurrence import Recurrence, next_fire_us, recurrence_of

SECOND = 1_000_000
HOUR = 3600 * SECOND
LEAD = 30 * SECOND
T = 1_900_000_800 * SECOND  # a full hour


def schedule(expression: str = "0 * * * *", **fields: Any) -> Schedule:
    return Schedule(name="s", handler="h", expression=expression, **({"overlap": Overlap.PARALLEL} | fields))


def decide(what: Schedule, next_us: int, now_us: int, *, queued: bool = False) -> FireDecision:
    return decide_fires(what, next_us, now_us, LEAD, queued=queued)


def outcomes(decision: FireDecision) -> list[tuple[int, str]]:
    return [((fire.nominal_us - T) // HOUR, fire.outcome.value) for fire in decision.fires]


def test_a_fire_is_decided_up_to_the_lead_before_its_time_and_not_earlier() -> None:
    assert outcomes(decide(schedule(), T, T - LEAD)) == [(0, "fired")]
    early = decide(schedule(), T, T - LEAD - 1)
    assert (early.fires, early.next_us) == ([], T)


def test_a_fire_that_is_a_little_late_is_no_misfire() -> None:
    decision = decide(schedule(misfire=Misfire.SKIP), T, T + 60 * SECOND)
    assert outcomes(decision) == [(0, "fired")]
    assert decision.next_us == T + HOUR


@pytest.mark.parametrize(
    ("misfire", "most", "expected"),
    [
        (Misfire.SKIP, 10, ["missed", "missed", "missed"]),
        (Misfire.LAST, 10, ["missed", "missed", "fired"]),
        (Misfire.ALL, 10, ["fired", "fired", "fired"]),
        (Misfire.ALL, 2, ["missed", "fired", "fired"]),
    ],
)
def test_after_an_outage_the_misfire_rule_decides(misfire: Misfire, most: int, expected: list[str]) -> None:
    decision = decide(schedule(misfire=misfire, misfire_max=most), T, T + 2 * HOUR + HOUR // 2)
    assert outcomes(decision) == [(hour, outcome) for hour, outcome in enumerate(expected)]
    assert decision.next_us == T + 3 * HOUR


def test_after_an_outage_the_next_regular_fire_is_decided_in_its_lead() -> None:
    decision = decide(schedule(misfire=Misfire.SKIP), T, T + HOUR - LEAD)
    assert outcomes(decision) == [(0, "missed"), (1, "fired")]


def test_with_an_overlap_rule_one_job_is_made_a_decision() -> None:
    what = schedule(misfire=Misfire.ALL, misfire_max=2, overlap=Overlap.SKIP)
    decision = decide(what, T, T + 2 * HOUR + HOUR // 2)
    assert outcomes(decision) == [(0, "missed"), (1, "fired")]
    assert decision.next_us == T + 2 * HOUR
    rest = decide(what, T + 2 * HOUR, T + 2 * HOUR + HOUR // 2)
    assert outcomes(rest) == [(2, "fired")]


def test_of_fires_that_wait_for_an_earlier_job_the_newest_are_kept() -> None:
    what = schedule(overlap=Overlap.QUEUE, misfire=Misfire.SKIP, misfire_max=2)
    decision = decide(what, T, T + 3 * HOUR + 1, queued=True)
    assert outcomes(decision) == [(0, "skipped"), (1, "skipped"), (2, "fired")]
    assert decision.next_us == T + 3 * HOUR


def test_a_backlog_of_millions_has_one_line_for_all_that_get_no_job() -> None:
    now = T + 100 * 86_400 * SECOND
    decision = decide(schedule("1s", misfire=Misfire.LAST), T, now)
    rest, *each = decision.fires
    assert (rest.nominal_us, rest.outcome, rest.through_us) == (T, FireOutcome.MISSED, now)
    assert [(fire.nominal_us, fire.outcome) for fire in each] == [
        (now + n * SECOND, FireOutcome.FIRED) for n in range(LEAD // SECOND + 1)
    ]
    assert decision.next_us == now + LEAD + SECOND


@pytest.mark.parametrize("missed", [FIRE_LINES_MAX, FIRE_LINES_MAX + 1])
def test_few_missed_fires_have_a_line_each_and_more_share_one(missed: int) -> None:
    decision = decide(schedule(misfire=Misfire.SKIP), T, T + missed * HOUR - HOUR // 2)
    assert len(decision.fires) == (missed if missed == FIRE_LINES_MAX else 1)
    assert decision.fires[0].through_us == (0 if missed == FIRE_LINES_MAX else decision.next_us)
    assert decision.next_us == T + missed * HOUR


@pytest.mark.parametrize("misfire", [Misfire.SKIP, Misfire.LAST])
@pytest.mark.parametrize("expression", ["* * * * *", "*/7 9-10 * * mon", "30 2 * * *", "0 0 29 2 *"])
def test_a_decision_after_an_outage_costs_few_steps(
    misfire: Misfire, expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else many schedules hold up the leader's loop, and with it the fires that are due now."""
    steps = 0
    step = Recurrence.next_us

    def counted(self: Recurrence, after_us: int) -> int | None:
        nonlocal steps
        steps += 1
        return step(self, after_us)

    what = schedule(expression, misfire=misfire)
    first = next_fire_us(what, T)
    assert first is not None
    monkeypatch.setattr(Recurrence, "next_us", counted)
    for away in (86_400, 365 * 86_400, 20 * 365 * 86_400):
        steps = 0
        decide(what, first, T + away * SECOND)
        assert steps < 80, away


def test_an_overdue_fire_of_a_former_definition_has_a_line() -> None:
    """It is no nominal time of the new one."""
    soon = decide(schedule(), T + 5 * SECOND, T + 20 * SECOND)
    assert [(fire.nominal_us, fire.outcome.value, fire.through_us) for fire in soon.fires] == [
        (T + 5 * SECOND, "missed", T + 20 * SECOND)
    ]
    assert soon.next_us == T + HOUR
    late = decide(schedule(), T + 5 * SECOND, T + 2 * HOUR)
    assert [(fire.nominal_us, fire.outcome.value, fire.through_us) for fire in late.fires] == [
        (T + 5 * SECOND, "missed", T + HOUR),
        (T + HOUR, "missed", 0),
        (T + 2 * HOUR, "fired", 0),
    ]
    assert late.next_us == T + 3 * HOUR


def test_the_jitter_moves_the_due_time_and_not_the_nominal_one() -> None:
    (fire,) = decide(schedule(jitter_seconds=60.0), T, T).fires
    assert fire.nominal_us == T
    assert T < fire.due_us < T + 60 * SECOND


def test_after_its_last_fire_a_schedule_has_ended() -> None:
    decision = decide(schedule(end_us=T + HOUR), T + HOUR, T + HOUR)
    assert (outcomes(decision), decision.next_us) == ([(1, "fired")], None)


def test_an_end_in_an_outage_leaves_no_fire_without_a_line() -> None:
    decision = decide(schedule(end_us=T + HOUR, misfire=Misfire.SKIP), T, T + 9 * HOUR)
    assert (outcomes(decision), decision.next_us) == ([(0, "missed"), (1, "missed")], None)


@given(
    every=st.integers(1, 4000),
    away=st.integers(-40, 500_000),
    misfire=st.sampled_from(Misfire),
    overlap=st.sampled_from(Overlap),
    most=st.integers(1, 5),
    queued=st.booleans(),
)
def test_no_fire_is_left_without_a_line_and_none_is_decided_twice(
    every: int, away: int, misfire: Misfire, overlap: Overlap, most: int, queued: bool
) -> None:
    """Decisions follow each other until nothing is due; their lines are all nominal times, in order, without a gap."""
    what = schedule(f"{every}s", misfire=misfire, overlap=overlap, misfire_max=most)
    recurrence = recurrence_of(what.expression, what.zone, None, None)
    first = recurrence.next_us(T)
    assert first is not None
    now, at = T + away * SECOND, first
    for _ in range(500):
        decision = decide(what, at, now, queued=queued)
        assert decision.next_us is not None
        covered = at
        for fire in decision.fires:
            assert fire.nominal_us == covered
            after = recurrence.next_us(fire.nominal_us)
            covered = fire.through_us or after or 0
        assert covered == decision.next_us
        if not decision.fires:
            break
        at = decision.next_us
    assert at > now + LEAD


@given(count=st.integers(1, 50), span=st.integers(0, 10**7))
def test_the_newest_are_found_without_reading_the_others(count: int, span: int) -> None:
    recurrence = recurrence_of("7s", "UTC", None, None)
    last = (T + span * SECOND) // (7 * SECOND) * 7 * SECOND
    expected = [us for us in range(last - (count - 1) * 7 * SECOND, last + 1, 7 * SECOND) if us > T]
    assert newest_us(recurrence, T, T + span * SECOND, count) == expected


@given(
    count=st.integers(1, 12),
    minutes=st.integers(0, 40_000),
    expression=st.sampled_from(["*/5 9-10 * * mon", "0 0 1 * *", "* 3 * * *", "59s", "0,1,30 * * * *"]),
)
def test_the_newest_of_an_irregular_recurrence_are_the_last_of_all(count: int, minutes: int, expression: str) -> None:
    recurrence, until = recurrence_of(expression, "Europe/Berlin", None, None), T + minutes * 60 * SECOND
    everything = recurrence.between_us(T, until, 1_000_000)
    assert newest_us(recurrence, T, until, count) == everything[-count:]
