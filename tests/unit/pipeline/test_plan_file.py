"""The kept plan: what is read back, the one error of each mistake, and what a review finds."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobmaster.model.errors import InputError, NotFound, Refused
from jobmaster.pipeline.lake.lake import Lake
from jobmaster.pipeline.plan.facts import Facts
from jobmaster.pipeline.plan.findings import Finding, compare_with
from jobmaster.pipeline.plan.model import Daily, Group, ObjectiveStatus
from jobmaster.pipeline.plan.plan_file import (
    PLAN_FORMAT,
    PlanDocument,
    PlannedGroup,
    PlanWaits,
    read_plan,
    record_of,
    write_plan,
)
from jobmaster.pipeline.plan.plan_yaml import difference, present_settings, proposed_settings, yaml_of
from jobmaster.pipeline.plan.transient_threshold import ScheduledJobs
from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import AgentSettings, BucketCounts, SlotCounts

NAME = "0" * 31 + "a"
HIGH: Group = ("payroll", "high")
NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)


def _waits(p99: float) -> PlanWaits:
    return PlanWaits(p50=p99 / 10, p95=p99 / 2, p99=p99, objective=p99)


def _group(**changes: Any) -> PlannedGroup:
    group = PlannedGroup(
        lane="payroll", priority="high", objective_us=1e6, jobs=9000, present=2, present_slots=50, buckets=5, slots=50,
        measured=_waits(2e6), model=_waits(2e6), difference=1.0, agrees=True, delay_us=0.0, unexplained_us=0.0, factor=1.0,
        growth=1.0, busiest_hour=1000.0, as_is=_waits(2e6), waits_us=_waits(8e5), interval_us=None, utilisation=0.5,
        screened=4, curve=((2, 2e6), (5, 8e5)), backtest=None, status=ObjectiveStatus.MET, why="",
    )  # fmt: skip
    return msgspec.structs.replace(group, **changes)


def _document(**changes: Any) -> PlanDocument:
    document = PlanDocument(
        format=PLAN_FORMAT, cluster="uid-1", name=NAME, made_at=NOW, first=NOW, last_day="2026-03-01", quantile=0.99,
        hours=24, kind="default", present_agents=1, agents=1, limits="", ahead=28, what_if="", groups=(_group(),),
        threshold_seconds=300.0, said="", notes=(), diff="", yaml=f"# Plan {NAME}, made for a test\n",
    )  # fmt: skip
    return msgspec.structs.replace(document, **changes)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path / "lake"))
    write_plan(lake, _document())
    return lake


def test_a_plan_is_found_by_its_name_its_document_and_its_configuration(lake: Lake, tmp_path: Path) -> None:
    assert lake.local is not None
    for named in (NAME, str(lake.local / f"plans/{NAME}.json"), str(lake.local / f"plans/{NAME}.yaml")):
        assert read_plan(lake, named, "uid-1") == _document()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": PLAN_FORMAT + 1}, "newer version"),
        ({"format": 1}, "earlier version"),
        ({"groups": "none"}, "is no plan"),
    ],
)
def test_a_document_of_another_form_is_refused_with_its_reason(
    lake: Lake, change: dict[str, Any], message: str
) -> None:
    lake.write_json(f"plans/{NAME}.json", record_of(_document()) | change)
    with pytest.raises(InputError, match=message):
        read_plan(lake, NAME, "uid-1")


def test_a_plan_of_another_cluster_is_refused(lake: Lake) -> None:
    with pytest.raises(Refused, match=r"another cluster \(uid-1, ours is uid-2\)"):
        read_plan(lake, NAME, "uid-2")


def test_a_file_that_is_no_plan_is_refused(lake: Lake, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("agents: {}\n")
    with pytest.raises(InputError, match="is no plan"):
        read_plan(lake, str(other), "uid-1")
    with pytest.raises(InputError, match="No such file"):
        read_plan(lake, str(tmp_path / "missing.yaml"), "uid-1")
    with pytest.raises(NotFound, match="has no plan"):
        read_plan(lake, "f" * 32, "uid-1")
    (tmp_path / "broken.json").write_text('{"format": 2')
    with pytest.raises(InputError, match="is no plan"):
        read_plan(lake, str(tmp_path / "broken.json"), "uid-1")


# ---------------------------------------------------------------- configuration


def test_an_objective_that_no_number_meets_is_marked_in_the_file(tmp_path: Path) -> None:
    agent = AgentSettings(lanes={"default": BucketCounts(low=2)}, lane_slots={"default": SlotCounts(low=9)})
    present = present_settings("default", agent, 2, 300.0)
    choice = _group(status=ObjectiveStatus.NOT_MET, why="3s are predicted", slots=100)
    proposed = proposed_settings(present, [choice], 4, 30.0)
    out = tmp_path / "buckets.yaml"
    out.write_text(yaml_of(present, proposed, agent, [choice], ["Made."]))
    assert "high: 2  # NOT MET: 3s are predicted; 5 in all" in out.read_text()
    settings = load_settings(out, {}, []).settings
    found = settings.agents["default"]
    counts = found.bucket_counts()
    assert (counts["payroll"].high, counts["payroll"].low, counts["default"].low) == (2, 1, 2)
    assert (found.lane_slots["payroll"].high, found.lane_slots["default"].low) == (100, 9)
    assert (found.processes, settings.thresholds.transient_threshold_seconds) == (2, 30.0)
    lines = difference(present, proposed, agent).splitlines()
    assert [line for line in lines if line[:1] == "+" and "high" in line] == ["+        high: 2", "+        high: 100"]
    assert "-  transient_threshold: 5m" in lines
    assert "+  transient_threshold: 30s" in lines


def test_a_plan_that_changes_nothing_has_no_difference() -> None:
    agent = AgentSettings(lanes={"payroll": BucketCounts(high=5)})
    present = present_settings("default", agent, 1, 300.0)
    assert difference(present, proposed_settings(present, [_group()], 1, 300.0), agent) == ""


# ---------------------------------------------------------------- review


def _facts(wait_bin: int, *, buckets: int = 5, busiest: float = 1000.0, group: Group = HIGH) -> Facts:
    waits: Daily = {NOW.date(): [(wait_bin, 1000)]}
    return Facts(
        first=NOW, last=NOW, starts={group: {NOW: busiest}}, busy_hours={group: {NOW}}, loads={},
        measured={group: waits}, buckets={group: buckets}, agents=1, observed={},
        scheduled=ScheduledJobs(0, 0, 0, 0.0, 0.0), later=0.0,
    )  # fmt: skip


TENTH, SECOND, FOUR_SECONDS = 581, 698, 768
"""Bins of about 0.1, 1 and 4 seconds."""


@pytest.mark.parametrize(
    ("facts", "finding", "missed"),
    [
        (_facts(TENTH), Finding.SHORTER, False),
        (_facts(SECOND - 12), Finding.AS_PREDICTED, False),
        (_facts(FOUR_SECONDS), Finding.LONGER, True),
        (_facts(FOUR_SECONDS, busiest=2000.0), Finding.OTHER_LOAD, True),
        (_facts(FOUR_SECONDS, buckets=3), Finding.OTHER_CONFIGURATION, True),
        (_facts(FOUR_SECONDS, buckets=2), Finding.AS_PREDICTED, False),
    ],
    ids=["shorter", "as predicted", "longer", "more jobs", "other buckets", "never applied"],
)
def test_a_review_says_what_became_of_each_prediction(facts: Facts, finding: Finding, missed: bool) -> None:
    """0.8 s are predicted with 5 buckets, 2 s with the 2 of before; the objective is 1 s."""
    document = _document(groups=(_group(waits_us=PlanWaits(p50=8e5, p95=8e5, p99=8e5, objective=8e5),
                                        as_is=PlanWaits(p50=2e6, p95=2e6, p99=2e6, objective=2e6)),))  # fmt: skip
    (found,) = compare_with(document, facts)
    assert (found.finding, found.missed) == (finding, missed)


def test_a_review_names_groups_without_jobs_and_groups_that_the_plan_did_not_know() -> None:
    found = compare_with(_document(), _facts(TENTH, group=("default", "low")))
    assert [(one.group, one.finding) for one in found] == [
        (("default", "low"), Finding.NOT_PLANNED), (HIGH, Finding.NO_JOBS)
    ]  # fmt: skip


def test_the_record_of_a_plan_is_plain_data() -> None:
    assert json.loads(json.dumps(record_of(_document())))["groups"][0]["status"] == "met"
