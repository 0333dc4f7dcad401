"""The patch that takes the safety out, for the measurement of its price."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.safety_cost import PATCH, PatchDoesNotApply, apply, compared, unsafe_tree
from tests.benchmarks.test_commands import measured

ROOT = Path(__file__).parents[2]


def test_the_patch_applies_and_takes_the_guards_out() -> None:
    with unsafe_tree() as tree:
        for line in PATCH.read_text().splitlines():
            if line.startswith("--- a/"):
                changed = line.removeprefix("--- a/")
                assert (tree / changed).read_text() != (ROOT / changed).read_text()
        claim = (tree / "jobmaster/agentstore/lua/claim.lua").read_text()
        assert "RPUSH" not in claim
        assert "refusal(" not in claim


def test_a_patch_that_does_not_fit_is_named(tmp_path: Path) -> None:
    for room in ("jobmaster", "agents"):
        shutil.copytree(ROOT / room, tmp_path / room)
    (tmp_path / "jobmaster/agentstore/lua/claim.lua").write_text("-- rewritten\n")
    with pytest.raises(PatchDoesNotApply, match=r"unsafe\.patch does not apply"):
        apply(tmp_path)


@pytest.mark.parametrize(("cpu_seconds", "cost"), [(0.0, None), (0.5, 0.0)])
def test_a_run_shorter_than_a_tick_of_the_cpu_clock_has_no_cost_in_cpu(cpu_seconds: float, cost: float | None) -> None:
    one = {"jobs_per_second": 1000.0, "cpu_seconds": {"agents": cpu_seconds}}
    assert compared({"safe": [one], "unsafe": [one]}, 100)["cost_in_cpu"] == cost


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_both_trees_drain_in_turn() -> None:
    found = measured("benchmarks.safety_cost", "--jobs", "3000", "--runs", "1")
    assert {"cost", "jobs_per_second", "unsafe_jobs_per_second"} <= found.keys()
