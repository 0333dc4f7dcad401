"""Ledgers of seeds and of jobs through faults: what is kept, what is refused, what the sums say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import ledger
from tests.ledger import FaultRun, NotKept, SeedRun, append, check_new, faults_summary, next_seed, read, seeds_summary


def seed_run(commit: str = "a", first: int = 1, last: int = 4, violations: int = 0, seeds: int = 3) -> SeedRun:
    return SeedRun(
        commit=commit, day="2030-01-31", first=first, last=last, seeds=seeds, faultless_seeds=1, violations=violations,
        seeds_per_cpu_second=7.0,
    )  # fmt: skip


def fault_run(acknowledged: int, lost: int = 0, violations: int = 0, mended: str = "") -> FaultRun:
    return FaultRun(
        commit="a", day="2030-01-31", program="tests.chaos", form="mixed", seed=7, load_seconds=1.0,
        acknowledged=acknowledged, lost=lost, excused=1, violations=violations, mended=mended,
    )  # fmt: skip


def test_a_line_is_added_and_none_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "seeds.json"
    append(path, seed_run())
    append(path, seed_run("b", 5, 8))
    assert read(path, SeedRun) == [seed_run(), seed_run("b", 5, 8)]
    assert len(path.read_text().splitlines()) == 4, "one run, one line"


def test_the_next_seed_is_one_that_no_commit_has_played() -> None:
    assert next_seed([]) == 1
    assert next_seed([seed_run(last=20), seed_run("b", last=8)]) == 21


@pytest.mark.parametrize(("first", "last"), [(1, 4), (4, 9), (2, 3), (0, 1)])
def test_seeds_are_counted_once_at_a_commit(first: int, last: int) -> None:
    check_new([seed_run()], "b", first, last)
    check_new([seed_run()], "a", 5, 9)
    with pytest.raises(NotKept, match="seeds 1 to 4 of commit a are kept already"):
        check_new([seed_run()], "a", first, last)


@pytest.mark.parametrize("found", ["unknown", "0123456789ab+changes"])
def test_a_tree_without_a_commit_keeps_nothing(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "commit", lambda: found)
    with pytest.raises(NotKept, match="commit the product's changes first"):
        ledger.committed()


def test_the_goal_of_seeds_is_reached_without_a_violation_only() -> None:
    many = seed_run("b", 5, 2_000_000, seeds=ledger.SEEDS_WANTED)
    assert seeds_summary([seed_run(), many]) == ("1,000,005 of 1,000,000 seeds at 2 commits, 0 with a violation", True)
    assert not seeds_summary([seed_run()])[1]
    assert not seeds_summary([many, seed_run(violations=1)])[1]


def test_the_goal_of_jobs_is_reached_when_none_is_lost_only() -> None:
    text, reached = faults_summary([fault_run(6_000_000), fault_run(5_000_000)])
    assert reached
    assert text.startswith("11,000,000 of 10,000,000 acknowledged jobs at 1 commits, 0 lost, 2 excused")
    assert not faults_summary([])[1]
    assert not faults_summary([fault_run(20_000_000, lost=1)])[1]
    assert not faults_summary([fault_run(20_000_000, violations=1)])[1]
    text, reached = faults_summary([fault_run(20_000_000, violations=1, mended="b: what it was"), fault_run(1)])
    assert reached
    assert "0 broken promises, 1 mended" in text
    assert not faults_summary([fault_run(20_000_000, lost=1, mended="b: what it was")])[1], "a lost job stays lost"


def test_the_kept_ledgers_can_be_read() -> None:
    assert read(ledger.SEEDS, SeedRun)
    assert read(ledger.ACKNOWLEDGED, FaultRun)
