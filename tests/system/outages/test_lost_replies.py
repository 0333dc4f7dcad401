"""Every write of an agent is carried out and its answer lost, the first time and the third: the agent lives on.

``OutcomeUnknown`` is neither success nor failure. A caller that meets it sends the same again, or leaves what it made to the
tasks that clean up; in no case is a job lost, run to two outcomes, or stuck, and in no case does the process end, for that
would make a rescue of every job it holds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from jobmaster.embedded import PostgresServer, ValkeyServer
from jobmaster.model.job import JobState
from tests.crash_points import jobs
from tests.crash_points.faulty_ports import Action, FaultSpec
from tests.crash_points.fixture import FAULTY, HEAL_SECONDS, HEALTHY, PREY, FaultyDeployment, Work
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

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
ALONE = "store.beat"
"""The test of everything at once leaves it out."""


def marks_of(call: str) -> list[pytest.MarkDecorator]:
    """Of a case of its own. The other calls lose their answers in the test of everything at once."""
    return [] if call == ALONE else [pytest.mark.long]


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
async def deployment(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, valkey_server: ValkeyServer
) -> AsyncIterator[FaultyDeployment]:
    made = await FaultyDeployment.start(
        tmp_path_factory.mktemp("replies"), postgres_server.dsn, valkey_server.url, [FAULTY, HEALTHY, PREY]
    )
    yield made
    await made.stop()


@pytest.fixture(autouse=True)
def afterwards(deployment: FaultyDeployment, tmp_path: Path) -> Iterator[None]:
    """A test that failed leaves no order and no closed gate to the next one."""
    yield
    deployment.withdraw_all()
    (tmp_path / "gate").touch()


def together(calls: tuple[str, ...]) -> pytest.MarkDecorator:
    """All of the calls lose their answers in one test, and each of them in a long one."""
    alone = [pytest.param((call,), id=call, marks=pytest.mark.long) for call in calls]
    return pytest.mark.parametrize("calls", [pytest.param(calls, id="all"), *alone])


def lose(deployment: FaultyDeployment, call: str, *occurrences: int, match: str = "") -> list[str]:
    """Orders to lose the answers of these calls; their names."""
    names = [f"{call} {occurrence}" for occurrence in occurrences]
    for name, occurrence in zip(names, occurrences, strict=True):
        deployment.give(name, FaultSpec(call, Action.LOSE_REPLY, occurrence, match))
    return names


@pytest.mark.parametrize("call", [pytest.param(call, marks=marks_of(call)) for call in AT_WORK])
async def test_at_work(deployment: FaultyDeployment, call: str) -> None:
    pid = deployment.faulty.agent_pid()
    names = lose(deployment, call, 1, 3)
    work = await deployment.work_until(*names)
    await deployment.healed(work, rescues_max=0)
    assert deployment.faulty.agent_pid() == pid, deployment.tails()


async def test_of_everything_at_once(deployment: FaultyDeployment) -> None:
    pid = deployment.faulty.agent_pid()
    names = [name for call in AT_WORK if call != ALONE for name in lose(deployment, call, 2, 4)]
    work = await deployment.work_until(*names)
    await deployment.healed(work, rescues_max=0)
    assert deployment.faulty.agent_pid() == pid, deployment.tails()


async def test_of_release(deployment: FaultyDeployment) -> None:
    """All tries of a put are refused before they are sent, so the rows go back; whether they did is not known.

    Several puts may be under way at once: every put fails until one has used its tries.
    """
    pid = deployment.faulty.agent_pid()
    args = {"path": str(deployment.path("witness"))}
    for occurrence in range(1, 40):
        deployment.give(f"refused {occurrence}", FaultSpec("store.assign", Action.FAIL, occurrence))
    lost = lose(deployment, "master.release", 1)
    receipts = [await deployment.client.submit(jobs.quick, args, durability="master", after=0.3) for _ in range(8)]
    work = Work()
    work.add("given back", receipts, JobState.SUCCEEDED, 1)
    deployment.acknowledged += work.ids
    await deployment.struck(lost[0])
    deployment.withdraw_all()
    await deployment.healed(work, rescues_max=0)
    assert deployment.faulty.agent_pid() == pid, deployment.tails()


@pytest.mark.long
@together(IN_A_RESCUE)
async def test_in_a_rescue(deployment: FaultyDeployment, calls: tuple[str, ...], tmp_path: Path) -> None:
    """The rescuer asks again and drains the bucket itself. ``tests/integration/agents/test_rescue.py`` shows the same for
    each call of a rescuer that is not a process."""
    pid = deployment.faulty.agent_pid()
    before = len(deployment.witnessed("witness"))
    work = await deployment.prey_work(tmp_path / "gate")

    async def began() -> bool:
        return len(deployment.witnessed("witness")) >= before + 4

    await eventually(began, HEAL_SECONDS, "four running jobs")
    for name in (HEALTHY, PREY):
        deployment.give("wait", FaultSpec("master.take_lost", Action.HOLD), to=name)
    lost = {call: lose(deployment, call, 1, 3, match="Bucket(" if call == "master.take_lost" else "") for call in calls}
    await deployment.kill_agent(PREY)
    for first, _ in lost.values():
        await deployment.struck(first)

    async def drained() -> bool:
        return not await deployment.fetch("SELECT FROM bucket WHERE state IN ('LOST', 'DRAINING')")

    await eventually(drained, HEAL_SECONDS, "the rescue by the only one who may")
    for name in (HEALTHY, PREY):
        deployment.withdraw("wait", to=name)
    for _, second in lost.values():
        deployment.withdraw(second)
    (tmp_path / "gate").touch()
    await deployment.healed(work, rescues_max=1)
    assert deployment.faulty.agent_pid() == pid, deployment.tails()


@together(KEEPING_HOUSE)
async def test_keeping_house(deployment: FaultyDeployment, calls: tuple[str, ...]) -> None:
    """Buckets of a dead agent are forgotten in the end, and their keys with them."""
    pid = deployment.faulty.agent_pid()
    lost = [
        row["id"] for row in await deployment.fetch("SELECT id FROM bucket WHERE lane = 'prey' AND state = 'ACTIVE'")
    ]
    names = [lose(deployment, call, 1, 3) for call in calls]
    await deployment.kill_agent(PREY)
    for first, second in names:
        await deployment.struck(first)
        deployment.withdraw(second)

    async def forgotten() -> bool:
        return not await deployment.fetch("SELECT FROM bucket WHERE id = ANY($1)", lost)

    await eventually(forgotten, HEAL_SECONDS, "the end of the tombstones")
    await deployment.healed(await deployment.work(), rescues_max=0)
    assert deployment.faulty.agent_pid() == pid, deployment.tails()


@together(ON_LEAVING)
async def test_on_leaving(deployment: FaultyDeployment, calls: tuple[str, ...]) -> None:
    """It leaves in order all the same: no rescue, no attempt, and it is not started again."""
    leaving = await deployment.agent_id(FAULTY)
    work = await deployment.crowd()
    # The last call again and again, until a renewal is due meanwhile: that the row has ended is no certificate then.
    lost = [lose(deployment, call, *((1, 2, 3, 4, 5) if call == "master.end_agent" else (1, 3))) for call in calls]
    exits = deployment.faulty.count("child_exited")
    await deployment.client.master.members.request_drain(leaving, actor="test")
    for names in lost:
        await deployment.struck(names[0])
    assert await deployment.faulty.wait_exit(HEAL_SECONDS) == 0, deployment.tails()
    assert deployment.faulty.count("child_exited") == exits + 1, deployment.tails()
    for names in lost:
        for name in names:
            deployment.withdraw(name)
    await deployment.launch(FAULTY).wait_event("agent_started", seconds=HEAL_SECONDS)
    await deployment.healed(work, rescues_max=0)


@pytest.mark.parametrize("call", AT_THE_START)
async def test_at_the_start(deployment: FaultyDeployment, call: str) -> None:
    """An agent with an unknown registration may be replaced by another one, but not again and again."""
    started = deployment.faulty.count("agent_started")
    names = lose(deployment, call, 1)
    await deployment.kill_agent(FAULTY)
    await deployment.struck(names[0])
    await deployment.faulty.wait_event("agent_started", started + 1, seconds=HEAL_SECONDS)
    work = await deployment.work()
    await deployment.healed(work, rescues_max=0)
    assert deployment.faulty.count("crash_loop") == 0, deployment.tails()


@together(REPLACING)
async def test_when_a_bucket_is_replaced(deployment: FaultyDeployment, calls: tuple[str, ...]) -> None:
    """A bucket that was lost alone (fenced behind its owner's back) is replaced; the agent and its other bucket live."""
    pid = deployment.faulty.agent_pid()
    rows = await deployment.fetch(
        "SELECT b.id, b.owner FROM bucket b WHERE b.lane = 'victim' AND b.state = 'ACTIVE' ORDER BY b.id LIMIT 1"
    )
    names = [name for call in calls for name in lose(deployment, call, 1)]
    await deployment.fence_behind_its_back(rows[0]["id"].bytes)
    work = await deployment.work_until(*names)
    await deployment.healed(work, rescues_max=1)

    async def replaced() -> bool:
        found = await deployment.fetch("SELECT count(*) FROM bucket WHERE lane = 'victim' AND state = 'ACTIVE'")
        return bool(found[0][0] == 2)

    await eventually(replaced, HEAL_SECONDS, "two buckets")
    await deployment.healed(await deployment.work(), rescues_max=0)
    assert deployment.faulty.agent_pid() == pid, deployment.tails()
