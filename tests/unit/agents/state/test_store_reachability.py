"""Which stores answer, and how a silent one is found to answer again."""

from __future__ import annotations

import asyncio

import pytest

from jobmaster.agentstore.errors import OutOfMemory
from jobmaster.model.errors import JobMasterError, StoreRefused, Unavailable
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.state import store_reachability
from jobmaster_agents.state.store_reachability import IDLE_SECONDS, PING_EVERY_SECONDS, StoreReachability
from tests.support.hand_clock import HandClock


class Store:
    def __init__(self) -> None:
        self.failure: JobMasterError | None = None
        self.silent = False
        self.pings = 0

    async def ping(self) -> None:
        self.pings += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure


class ReachabilityHarness:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.stores = {"one": Store(), "two": Store()}
        self.answered: list[str] = []
        self.telemetry = Telemetry()
        names = ["one", "two", "late"]
        self.reachability = StoreReachability(
            names, self.stores, self.clock, self.answered.append, self.telemetry, EventLog()
        )


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_reachability, "PING_SECONDS", 0.01)


async def test_no_ping_is_sent_while_every_store_answers() -> None:
    harness = ReachabilityHarness()
    harness.reachability.joined("late")
    assert await harness.reachability.tick() == IDLE_SECONDS
    assert [store.pings for store in harness.stores.values()] == [0, 0]


async def test_a_store_that_failed_is_silent_until_a_ping_is_answered() -> None:
    harness = ReachabilityHarness()
    harness.stores["one"].silent = True
    harness.reachability.failed("one", Unavailable("no answer within 5 s"))
    assert harness.reachability.kicked.is_set()
    assert not harness.reachability.answers("one")
    assert harness.reachability.answers("two")
    for _ in range(3):
        assert await harness.reachability.tick() == PING_EVERY_SECONDS
        harness.clock.now += 1.0
    assert harness.reachability.silent_seconds("one") == 3.0
    assert harness.telemetry.value("stores_silent") == 2, "it, and the one that has not joined"
    harness.stores["one"].silent = False
    await harness.reachability.tick()
    assert harness.reachability.answers("one")
    assert harness.answered == ["one"]
    assert harness.reachability.silences("one") == 1
    assert harness.stores["two"].pings == 0


async def test_a_call_that_failed_for_another_server_costs_one_ping() -> None:
    harness = ReachabilityHarness()
    harness.reachability.failed("one", TimeoutError())
    await harness.reachability.tick()
    assert harness.reachability.answers("one")
    assert harness.answered == ["one"]
    assert harness.reachability.silences("one") == 0, "it was never silent: what was put off keeps its delay"


@pytest.mark.parametrize("error", [OutOfMemory("full"), StoreRefused("evicts keys")])
async def test_an_answer_is_no_silence(error: JobMasterError) -> None:
    harness = ReachabilityHarness()
    harness.reachability.failed("one", error)
    assert harness.reachability.answers("one")
    harness.reachability.failed("one", Unavailable("away"))
    harness.stores["one"].failure = StoreRefused("wrong password")
    await harness.reachability.tick()
    assert harness.reachability.answers("one"), "a refusal of the PING is an answer, too"


async def test_a_store_that_has_not_joined_is_silent_since_the_start() -> None:
    harness = ReachabilityHarness()
    harness.clock.now += 7.0
    assert harness.reachability.silent_seconds("late") == 7.0
    await harness.reachability.tick()  # it is Joining that asks it
    harness.stores["late"] = Store()
    harness.reachability.joined("late")
    assert harness.answered == ["late"]
    assert harness.reachability.answers("late")


def test_a_store_outside_the_configuration_counts_as_silent() -> None:
    harness = ReachabilityHarness()
    assert not harness.reachability.answers("unheard of")
