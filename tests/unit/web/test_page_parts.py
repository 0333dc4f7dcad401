"""Parts of pages: charts, the graph of a workflow, the horizon of the held jobs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from jobmaster.model.flow.workflow import RunsOn, StepState, StepView, WorkflowState, WorkflowView
from jobmaster.web.pages.charts import columns, sparkline, workflow_graph
from jobmaster.web.pages.flow_pages import levels_of
from jobmaster.web.pages.rendering import number
from jobmaster.web.pages.watch_pages import horizon_of

HOSTILE = '"><script>alert(1)</script>'


def step(number: int, *parents: int, **given: Any) -> StepView:
    fields = {"name": f"step {number}", "state": StepState.PENDING, "runs_on": RunsOn.SUCCESS, **given}
    return StepView(number=number, parents=parents, handler="h", job=None, tries=0, **fields)


def workflow(*steps: StepView) -> WorkflowView:
    return WorkflowView(
        id=UUID(int=1), name="w", state=WorkflowState.RUNNING, started_us=0, ended_us=None, steps_total=len(steps),
        steps_ended=0, steps_failed=0, steps=steps,
    )  # fmt: skip


def test_a_step_stands_behind_the_last_of_its_parents() -> None:
    found = workflow(step(1), step(2, 1), step(3, 1), step(4, 2, 3), step(5, 1, 4), step(6))
    assert levels_of(found) == [[1, 6], [2, 3], [4], [5]]


def test_a_circle_of_steps_ends() -> None:
    assert levels_of(workflow(step(1), step(2, 3), step(3, 2))) == [[1]]


def test_names_in_charts_are_text() -> None:
    graph = workflow_graph(workflow(step(1, name=HOSTILE)), [[1]])
    for chart in (graph, columns([(HOSTILE, [("p1", 3)])], HOSTILE), sparkline([1, 2], HOSTILE)):
        assert "<script" not in chart
        assert "&lt;script" in chart


def test_a_line_of_nothing_or_of_zeros_is_drawn() -> None:
    assert all("polyline" in sparkline(values, "x") for values in ([], [0.0], [0.0, 0.0]))


def test_held_jobs_fall_into_bands_and_minutes() -> None:
    rows = [
        {"priority": 3, "band": 0, "jobs": 5},  # due
        {"priority": 3, "band": 1, "jobs": 7},  # within the first minute
        {"priority": 5, "band": 2, "jobs": 11},  # within the second one
        {"priority": 1, "band": 61, "jobs": 13},  # after an hour
        {"priority": 1, "band": 64, "jobs": 17},  # after seven days
    ]
    found = horizon_of(rows, 1_900_000_000_000_000)
    sums = {name: sum(size for _, size in parts) for name, parts in found.bands}
    assert sums == {
        "overdue": 5, "1 min": 7, "10 min": 11, "1 h": 0, "6 h": 13, "24 h": 0, "7 days": 0, "later": 17
    }  # fmt: skip
    assert (found.total, found.overdue, found.most, found.most_minute) == (53, 5, 11, 1)
    assert len(found.minutes) == 60


@pytest.mark.parametrize(
    ("value", "text"), [(None, "\u2013"), (0, "0"), (1234567, "1\u202f234\u202f567"), (2.5, "2.5")]
)
def test_an_unknown_figure_is_a_dash_and_never_a_zero(value: float | None, text: str) -> None:
    assert number(value) == text
