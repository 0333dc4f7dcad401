"""When the leader looks at circuit breakers, and how far."""

from __future__ import annotations

from collections.abc import Sequence

from jobmaster.model.flow.breaker import BreakerChange, BreakerState
from jobmaster.ports import BreakerLook
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader.breaker_trials import (
    DEEP_LOOK_JOBS,
    DEEP_LOOK_SECONDS,
    IDLE_SECONDS,
    LOOK_JOBS,
    LOOK_SECONDS,
    BreakerTrials,
)
from tests.support.hand_clock import HandClock


class Master:
    """One breaker."""

    def __init__(self) -> None:
        self.looks: list[BreakerLook] = []
        self.depths: list[int] = []
        self.evaluated: list[str] = []
        self.failure: Exception | None = None

    async def half_open(self) -> list[BreakerChange]:
        if self.failure is not None:
            raise self.failure
        return []

    async def choose_trials(self, depth: int) -> list[BreakerLook]:
        self.depths.append(depth)
        return self.looks

    async def evaluate(self, names: Sequence[str], *, nobody_waits: bool = False) -> list[BreakerChange]:
        assert nobody_waits
        self.evaluated += names
        return [BreakerChange(name, BreakerState.CLOSED, "", 1) for name in names]

    async def forget(self) -> int:
        return 0


class Case:
    def __init__(self) -> None:
        self.master, self.clock, self.leads = Master(), HandClock(), True
        self.trials = BreakerTrials(self.master, lambda: self.leads, self.clock, Telemetry(), EventLog())


async def test_an_agent_that_leads_again_looks_again_though_every_renewal_named_it() -> None:
    case = Case()
    case.master.looks = [BreakerLook("stripe", 0, True, 20.0)]
    assert await case.trials.tick() == 20.0
    case.leads = False  # its lease was in doubt when the breaker was to become half-open
    assert await case.trials.tick() == IDLE_SECONDS
    case.leads = True
    case.trials.kicked.clear()
    case.trials.changed()  # called by the leader when it is elected
    assert case.trials.kicked.is_set()
    case.master.looks = [BreakerLook("stripe", 1, True, None)]
    assert await case.trials.tick() == LOOK_SECONDS


async def test_while_every_breaker_is_closed_nothing_is_asked_for() -> None:
    case = Case()
    assert await case.trials.tick() == IDLE_SECONDS
    assert await case.trials.tick() == IDLE_SECONDS
    assert case.master.depths == [LOOK_JOBS]


async def test_some_looks_read_more_jobs_than_others() -> None:
    case = Case()
    case.master.looks = [BreakerLook("stripe", 0, False, None)]
    for seconds in (0.0, DEEP_LOOK_SECONDS - 1.0, 1.0, 1.0):
        case.clock.now += seconds
        await case.trials.tick()
    assert case.master.depths == [LOOK_JOBS, LOOK_JOBS, DEEP_LOOK_JOBS, LOOK_JOBS]
    assert case.master.evaluated == ["stripe"] * 4
