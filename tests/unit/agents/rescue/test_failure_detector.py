"""When the failure detector certifies agents dead, and how often it costs a query."""

from __future__ import annotations

from jobmaster.clock import new_id
from jobmaster.model.ids import AgentId
from jobmaster.rules.lease import term
from jobmaster.settings.model import Leases
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.rescue.failure_detector import FailureDetector
from jobmaster_agents.state.ownership import Ownership
from tests.support.hand_clock import HandClock, trusted


class DetectorMaster:
    def __init__(self) -> None:
        self.dead: list[bytes] = []
        self.certifiers: list[bytes] = []

    async def certify_dead(self, certifier: bytes, limit: int) -> list[bytes]:
        self.certifiers.append(certifier)
        dead, self.dead = self.dead[:limit], self.dead[limit:]
        return dead


def detector_of(
    clock: HandClock, master: DetectorMaster, ownership: Ownership
) -> tuple[FailureDetector, list[str], Telemetry]:
    kicks: list[str] = []
    telemetry = Telemetry()
    failure_detector = FailureDetector(
        ownership, master, Leases(), clock, lambda: kicks.append("rescue"), telemetry, EventLog()
    )
    return failure_detector, kicks, telemetry


async def test_an_agent_certifies_none_in_its_first_lease() -> None:
    master = DetectorMaster()
    failure_detector, _, _ = detector_of(HandClock(), master, trusted(HandClock()))
    assert await failure_detector.tick() == Leases().lease_seconds
    assert master.certifiers == []


async def test_an_idle_agent_asks_once_per_lease() -> None:
    clock, master = HandClock(), DetectorMaster()
    failure_detector, kicks, _ = detector_of(clock, master, trusted(clock))
    await failure_detector.tick()
    for _ in range(5):
        assert await failure_detector.tick() == Leases().lease_seconds
    assert len(master.certifiers) == 5
    assert kicks == []


async def test_a_certificate_starts_the_rescue() -> None:
    clock, master = HandClock(), DetectorMaster()
    failure_detector, kicks, telemetry = detector_of(clock, master, trusted(clock))
    await failure_detector.tick()
    master.dead = [AgentId(new_id()), AgentId(new_id())]
    await failure_detector.tick()
    assert kicks == ["rescue"]
    assert telemetry.agents_certified == 2


async def test_many_dead_are_certified_without_a_pause() -> None:
    clock, master = HandClock(), DetectorMaster()
    failure_detector, _, telemetry = detector_of(clock, master, trusted(clock))
    await failure_detector.tick()
    master.dead = [new_id() for _ in range(100)]
    assert await failure_detector.tick() == 0.0
    assert await failure_detector.tick() == Leases().lease_seconds
    assert telemetry.agents_certified == 100


async def test_an_agent_without_a_trusted_lease_certifies_none() -> None:
    clock, master = HandClock(), DetectorMaster()
    ownership = Ownership(new_id())
    ownership.trust(term(clock.now, 10.0))
    failure_detector, _, _ = detector_of(clock, master, ownership)
    await failure_detector.tick()
    clock.now += 6.0  # past half its lease
    await failure_detector.tick()
    ownership.fence("certificate seen")
    await failure_detector.tick()
    assert master.certifiers == []
