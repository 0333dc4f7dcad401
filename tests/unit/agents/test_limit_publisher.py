"""When an agent publishes its limits, and what it says about those that an operator has set."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from jobmaster.model.flow.limit import LimitValues
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.limit_publisher import AGAIN_SECONDS, LimitPublisher

AGENT = b"a" * 16
LIMITS = [LimitValues("api", 2, None, None), LimitValues("mail", 3, None, None)]


class Master:
    """Counts declarations; operators have set ``set_by_others``."""

    def __init__(self) -> None:
        self.declared = 0
        self.set_by_others: list[str] = []

    async def declare(self, agent_id: bytes, limits: Sequence[LimitValues]) -> list[str]:
        assert (agent_id, limits) == (AGENT, LIMITS)
        self.declared += 1
        return self.set_by_others


def reports(caplog: pytest.LogCaptureFixture) -> list[object]:
    return [record.__dict__["jobmaster_fields"]["limits"] for record in caplog.records]


async def test_values_of_an_operator_are_reported_once_until_they_are_set_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    master = Master()
    publisher = LimitPublisher(AGENT, master, LIMITS, EventLog())
    for set_by_others in ([], ["mail"], ["mail"], ["api", "mail"], [], ["mail"]):
        master.set_by_others = set_by_others
        assert await publisher.tick() == AGAIN_SECONDS
    assert reports(caplog) == [["mail"], ["api"], ["mail"]]
    assert master.declared == 6


async def test_an_agent_without_limits_asks_nothing() -> None:
    master = Master()
    await LimitPublisher(AGENT, master, [], EventLog()).publish()
    assert master.declared == 0
