"""When an agent publishes its schedules, and what."""

from __future__ import annotations

from collections.abc import Sequence

from jobmaster.model.schedule import Schedule, ScheduleSource
from jobmaster.ports import NextUs
from jobmaster.settings.schedules import Declared
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.schedule_publisher import CHECK_SECONDS, SchedulePublisher

AGENT = b"a" * 16


class Master:
    """Notes what is published, and names what no living agent declares."""

    def __init__(self) -> None:
        self.published: list[tuple[ScheduleSource, list[str]]] = []
        self.left: list[str] = []

    async def publish(
        self, agent_id: bytes, source: ScheduleSource, schedules: Sequence[Schedule], next_us: NextUs
    ) -> list[str]:
        assert agent_id == AGENT
        self.published.append((source, [schedule.name for schedule in schedules]))
        return []

    async def to_republish(self, schedules: Sequence[Schedule]) -> list[str]:
        assert [schedule.name for schedule in schedules] == ["a", "b", "c"]
        return self.left


def publisher(master: Master) -> SchedulePublisher:
    declared = [
        Declared(Schedule(name=name, handler="h", expression="60s"), source)
        for name, source in (("a", ScheduleSource.CODE), ("b", ScheduleSource.YAML), ("c", ScheduleSource.CODE))
    ]
    return SchedulePublisher(AGENT, master, declared, EventLog())


async def test_an_agent_publishes_all_at_its_start() -> None:
    master = Master()
    await publisher(master).publish()
    assert master.published == [(ScheduleSource.CODE, ["a", "c"]), (ScheduleSource.YAML, ["b"])]


async def test_what_no_living_agent_declares_otherwise_is_published_again() -> None:
    master = Master()
    one = publisher(master)
    await one.publish()
    master.published.clear()
    assert (await one.tick(), master.published) == (CHECK_SECONDS, [])
    master.left = ["b"]
    await one.tick()
    assert master.published == [(ScheduleSource.YAML, ["b"])]


async def test_nothing_is_published_again_before_the_start() -> None:
    master = Master()
    master.left = ["b"]
    await publisher(master).tick()
    assert master.published == []
