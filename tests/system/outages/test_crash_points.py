"""The process dies at every named crash point, at the first pass and at a later one, and nobody's hand is needed.

Each time: every acknowledged job ends in one final row, as it would have without the death; a rescue counts where a job was
found in the hands of the dead, an attempt never; nothing stays in flight, in a bucket or half retired; every invariant holds.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
import redis

from jobmaster.embedded import PostgresServer, ValkeyServer
from jobmaster.model.job import JobState
from tests.crash_points import jobs
from tests.crash_points.fixture import FAULTY, HEAL_SECONDS, HEALTHY, PREY, FaultRig, Work
from tests.crash_points.points import POINTS, Point, Scene
from tests.crash_points.ports import VARIABLE, Action, Order, Orders
from tests.crash_points.producer import BULK_JOBS, CHUNK_JOBS, SINGLE_JOBS, Ledger
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.conftest import ENVIRONMENT, REPOSITORY

pytestmark = pytest.mark.cluster

QUICK_SUITE = {("M0", False), ("R1", False), ("D1", True), ("S1", True)}
"""Cases that are not left out of the fast run."""


@pytest.fixture(scope="module")
async def rig(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, valkey_server: ValkeyServer
) -> AsyncIterator[FaultRig]:
    made = await FaultRig.start(
        tmp_path_factory.mktemp("points"), postgres_server.dsn, valkey_server.url, [FAULTY, HEALTHY, PREY]
    )
    yield made
    await made.stop()


@pytest.fixture(autouse=True)
def afterwards(rig: FaultRig, tmp_path: Path) -> Iterator[None]:
    """A test that failed leaves no order and no closed gate to the next one."""
    yield
    rig.withdraw_all()
    (tmp_path / "gate").touch()


def cases(*scenes: Scene) -> list[object]:
    """(name, later) of every point in these scenes."""
    found: list[object] = []
    for name, point in POINTS.items():
        if point.scene not in scenes:
            continue
        for later in (False, True) if point.later != point.first else (False,):
            marks = [] if (name, later) in QUICK_SUITE else [pytest.mark.slow]
            found.append(pytest.param(point, later, id=f"{name} {'later' if later else 'first'}", marks=marks))
    return found


# ---------------------------------------------------------------- the agent works, starts, leaves


@pytest.mark.parametrize(("point", "later"), cases(Scene.WORK))
async def test_at_work(rig: FaultRig, point: Point, later: bool) -> None:
    rig.give("point", point.order(later=later))
    work = await rig.work_until("point")
    await rig.healed(work, rescues_max=1)


@pytest.mark.parametrize(("point", "later"), cases(Scene.START))
async def test_at_the_start(rig: FaultRig, point: Point, later: bool) -> None:
    rig.give("point", point.order(later=later))
    await rig.kill_agent(FAULTY)
    work = await rig.work()
    await rig.struck("point")
    await rig.healed(work, rescues_max=1)


@pytest.mark.parametrize(("point", "later"), cases(Scene.LEAVE))
async def test_on_leaving(rig: FaultRig, point: Point, later: bool) -> None:
    """A graceful exit that is cut off becomes a rescue, and nothing worse."""
    leaving = await rig.agent_id(FAULTY)
    work = await rig.crowd()
    rig.give("point", point.order(later=later))
    await rig.client.master.members.request_drain(leaving, actor="test")  # type: ignore[attr-defined]
    await rig.struck("point")
    await rig.healed(work, rescues_max=1)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "later"), cases(Scene.DOUBT))
async def test_with_its_lease_in_doubt(rig: FaultRig, point: Point, later: bool) -> None:
    """Outcomes that lie in the store are applied under their own identity, so not all of what had ended runs again."""
    ran = len(rig.witnessed("witness"))
    silent = ("master.copy_final", "master.record_final", "master.renew")
    rig.give("point", point.order(later=later))
    for call in silent:
        rig.give(call, Order(call, Action.HOLD))
    work = await rig.crowd()
    await rig.struck("point")
    ended = {line[0] for line in rig.witnessed("witness")[ran:]}
    for call in silent:
        rig.withdraw(call)
    await rig.healed(work, rescues_max=1)
    runs = Counter(line[0] for line in rig.witnessed("witness")[ran:])
    assert runs.keys() == {job_id.hex() for job_id in work.ids}
    assert [job_id for job_id in ended if runs[job_id] == 1], "what was kept in the store was not run again"


# ---------------------------------------------------------------- the agent rescues, judges, keeps house


@pytest.mark.parametrize(("point", "later"), cases(Scene.RESCUE))
async def test_in_a_rescue(rig: FaultRig, point: Point, later: bool, tmp_path: Path) -> None:
    """The rescuer dies; the next one goes on where it was."""
    work = await claimed_prey(rig, tmp_path)
    for name in (HEALTHY, PREY):
        rig.give("wait", Order("master.take_lost", Action.HOLD), to=name)
    rig.give("point", point.order(later=later))
    await rig.kill_agent(PREY)
    await rig.struck("point")
    for name in (HEALTHY, PREY):
        rig.withdraw("wait", to=name)
    (tmp_path / "gate").touch()
    await rig.healed(work, rescues_max=1)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "later"), cases(Scene.JUDGE))
async def test_before_a_certificate(rig: FaultRig, point: Point, later: bool, tmp_path: Path) -> None:
    """Nobody saw the agent die. The judge dies before it has written so; another one judges."""
    work = await claimed_prey(rig, tmp_path)
    dead = await rig.agent_id(PREY)
    rig.give("wait", Order("master.certify_dead", Action.HOLD), to=HEALTHY)
    rig.give("a wait", Order("master.certify_dead", Action.HOLD))
    rig.give("point", point.order(later=later))
    rig.by_name[PREY].kill_all()

    async def over() -> bool:
        rows = await rig.fetch(
            "SELECT lease_until < clock_timestamp(), state::text FROM agent WHERE id = $1", UUID(bytes=dead)
        )
        assert rows[0][1] == "ACTIVE", "nobody may have certified it"
        return bool(rows[0][0])

    await eventually(over, HEAL_SECONDS, "the end of its lease")
    rig.withdraw("a wait")
    await rig.struck("point")
    rig.withdraw("wait", to=HEALTHY)
    rig.launch(PREY)
    (tmp_path / "gate").touch()
    await rig.healed(work, rescues_max=1)


async def claimed_prey(rig: FaultRig, folder: Path) -> Work:
    """Work of the agent ``prey``, of which some runs; it goes on when ``gate`` is made in ``folder``."""
    before = len(rig.witnessed("witness"))
    work = await rig.prey_work(folder / "gate")

    async def began() -> bool:
        return len(rig.witnessed("witness")) >= before + 4

    await eventually(began, HEAL_SECONDS, "four running jobs")
    return work


# ---------------------------------------------------------------- a producer


def produce(rig: FaultRig, ledger: Ledger, scene: Scene, orders: Orders) -> int:
    """Run a producer to its end, however it ends."""
    return subprocess.run(
        [sys.executable, "-m", "tests.crash_points.producer", str(rig.config), str(ledger.path), scene.value],
        cwd=REPOSITORY,
        env={**ENVIRONMENT, VARIABLE: str(orders.directory)},
        timeout=PATIENCE_SECONDS,
        check=False,
    ).returncode


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    made = Orders(tmp_path / "orders")
    made.directory.mkdir()
    return made


def final_rows(rig: FaultRig, ids: list[bytes]) -> Work:
    """Expectation that every one of the ids has succeeded at its first attempt."""
    work = Work()
    work.expected = dict.fromkeys(ids, ("produced", JobState.SUCCEEDED, 1))
    rig.acknowledged += ids
    return work


@pytest.mark.parametrize(("point", "later"), cases(Scene.SUBMIT))
async def test_of_a_producer(rig: FaultRig, point: Point, later: bool, tmp_path: Path, orders: Orders) -> None:
    """The next producer sends what was not acknowledged under the same ids: each job exists once."""
    ledger = Ledger(tmp_path / "ledger")
    orders.give("point", point.order(later=later))
    assert await asyncio.to_thread(produce, rig, ledger, point.scene, orders) == -9
    acknowledged = ledger.ids("acknowledged")
    assert len(acknowledged) == (2 if later else 0)
    assert await asyncio.to_thread(produce, rig, ledger, point.scene, orders) == 0
    assert len(set(ledger.ids("sent"))) == SINGLE_JOBS
    assert set(ledger.ids("acknowledged")) == set(ledger.ids("sent"))
    await rig.healed(final_rows(rig, ledger.ids("sent")), rescues_max=0)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "later"), cases(Scene.BULK))
async def test_of_a_producer_between_chunks(
    rig: FaultRig, point: Point, later: bool, tmp_path: Path, orders: Orders
) -> None:
    """What was sent is whole chunks, and each job of them ends."""
    ledger = Ledger(tmp_path / "ledger")
    before = {row["id"] for row in await rig.fetch("SELECT id FROM job")}
    orders.give("point", point.order(later=later))
    assert await asyncio.to_thread(produce, rig, ledger, point.scene, orders) == -9
    await rig.quiet()
    ids = [row["id"].bytes for row in await rig.fetch("SELECT id FROM job") if row["id"] not in before]
    assert len(ids) % CHUNK_JOBS == 0
    assert len(ids) <= ((point.later if later else point.first) - 1) * CHUNK_JOBS < BULK_JOBS
    await rig.healed(final_rows(rig, ids), rescues_max=0)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "later"), cases(Scene.CANCEL))
async def test_of_a_producer_that_cancels(
    rig: FaultRig, point: Point, later: bool, tmp_path: Path, orders: Orders
) -> None:
    """The copies in the bucket come after the rows that say CANCELLED, and change nothing."""
    ledger = Ledger(tmp_path / "ledger")
    rig.give("wait", Order("store.claim", Action.HOLD))
    args = {"path": str(rig.path("witness"))}
    receipts = [await rig.client.submit(jobs.quick, args) for _ in range(4)]
    for receipt in receipts:
        ledger.add("cancel", receipt.id)
    orders.give("point", point.order(later=later))
    assert await asyncio.to_thread(produce, rig, ledger, point.scene, orders) == -9
    assert await asyncio.to_thread(produce, rig, ledger, point.scene, orders) == 0
    rig.withdraw("wait")
    work = Work()
    work.add("cancelled while waiting", receipts, JobState.CANCELLED, -1)
    rig.acknowledged += work.ids
    await rig.healed(work, rescues_max=0)


# ---------------------------------------------------------------- points of their own kind


@pytest.mark.slow
async def test_l2_a_reply_after_the_deadline(rig: FaultRig) -> None:
    """Every renewal is written and none is answered in time, nor does the store's word come in time that could stand for
    it: the agent ends itself before its lease does."""
    fenced = rig.faulty.count("agent_fenced")
    rig.give("late", Order("master.renew", Action.HOLD_REPLY))
    rig.give("silent", Order("store.grant_term", Action.HOLD_REPLY))
    work = await rig.crowd()
    await rig.faulty.wait_event("agent_fenced", fenced + 1, seconds=HEAL_SECONDS)
    rig.withdraw("late")
    rig.withdraw("silent")
    await rig.healed(work, rescues_max=1)


@pytest.mark.slow
async def test_c2_a_cancel_signal_that_is_lost(rig: FaultRig) -> None:
    """The hint is not left in the store, and the first renewal that names the job is not heard: the next one is."""
    receipt = await rig.client.submit(jobs.endless, {"path": str(rig.path("witness"))})
    await receipt.wait_saved(timeout=HEAL_SECONDS)
    rig.give("deaf", Order("master.renew", Action.LOSE_REPLY, 1, "cancel_requested=[b"))
    await rig.client.master.requests.cancel(receipt.id, tombstone=None, actor="test")
    await rig.struck("deaf")
    work = Work()
    work.add("cancelled while running", [receipt], JobState.CANCELLED, 1)
    rig.acknowledged += work.ids
    await rig.healed(work, rescues_max=0)


@pytest.mark.slow
async def test_s3_the_store_dies_after_its_acknowledgement(
    new_valkey: Callable[..., ValkeyServer], tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """SIGKILL to the store while jobs lie in it and nowhere else: what it has acknowledged it has written to its log."""
    store = new_valkey()
    rig = await FaultRig.start(tmp_path, postgres_server.dsn, store.url, [FAULTY])
    try:
        rig.give("wait", Order("store.claim", Action.HOLD))
        receipts = [await rig.client.submit(jobs.quick, {"path": str(rig.path("witness"))}) for _ in range(20)]
        store.kill()
        store.start()
        rig.withdraw("wait")
        work = Work()
        work.add("only in the store", receipts, JobState.SUCCEEDED, 1)
        rig.acknowledged += work.ids
        await rig.healed(work, rescues_max=1)
    finally:
        await rig.stop()


COPY = """
    local found = {}
    for _, pattern in ipairs(ARGV) do
        for _, key in ipairs(redis.call('KEYS', pattern)) do
            table.insert(found, key)
            table.insert(found, redis.call('DUMP', key))
        end
    end
    return found"""
"""Every key of the patterns, and its copy."""


@pytest.mark.slow
async def test_x3_keys_that_come_back(rig: FaultRig, valkey_server: ValkeyServer, tmp_path: Path) -> None:
    """A store is rolled back behind a bucket's end: its jobs, long finished, lie there again in a bucket that nobody knows.
    They are found, refused by their rows, and the keys go away again."""
    work = await claimed_prey(rig, tmp_path)
    rows = await rig.fetch("SELECT id FROM bucket WHERE lane = $1 AND state = 'ACTIVE'", jobs.PREY)
    client = redis.Redis.from_url(valkey_server.url)
    try:
        # Of one moment, as every copy of a store is: a list that was settled while its neighbours were copied is no past.
        pairs = client.eval(COPY, 0, *(f"*{row['id'].hex}*" for row in rows))
        copies = dict(zip(pairs[::2], pairs[1::2], strict=True))
        assert any(b":claimed:" in key for key in copies)
        (tmp_path / "gate").touch()
        await rig.kill_agent(PREY)
        await rig.healed(work, rescues_max=1)

        async def forgotten() -> bool:
            return not await rig.fetch("SELECT FROM bucket WHERE id = ANY($1)", [row["id"] for row in rows])

        await eventually(forgotten, HEAL_SECONDS, "the end of the tombstones")
        ran = len(rig.witnessed("witness"))
        with client.pipeline(transaction=True) as rollback:
            for key, copy in copies.items():
                rollback.restore(key, 0, copy)
            rollback.execute()

        async def gone() -> bool:
            return not any(client.exists(key) for key in copies)

        await eventually(gone, HEAL_SECONDS, "the end of the resurrected keys")
        await rig.healed(work, rescues_max=1)
        assert len(rig.witnessed("witness")) == ran, "nothing ran again"
    finally:
        client.close()
