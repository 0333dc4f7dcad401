"""What a pause refuses before anything is stored, and what its wait reports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobmaster import Handlers, InputError, InvalidDueTime, NotFound, UnknownHandler, UnknownLane, WaitTimeout, call
from jobmaster.model.pause import PauseFollower, PauseKind
from jobmaster.settings.model import ClusterSettings
from jobmaster.testing.memory.cluster import MemoryCluster, MemoryJobs

handlers = Handlers()


@handlers.job(name="images.resize")
async def resize(path: str) -> None:
    """Not called here."""


async def elsewhere() -> None:
    """Declared nowhere."""


@pytest.fixture
async def cluster() -> MemoryCluster:
    return MemoryJobs(ClusterSettings(), handlers).open(handlers=handlers)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({}, InputError, "nothing is given"),
        ({"handler": None}, InputError, "nothing is given"),
        ({"handler": "images.resize", "lane": "default"}, InputError, "2 things are given"),
        ({"handlr": "a"}, InputError, "did you mean 'handler'"),
        ({"bucket": "a"}, InputError, "give one of handler, lane, priority, tag, schedule"),
        ({"handler": "images.resizes"}, UnknownHandler, "did you mean 'images.resize'"),
        ({"handler": elsewhere}, UnknownHandler, "not declared"),
        ({"handler": "a\nb"}, InputError, "U+000A"),
        ({"lane": "defalt"}, UnknownLane, "did you mean 'default'"),
        ({"lane": "No Lane"}, InputError, "not the name of a lane"),
        ({"priority": "urgent"}, InputError, "'priority'"),
        ({"tag": ""}, InputError, "is empty"),
        ({"tag": "x" * 65}, InputError, "the limit is 64"),
        ({"schedule": "nightly", "until": 60}, InputError, "has no end"),
        ({"schedule": ""}, InputError, "is empty"),
        ({"tag": "x", "until": 0}, InvalidDueTime, "more than 0 from now"),
        ({"tag": "x", "until": float("nan")}, InvalidDueTime, "more than 0 from now"),
        ({"tag": "x", "until": True}, InvalidDueTime, "aware datetime"),
        ({"tag": "x", "until": "2h"}, InvalidDueTime, "aware datetime"),
        ({"tag": "x", "until": datetime(2030, 1, 1)}, InvalidDueTime, "naive"),  # noqa: DTZ001
        ({"tag": "x", "until": datetime(2020, 1, 1, tzinfo=UTC)}, InvalidDueTime, "not in the future"),
        ({"tag": "x", "reason": "x" * 1001}, InputError, "the limit is 1000"),
        ({"tag": "x", "reason": "a\0"}, InputError, "U+0000"),
        ({"tag": "x", "reason": 7}, InputError, "must be text"),
        ({"tag": "x", "timeout": "30s"}, InputError, "'timeout' must be 0 seconds or more, not '30s'"),
        ({"tag": "x", "timeout": -1}, InputError, "0 seconds or more"),
        ({"tag": "x", "timeout": float("nan")}, InputError, "0 seconds or more"),
        ({"tag": "x", "timeout": True}, InputError, "0 seconds or more"),
    ],
)
async def test_what_cannot_work_is_one_error_and_stores_nothing(
    cluster: MemoryCluster, given: dict[str, Any], error: type[InputError], says: str
) -> None:
    with pytest.raises(error) as raised:
        await cluster.pause(**given)
    assert says in f"{raised.value.message} {raised.value.hint}"
    assert await cluster.pauses() == []


async def test_a_wrong_timeout_of_a_resume_ends_no_pause(cluster: MemoryCluster) -> None:
    await cluster.pause(tag="x")
    with pytest.raises(InputError, match="0 seconds or more"):
        await cluster.resume(tag="x", timeout=timedelta(seconds=1))  # type: ignore[arg-type]
    assert len(await cluster.pauses()) == 1


async def test_what_is_paused_is_named_as_the_cluster_knows_it(cluster: MemoryCluster) -> None:
    await cluster.pause(handler=resize, reason="why", actor="ann")
    await cluster.pause(lane="default", until=timedelta(hours=1))
    await cluster.pause(priority=3)
    await cluster.pause(tag="x")
    await cluster.pause(handler="not.yet", force=True)
    await cluster.pause(lane="later", force=True)
    found = {(each.kind, each.value) for each in await cluster.pauses()}
    assert found == {
        (PauseKind.HANDLER, "images.resize"),
        (PauseKind.HANDLER, "not.yet"),
        (PauseKind.LANE, "default"),
        (PauseKind.LANE, "later"),
        (PauseKind.PRIORITY, "medium"),
        (PauseKind.TAG, "x"),
    }
    first = (await cluster.pauses())[0]
    assert (first.reason, first.actor) == ("why", "ann")
    assert (await cluster.pauses())[2].until_at is not None


async def test_a_resume_says_whether_there_was_a_pause(cluster: MemoryCluster) -> None:
    await cluster.pause(tag="x")
    assert (await cluster.resume(tag="x")).changed
    assert not (await cluster.resume(tag="x")).changed
    assert not (await cluster.resume(handler="never.there")).changed, "what no agent has any more can be resumed"
    assert await cluster.pauses() == []


async def test_a_schedule_is_paused_as_its_own_methods_do(cluster: MemoryCluster) -> None:
    await cluster.schedules.put("nightly", "0 3 * * *", call(resize, "a.png"))
    assert (await cluster.pause(schedule="nightly", reason="why", actor="ann")).changed
    assert (await cluster.schedules.get("nightly")).paused_at is not None
    assert await cluster.pauses() == [], "those are about jobs"
    assert (await cluster.resume(schedule="nightly")).changed
    assert not (await cluster.resume(schedule="nightly")).changed
    for change in (cluster.pause, cluster.resume):
        with pytest.raises(NotFound, match="weekly"):
            await change(schedule="weekly")


class _Followers:
    """Agents that obey one after another."""

    def __init__(self, pauses: Any, obeying: list[int]) -> None:
        self._pauses = pauses
        self._obeying = obeying
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pauses, name)

    async def followers(self, version: int) -> list[PauseFollower]:
        obeying = self._obeying[min(self.calls, len(self._obeying) - 1)]
        self.calls += 1
        return [PauseFollower(bytes([n]) * 16, f"agent-{n}", "here", 40 + n, n < obeying) for n in range(5)]


@pytest.fixture
def followed(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> Any:
    def follow(*obeying: int) -> _Followers:
        followers = _Followers(cluster.master.pauses, list(obeying))
        monkeypatch.setattr(type(cluster.master), "pauses", followers)
        return followers

    return follow


async def test_a_pause_returns_when_every_agent_obeys(cluster: MemoryCluster, followed: Any) -> None:
    followers = followed(1, 3, 5)
    change = await cluster.pause(tag="x")
    assert (change.agents, change.obeying, followers.calls) == (5, 5, 3)
    assert change.seconds > 0.0


async def test_a_pause_that_does_not_wait_says_how_many_obey_already(cluster: MemoryCluster, followed: Any) -> None:
    followers = followed(2)
    change = await cluster.pause(tag="x", timeout=0)
    assert (change.agents, change.obeying, followers.calls) == (5, 2, 1)


@pytest.mark.parametrize("resumes", [False, True])
async def test_agents_that_do_not_obey_in_time_are_named(cluster: MemoryCluster, followed: Any, resumes: bool) -> None:
    await cluster.pause(tag="x")
    followed(1)
    change = cluster.resume if resumes else cluster.pause
    with pytest.raises(WaitTimeout, match=r"4 of 5 agents .* agent-1 \(pid 41 on here\), .* and 1 more") as raised:
        await change(tag="x", timeout=0.05)
    assert "stored" in raised.value.message
    assert len(await cluster.pauses()) == (0 if resumes else 1)
