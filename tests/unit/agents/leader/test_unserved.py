"""Maintenance task for jobs that no agent can run: logged at times, put off where they would cost other jobs something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from jobmaster.ports import DueGroup, HelpRequest, UnservedHandler
from jobmaster.rules.unserved_cause import UnservedCause
from jobmaster.settings.model import Thresholds
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader.maintenance_runner import MORE
from jobmaster_agents.leader.unserved_jobs import EVERY_SECONDS, NAME_AGAIN_SECONDS, UnservedJobsMonitor
from tests.support.hand_clock import HandClock

LOST = UnservedCause("default", 3, "lost", known=False, active=True, frozen=False)


class Master:
    def __init__(self) -> None:
        self.found: list[UnservedCause] = []
        self.off: list[tuple[DueGroup, tuple[str, ...]]] = []
        self.moves = 0
        self.returns = self.paused = self.held_back = 0
        self.moved: Counter[str] = Counter()
        self.calls: list[UnservedCause] = []

    async def find(self, overdue_seconds: float, look: int) -> list[UnservedHandler]:
        return [UnservedHandler(cause, 7, 5) for cause in self.found]

    async def put_off(
        self, group: DueGroup, handlers: Sequence[str], overdue_seconds: float, again_seconds: float, limit: int
    ) -> int:
        self.off.append((group, tuple(handlers)))
        return self.moves

    async def put_off_paused(self, overdue_seconds: float, again_seconds: float, limit: int) -> int:
        return self._moved("paused", self.paused, limit)

    async def count_paused(self, look: int) -> int:
        return self.held_back

    async def put_back(self, limit: int) -> int:
        return self._moved("back", self.returns, limit)

    def _moved(self, what: str, left: int, limit: int) -> int:
        before = self.moved[what]
        self.moved[what] += (moved := min(left - before, limit))
        return moved

    async def request_help(self, causes: Sequence[UnservedCause]) -> list[HelpRequest]:
        self.calls += causes
        return []

    async def end_help(self) -> list[HelpRequest]:
        return []


class UnservedJobsHarness:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.master = Master()
        self.telemetry = Telemetry()
        self.task = UnservedJobsMonitor(
            self.master, Thresholds(transfer_batch=10), self.clock, self.telemetry, EventLog()
        )

    async def minute(self) -> bool | None:
        self.clock.now += EVERY_SECONDS
        return await self.task.look()


async def test_a_handler_that_no_agent_has_is_logged_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    harness = UnservedJobsHarness()
    harness.master.found = [LOST, LOST._replace(priority=5)]
    for _ in range(3):
        await harness.minute()
    assert [record.getMessage() for record in caplog.records] == ["handler_unserved"] * 2
    assert vars(caplog.records[0])["jobmaster_fields"] == {
        "handler": "lost", "group": "default/medium", "jobs": 7, "reason": "no living agent has the handler 'lost'",
    }  # fmt: skip
    assert harness.telemetry.handlers_unserved == 1
    harness.clock.now += NAME_AGAIN_SECONDS
    await harness.minute()
    assert len(caplog.records) == 4
    harness.master.found = []
    await harness.minute()
    assert harness.telemetry.handlers_unserved == 0
    harness.master.found = [LOST]
    await harness.minute()
    assert len(caplog.records) == 5, "it is new again"


async def test_only_what_others_would_read_over_is_put_off() -> None:
    harness = UnservedJobsHarness()
    alone = UnservedCause("payroll", 3, "lost", known=True, active=False, frozen=False)
    harness.master.found = [LOST, LOST._replace(handler="other"), alone]
    await harness.minute()
    assert harness.master.off == [(DueGroup("default", 3), ("lost", "other"))]


@pytest.mark.parametrize(
    ("moves", "returns", "paused", "again"),
    [(10, 0, 0, MORE), (9, 201, 0, MORE), (9, 0, 201, MORE), (9, 199, 199, None), (9, 9, 9, None)],
)
async def test_it_comes_again_at_once_when_a_statement_was_full(
    moves: int, returns: int, paused: int, again: bool | None
) -> None:
    """Twenty rounds of ten jobs each at a time."""
    harness = UnservedJobsHarness()
    harness.master.found = [LOST]
    harness.master.moves, harness.master.returns, harness.master.paused = moves, returns, paused
    assert await harness.minute() is again
    assert harness.master.moved == {"back": min(returns, 200), "paused": min(paused, 200)}


async def test_help_is_asked_for_what_an_agent_could_run_and_no_operator_has_stopped() -> None:
    harness = UnservedJobsHarness()
    helped = UnservedCause("default", 1, "there", known=True, active=False, frozen=False)
    harness.master.found = [LOST, helped, helped._replace(lane="stopped", frozen=True)]
    await harness.minute()
    harness.clock.now += Thresholds().fallback_after_seconds - 2 * EVERY_SECONDS
    await harness.minute()
    assert harness.master.calls == [], "not before its time"
    await harness.minute()
    assert harness.master.calls == [helped]
    harness.master.found = []
    await harness.minute()
    harness.master.found = [helped]
    await harness.minute()
    assert harness.master.calls == [helped], "it was served meanwhile"
