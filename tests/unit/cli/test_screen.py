"""The screen of ``jobmaster top``, and the rate of submits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from jobmaster.cli.commands.terminal.figures import WINDOW_SECONDS, Figures, SubmitRate
from jobmaster.cli.commands.terminal.screen import NAME_CELLS_MAX, PANELS, View, cut, lines_of, share, sorted_rows
from jobmaster.cli.tables import display_width
from jobmaster.model.agent import AgentState
from jobmaster.model.bucket import BucketState
from jobmaster.model.inspection.views import (
    AgentStatistics,
    AgentView,
    Backlog,
    Buckets,
    BucketView,
    HandlerFigures,
    Overview,
)
from jobmaster.model.job import Priority

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def agent(number: int, running: int) -> AgentView:
    busy = HandlerFigures(handler="images.resize", runs_per_second=3.0, failed_per_second=1.0, run_seconds=0.5)
    statistics = AgentStatistics(
        slots=8, running=running, started_per_second=4.0, ended_per_second=3.0, failed_per_second=0.5, handlers=(busy,)
    )
    given: dict[str, Any] = dict.fromkeys(
        ("ended_reason", "ended_at", "clock_ahead_seconds", "statistics_at"), None
    )  # fmt: skip
    return AgentView(
        id=UUID(int=number), name=f"agent-{number}", host="host", pid=1, version="1", mode="full", store="default", weight=1,
        state=AgentState.ACTIVE, leads=False, lanes=(), handlers=(), drain_requested=False, beats=1, lease_seconds=10.0,
        lease_left_seconds=9.0, started_at=NOW, buckets=1, settings={}, statistics=statistics, **given,
    )  # fmt: skip


def bucket(number: int, pending: int | None) -> BucketView:
    return BucketView(
        id=UUID(int=number), store="default", lane="日本" * 20, priority=Priority.HIGH, state=BucketState.ACTIVE, epoch=1,
        owner=UUID(int=1), owner_name="agent-1", owner_state=AgentState.ACTIVE, owner_leased=True, changed_at=NOW,
        unchanged_seconds=1.0, pending=pending, assigned=pending, claimed_lists=0, kept=0, rows_assigned=0, rows_processing=0,
    )  # fmt: skip


def seen(agents: int = 3, buckets: int = 30) -> Figures:
    group = Backlog(
        lane="default", priority=Priority.HIGH, buckets=1, frozen=0, pending=5, assigned=0, running=0, kept=0, held=7, due=2,
        overdue=0, oldest_seconds=3.0,
    )  # fmt: skip
    overview = Overview(
        cluster="shop", at=NOW, leader=None, agents_alive=agents, agents_known=agents, slots=8, running=2,
        ended_per_second=3.0, backlog=(group,), ready=7, drain_seconds=None, buckets={}, pauses=(), schedules_paused=(),
        warnings=("the \x1b[2J is paused",),
    )  # fmt: skip
    seen_buckets = Buckets(buckets=tuple(bucket(n, None if n == 0 else n) for n in range(buckets)), silent=())
    return Figures(overview, [agent(number, number % 3) for number in range(agents)], seen_buckets, 12.5)


def test_the_screen_fits_every_terminal_and_text_cannot_steer_it() -> None:
    for width, height in ((20, 5), (80, 24), (200, 60)):
        lines = lines_of(seen(), View(), width, height)
        assert len(lines) == height
        for line in lines:
            for code in ("\x1b[1m", "\x1b[7m", "\x1b[0m"):
                line = line.replace(code, "")
            assert display_width(line) <= width
            assert "\x1b" not in line


def test_the_screen_has_the_cluster_its_agents_its_deepest_buckets_and_its_handlers() -> None:
    lines = lines_of(seen(), View(), 200, 60)
    text = "\n".join(lines)
    assert "CLUSTER shop   agents 3/3   leader none   running 2/8" in lines[0]
    assert "submitted 12.5/s   started 12/s   ended 9/s   failed 1.5/s   ready 7   held 7   oldest due 3.0s" in lines[1]
    handlers = lines[next(at for at, line in enumerate(lines) if "HANDLERS" in line) + 2]
    assert handlers.split() == ["images.resize", "9", "3", "500ms", "4.5"]
    depths = [line.split()[4] for line in lines if "00000000-" in line]
    assert depths == [*(str(2 * number) for number in range(29, 0, -1)), "-"], "one store did not answer"
    assert "! no answer" in lines_of(seen(), View(), 200, 60, "no answer")[1]
    assert "BUCKETS by DEPTH" in text
    assert max(line.index("high") for line in lines if "00000000-" in line) <= NAME_CELLS_MAX + 2


def test_keys_choose_a_table_sort_it_reverse_and_end() -> None:
    view = View()
    assert [view.press(key) for key in ("\t", "s", "r", " ", "x", "")] == [True] * 6
    assert (view.chosen, view.paused) == (1, True)
    column = PANELS[1].columns[view.sorts[1] or 0]
    text = "\n".join(lines_of(seen(), view, 200, 60))
    assert f"AGENTS by {column.title} ascending" in text
    assert "PAUSED" in text
    assert not view.press("q")
    assert [row["n"] for row in sorted_rows([{"n": 1}, {"n": None}, {"n": 3}], "n", ascending=False)] == [3, 1, None]
    for _ in range(20):
        for key in ("\t", "s"):
            view.press(key)
        lines_of(seen(), view, 80, 24)


def test_lines_are_shared_where_there_are_few() -> None:
    assert share([2, 3, 40, 1], 20) == [2, 3, 14, 1]
    assert share([9, 9, 9, 9], 6) == [2, 2, 1, 1]
    assert share([9, 9], -5) == [1, 1]
    assert share([0, 0], 8) == [0, 0]
    assert cut("日本語", 5) == "日本"


def test_submits_are_what_waits_more_and_what_has_started() -> None:
    rate = SubmitRate()
    assert rate.note(0.0, 100, 0.0) is None
    assert rate.note(1.0, 150, 10.0) == 60.0
    assert rate.note(2.0, 0, 10.0) == 0.0, "jobs that go away are no submits"
    for second in range(3, 40):
        last = rate.note(float(second), 10 * second, 5.0)
    assert last == 15.0
    assert WINDOW_SECONDS < 37


def test_priorities_are_sorted_by_their_levels() -> None:
    rows = [{"priority": priority.label} for priority in Priority]
    levels = [priority.label for priority in sorted(Priority)]
    assert [row["priority"] for row in sorted_rows(rows[::-1], "priority", ascending=True)] == levels
    assert [row["priority"] for row in sorted_rows(rows, "priority", ascending=False)] == levels[::-1]
