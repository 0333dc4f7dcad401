"""A machine whose clock differs logs it."""

from __future__ import annotations

import logging

import pytest

from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.lease.clock_check import ClockCheck
from tests.support.hand_clock import HandClock


class WallClock(HandClock):
    """A wall clock that stands."""

    us = 1_000_000_000

    def wall_us(self) -> int:
        return self.us


@pytest.fixture
def watch() -> tuple[ClockCheck, WallClock, Telemetry]:
    wall, telemetry = WallClock(), Telemetry()
    return ClockCheck(3600.0, wall, telemetry, EventLog()), wall, telemetry


def lines(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.message == "clock_skewed" for record in caplog.records)


def test_it_is_logged_once_from_a_tenth_of_the_limit_on(
    watch: tuple[ClockCheck, WallClock, Telemetry], caplog: pytest.LogCaptureFixture
) -> None:
    compared, wall, telemetry = watch
    caplog.set_level(logging.INFO, logger="jobmaster")
    for ahead, logged in ((359, 0), (361, 1), (400, 1), (0, 1), (-361, 2), (-500, 2)):
        compared.compare(wall.us, wall.us - ahead * 1_000_000)
        assert telemetry.value("clock_ahead_seconds") == ahead
        assert lines(caplog) == logged, ahead


def test_the_time_of_the_call_is_no_error(watch: tuple[ClockCheck, WallClock, Telemetry]) -> None:
    compared, wall, telemetry = watch
    sent = compared.now_us()
    wall.us += 2_000_000
    compared.compare(sent, sent + 1_500_000)
    assert telemetry.value("clock_ahead_seconds") == 0.0
    compared.compare(sent, sent + 2_500_000)
    assert telemetry.value("clock_ahead_seconds") == -0.5
    compared.compare(sent, None)
    assert telemetry.value("clock_ahead_seconds") == -0.5
