"""Objectives, anomalies and cost, from figures of some weeks that are known in every detail."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobmaster.model.errors import Refused
from tests.integration.spark.steps.figures.figures_lake import (
    context_of,
    hour_of,
    hours_before,
    together,
    write_figures,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
UNTIL = datetime(2030, 3, 12, 10, 30, tzinfo=UTC)


def weeks(where: Path) -> None:
    """Five weeks of two hours a day with 100 jobs each; in the last hour waits are long, a fifth fails, and 10 expired.

    Of the earlier weeks there are the days of the week of the last 24 hours alone: nothing asks for others.
    """
    days = {UNTIL.weekday(), (UNTIL - timedelta(days=1)).weekday()}
    hours = [
        hour
        for hour in hours_before(UNTIL, 5 * 168)
        if hour.hour in (8, 9) and (hour.weekday() in days or UNTIL - hour < timedelta(days=8))
    ]
    frames = together(
        *(hour_of(hour, 100, failed=1) for hour in hours[:-1]), hour_of(hours[-1], 100, failed=20, waited_us=6e7)
    )
    frames["throughput"][-1] = {**frames["throughput"][-1], "expired": 10}
    frames["cost"] = [
        {"day": (UNTIL - timedelta(days=back)).date(), "tenant": tenant, "lane": "default", "priority": "high",
         "handler": "mail", "jobs": 10, "retries": 1, "ran_us": 3_000_000, "retried_us": 1_000_000}
        for back in range(10)
        for tenant in ("", "acme")
    ]  # fmt: skip
    write_figures(where, frames, UNTIL)


def test_objectives_anomalies_and_cost_are_those_of_the_figures(spark: SparkSession, tmp_path: Path) -> None:
    from jobmaster.pipeline.report.objectives import parse_objective
    from jobmaster.pipeline.steps.figures import AnomalyOptions, anomalies, cost, objectives

    context = context_of(spark, tmp_path)
    with pytest.raises(Refused, match="has no figures yet"):
        cost(context, ["tenant"])
    weeks(tmp_path)
    wanted = [
        parse_objective("priority=high waiting=10s share=95 name=start"),
        parse_objective("handler=mail success=true share=90"),
        parse_objective("handler=other waiting=1s share=99"),
    ]
    found = objectives(context, wanted, window_seconds=7 * 86_400, check=True)
    assert found.items is not None
    start, success, other = found.items
    assert (start["jobs"], start["missed"], start["met"]) == (14 * 100 + 10, 110, False)
    assert (start["burn_1h"], start["burn_6h"]) == (pytest.approx(20.0), pytest.approx(110 / 210 / 0.05))
    assert (success["jobs"], success["missed"], success["met"]) == (1410, 13 + 30, True)
    assert (other["jobs"], other["achieved"], other["met"]) == (0, None, True)
    assert found.failed
    assert found.summary["missed"] == ["start"]
    slow = objectives(context, wanted[1:], window_seconds=7 * 86_400, check=True, burn_limit=1.2)
    assert (slow.failed, slow.summary["burning"]) == (True, ["mail: success"])
    odd = anomalies(context, AnomalyOptions(hours=24, weeks=4, check=True))
    assert odd.items is not None
    assert odd.failed
    assert {(one["subject"], one["measure"], one["at"]) for one in odd.items} == {
        (subject, measure, "2030-03-12T09:00:00+00:00")
        for subject in ("handler mail", "default / high")
        for measure in ("share that failed", "p95 of waiting", "p95 of running")
    }
    silent = anomalies(context, AnomalyOptions(hours=1, weeks=4, threshold=1000.0, check=True))
    assert (silent.failed, silent.items) == (False, [])
    used = cost(context, ["tenant"], days=3, price=0.5).items
    assert used is not None
    assert [(line["tenant"], line["jobs"], line["ran_seconds"], line["price"]) for line in used] == [
        ("-", 30, 9.0, 4.5),
        ("acme", 30, 9.0, 4.5),
    ]
    page = (tmp_path / "reports/index.html").read_text()
    assert "Error budget that is left" in page
    assert "objectives missed" in page
    kept = json.loads((tmp_path / "_manifest/objectives.json").read_text())
    assert [one["name"] for one in kept["items"]] == [one.name for one in wanted[1:]], "of the last call"
