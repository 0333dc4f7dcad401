"""Objectives: what is read, what is refused, the error budget and its burn."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobmaster.model.errors import InputError
from jobmaster.pipeline.report.histograms import GAMMA, bins_within
from jobmaster.pipeline.report.objectives import HourOfPromise, Promise, parse_objective, read_objectives, result_of

HALF = parse_objective("waiting=1s share=90")


def test_an_objective_is_read_with_its_scope_and_covers_what_that_names() -> None:
    one = parse_objective("lane=mail priority=high waiting=500ms share=99.9%")
    assert (one.promise, one.within_us) == (Promise.WAITING, 500_000.0)
    assert one.share == pytest.approx(0.999)
    assert one.scope == {"lane": "mail", "priority": "high"}
    assert one.name == "mail high: waiting within 500ms"
    assert parse_objective("handler=bill success=true share=99 name='bills work'").name == "bills work"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("priority=high share=99", "needs one of waiting, running, total, success"),
        ("waiting=1s total=2s share=99", "needs one of"),
        ("waiting=1s share=100", "no percentage above 0 and below 100"),
        ("waiting=1s", "no percentage"),
        ("waiting=soon share=99", "expected a duration"),
        ("priority=urgent waiting=1s share=99", "'urgent' is no priority"),
        ("handel=x waiting=1s share=99", "'handel' is no word of an objective"),
        ("waiting=1s share=99 name='x", "cannot be read"),
        ("success=no share=99", "success is 'no'"),
    ],
)
def test_what_is_wrong_is_named(text: str, error: str) -> None:
    with pytest.raises(InputError, match=error):
        parse_objective(text)


def test_a_file_has_the_words_of_the_option_and_errors_have_their_place(tmp_path: Path) -> None:
    path = tmp_path / "objectives.yaml"
    path.write_text("objectives:\n  - {priority: critical, waiting: 1s, share: 99.9}\n  - {success: true, share: 95}\n")
    assert read_objectives(path) == [
        parse_objective("priority=critical waiting=1s share=99.9"),
        parse_objective("success=true share=95"),
    ]
    for text, error in (
        ("objectives:\n  - {waiting: 1s, share: 0}\n", r"objectives.yaml:2:5: share '0'"),
        ("objectives:\n  - [waiting]\n", "objectives.yaml:2:5: an objective is a mapping"),
        ("objective: []\n", "has no list 'objectives'"),
        ("objectives: [{waiting: 1s, waiting: 2s}]\n", "duplicate key"),
        ("objectives: []\nwindow: 30d\n", "unknown key 'window'"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=error):
            read_objectives(path)
    with pytest.raises(InputError, match="cannot read"):
        read_objectives(tmp_path / "missing.yaml")


def test_the_budget_is_what_the_share_leaves_of_all_jobs_of_the_window() -> None:
    hours = [
        HourOfPromise(90, 100, 0),
        HourOfPromise(93, 100, 100),
        HourOfPromise(99, 100, 85),
        HourOfPromise(100, 9, 0),
    ]
    one = result_of(HALF, hours, until_hour=100, window_hours=8)
    assert (one.jobs, one.kept, one.missed) == (200, 185, 15), "hours before and after the window do not count"
    assert one.allowed == pytest.approx(20.0)
    assert one.achieved == pytest.approx(0.925)
    assert one.met
    assert [hour for hour, _ in one.left] == [93, 99]
    assert [left for _, left in one.left] == pytest.approx([1.0, 0.25])
    assert not result_of(HALF, [HourOfPromise(99, 10, 8)], until_hour=100, window_hours=8).met
    assert result_of(HALF, [HourOfPromise(99, 10, 9)], until_hour=100, window_hours=8).met, (
        "exactly the share is enough"
    )


def test_a_burn_rate_is_against_what_may_be_missed_and_two_times_must_agree() -> None:
    quiet = [HourOfPromise(hour, 100, 100) for hour in range(94, 99)]
    spike = result_of(HALF, [*quiet, HourOfPromise(99, 100, 40)], until_hour=100, window_hours=100)
    assert list(spike.burn) == pytest.approx([6.0, 1.0, 1.0])
    assert spike.burns(0.9)
    assert not spike.burns(2.0), "over six hours it is slow"
    over = result_of(HALF, [HourOfPromise(95, 100, 0)], until_hour=100, window_hours=100)
    assert over.burn[0] is None
    assert list(over.burn[1:]) == pytest.approx([10.0, 10.0])
    assert not over.burns(1.0), "nothing ended in the last hour"
    nothing = result_of(HALF, [], until_hour=100, window_hours=100)
    assert (nothing.met, nothing.achieved, nothing.burn) == (True, None, (None, None, None))


def test_a_bin_counts_as_kept_only_when_all_its_values_are_within_the_bound() -> None:
    assert GAMMA ** bins_within(1_000_000) <= 1_000_000 < GAMMA ** (bins_within(1_000_000) + 1)
    assert [bins_within(GAMMA**bin_) for bin_ in (0, 1, 100, 900)] == [0, 1, 100, 900]
    assert bins_within(0.0) == 0
