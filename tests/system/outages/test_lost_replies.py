"""Every write of an agent is carried out and its answer lost, the first time and the third: the agent lives on.

``OutcomeUnknown`` is neither success nor failure. Whoever meets it sends the same again, or leaves what it made to those who
tidy up; in no case is a job lost, run to two outcomes, or stuck, and in no case does the process end, for that would make a
rescue of every job it holds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from jobmaster.embedded import PostgresServer, ValkeyServer
from jobmaster.model.job import JobState
from tests.crash_points import jobs
from tests.crash_points.fixture import FAULTY, HEAL_SECONDS, HEALTHY, PREY, FaultRig, Work
from tests.crash_points.ports import Action, Order
from tests.support.waiting import eventually

pytestmark = pytest.mark.cluster

AT_WORK = (
    "store.claim",
    "store.settle",
    "store.assign",
    "store.beat",
    "master.copy_final",
    "master.record_final",
    "master.hold",
    "master.retry_here",
    "master.persist",
    "master.onboard",
    "master.renew",
    "master.tick",
)
"""Calls that a working agent makes all the time."""
QUICK_SUITE = {"store.claim", "master.copy_final", "master.persist"}
"""Cases that are not left out of the fast run."""
IN_A_RESCUE = (
    "master.take_lost",
    "store.fence",
    "store.read_page",
    "store.remove_page",
    "master.rescue_page",
    "master.sweep",
    "store.close_if_empty",
    "master.close_drained",
)
KEEPING_HOUSE = ("master.forget_buckets", "store.delete_bucket", "master.drop_bucket", "store.known_buckets")
ON_LEAVING = (
    "master.resign",
    "master.move_bucket",
    "store.close_intake",
    "store.close_if_empty",
    "master.hold",
    "master.end_agent",
)
AT_THE_START = (
    "master.register",
    "master.create_buckets",
    "store.open_bucket",
    "master.acquire",
    "master.ensure_partitions",
)

REPLACING = ("master.move_bucket", "master.create_buckets", "store.open_bucket")


@pytest.fixture(scope="module")
async def rig(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, valkey_server: ValkeyServer
) -> AsyncIterator[FaultRig]:
    made = await FaultRig.start(
        tmp_path_factory.mktemp("replies"), postgres_server.dsn, valkey_server.url, [FAULTY, HEALTHY, PREY]
    )
    yield made
    await made.stop()


@pytest.fixture(autouse=True)
def afterwards(rig: FaultRig, tmp_path: Path) -> Iterator[None]:
    """A test that failed leaves no order and no closed gate to the next one."""
    yield
    rig.withdraw_all()
    (tmp_path / "gate").touch()


def lose(rig: FaultRig, call: str, *occurrences: int, match: str = "") -> list[str]:
    """Orders to lose the answers of these calls; their names."""
    names = [f"{call} {occurrence}" for occurrence in occurrences]
    for name, occurrence in zip(names, occurrences, strict=True):
        rig.give(name, Order(call, Action.LOSE_REPLY, occurrence, match))
    return names


@pytest.mark.parametrize(
    "call", [call if call in QUICK_SUITE else pytest.param(call, marks=pytest.mark.slow) for call in AT_WORK]
)
async def test_at_work(rig: FaultRig, call: str) -> None:
    pid = rig.faulty.agent_pid()
    names = lose(rig, call, 1, 3)
    work = await rig.work_until(*names)
    await rig.healed(work, rescues_max=0)
    assert rig.faulty.agent_pid() == pid, rig.tails()


@pytest.mark.slow
async def test_of_everything_at_once(rig: FaultRig) -> None:
    pid = rig.faulty.agent_pid()
    names = [name for call in AT_WORK if call != "store.beat" for name in lose(rig, call, 2, 4)]
    work = await rig.work_until(*names)
    await rig.healed(work, rescues_max=0)
    assert rig.faulty.agent_pid() == pid, rig.tails()


@pytest.mark.slow
async def test_of_release(rig: FaultRig) -> None:
    """Three puts are refused before they are sent, so the rows go back; whether they did is not known."""
    pid = rig.faulty.agent_pid()
    args = {"path": str(rig.path("witness"))}
    for occurrence in (1, 2, 3):
        rig.give(f"refused {occurrence}", Order("store.assign", Action.FAIL, occurrence))
    lost = lose(rig, "master.release", 1)
    receipts = [await rig.client.submit(jobs.quick, args, durability="master", after=0.3) for _ in range(8)]
    work = Work()
    work.add("given back", receipts, JobState.SUCCEEDED, 1)
    rig.acknowledged += work.ids
    await rig.struck(lost[0])
    await rig.healed(work, rescues_max=0)
    assert rig.faulty.agent_pid() == pid, rig.tails()


@pytest.mark.slow
@pytest.mark.parametrize("call", IN_A_RESCUE)
async def test_in_a_rescue(rig: FaultRig, call: str, tmp_path: Path) -> None:
    """The rescuer asks again and drains the bucket itself."""
    pid = rig.faulty.agent_pid()
    before = len(rig.witnessed("witness"))
    work = await rig.prey_work(tmp_path / "gate")

    async def began() -> bool:
        return len(rig.witnessed("witness")) >= before + 4

    await eventually(began, HEAL_SECONDS, "four running jobs")
    for name in (HEALTHY, PREY):
        rig.give("wait", Order("master.take_lost", Action.HOLD), to=name)
    names = lose(rig, call, 1, 3, match="Bucket(" if call == "master.take_lost" else "")
    await rig.kill_agent(PREY)
    await rig.struck(names[0])

    async def drained() -> bool:
        return not await rig.fetch("SELECT FROM bucket WHERE state IN ('LOST', 'DRAINING')")

    await eventually(drained, HEAL_SECONDS, "the rescue by the only one who may")
    for name in (HEALTHY, PREY):
        rig.withdraw("wait", to=name)
    rig.withdraw(names[1])
    (tmp_path / "gate").touch()
    await rig.healed(work, rescues_max=1)
    assert rig.faulty.agent_pid() == pid, rig.tails()


@pytest.mark.slow
@pytest.mark.parametrize("call", KEEPING_HOUSE)
async def test_keeping_house(rig: FaultRig, call: str) -> None:
    """Buckets of a dead agent are forgotten in the end, and their keys with them."""
    pid = rig.faulty.agent_pid()
    lost = [row["id"] for row in await rig.fetch("SELECT id FROM bucket WHERE lane = 'prey' AND state = 'ACTIVE'")]
    names = lose(rig, call, 1, 3)
    await rig.kill_agent(PREY)
    await rig.struck(names[0])
    rig.withdraw(names[1])

    async def forgotten() -> bool:
        return not await rig.fetch("SELECT FROM bucket WHERE id = ANY($1)", lost)

    await eventually(forgotten, HEAL_SECONDS, "the end of the tombstones")
    await rig.healed(await rig.work(), rescues_max=0)
    assert rig.faulty.agent_pid() == pid, rig.tails()


@pytest.mark.slow
@pytest.mark.parametrize("call", ON_LEAVING)
async def test_on_leaving(rig: FaultRig, call: str) -> None:
    """It leaves in order all the same: no rescue, no attempt, and it is not started again."""
    leaving = await rig.agent_id(FAULTY)
    work = await rig.crowd()
    # The last call again and again, until a renewal is due meanwhile: that the row has ended is no certificate then.
    names = lose(rig, call, *((1, 2, 3, 4, 5) if call == "master.end_agent" else (1, 3)))
    exits = rig.faulty.count("child_exited")
    await rig.client.master.members.request_drain(leaving, actor="test")  # type: ignore[attr-defined]
    await rig.struck(names[0])
    assert await rig.faulty.wait_exit(HEAL_SECONDS) == 0, rig.tails()
    assert rig.faulty.count("child_exited") == exits + 1, rig.tails()
    for name in names:
        rig.withdraw(name)
    await rig.launch(FAULTY).wait_event("agent_started", seconds=HEAL_SECONDS)
    await rig.healed(work, rescues_max=0)


@pytest.mark.slow
@pytest.mark.parametrize("call", AT_THE_START)
async def test_at_the_start(rig: FaultRig, call: str) -> None:
    """An agent that cannot tell whether it was registered may be replaced by another one, but not go round in circles."""
    started = rig.faulty.count("agent_started")
    names = lose(rig, call, 1)
    await rig.kill_agent(FAULTY)
    await rig.struck(names[0])
    await rig.faulty.wait_event("agent_started", started + 1, seconds=HEAL_SECONDS)
    work = await rig.work()
    await rig.healed(work, rescues_max=0)
    assert rig.faulty.count("crash_loop") == 0, rig.tails()


@pytest.mark.slow
@pytest.mark.parametrize("call", REPLACING)
async def test_when_a_bucket_is_replaced(rig: FaultRig, call: str) -> None:
    """A bucket that was lost alone (fenced behind its owner's back) is replaced; the agent and its other bucket live."""
    pid = rig.faulty.agent_pid()
    rows = await rig.fetch(
        "SELECT b.id, b.owner FROM bucket b WHERE b.lane = 'victim' AND b.state = 'ACTIVE' ORDER BY b.id LIMIT 1"
    )
    names = lose(rig, call, 1)
    await rig.fence_behind_its_back(rows[0]["id"].bytes)
    work = await rig.work_until(names[0])
    await rig.healed(work, rescues_max=1)

    async def replaced() -> bool:
        found = await rig.fetch("SELECT count(*) FROM bucket WHERE lane = 'victim' AND state = 'ACTIVE'")
        return bool(found[0][0] == 2)

    await eventually(replaced, HEAL_SECONDS, "two buckets")
    await rig.healed(await rig.work(), rescues_max=0)
    assert rig.faulty.agent_pid() == pid, rig.tails()
