"""The process dies at every named crash point, at the first pass and at a later one, and no manual step is needed.

Each time: every acknowledged job ends in one final row, as it would have without the death; a rescue counts where a job was
found under a dead agent, an attempt never; nothing stays in flight, in a bucket or half retired; every invariant holds.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
import redis

from jobmaster import handlers
from jobmaster.client.signals.wait import signal
from jobmaster.clock import new_id
from jobmaster.embedded import PostgresServer, ValkeyServer
from jobmaster.master.flow import signals as signals_module
from jobmaster.master.master import Master
from jobmaster.model.flow.batch import BatchState, BatchView, range_end
from jobmaster.model.flow.breaker import BreakerState
from jobmaster.model.flow.signal import OnTimeout, OutgoingSignal
from jobmaster.model.job import JobState
from jobmaster.model.schedule import FireOutcome, Overlap, Schedule
from jobmaster.rules.recurrence import next_fire_us
from tests.crash_points import jobs
from tests.crash_points.crash_points import POINTS, CrashPoint, Situation
from tests.crash_points.faulty_ports import VARIABLE, Action, FaultDirectory, FaultSpec
from tests.crash_points.faulty_producer import (
    ACTION,
    BULK_JOBS,
    CHUNK_JOBS,
    FILL_JOBS,
    LOCK,
    SINGLE_JOBS,
    Ledger,
    under_lock,
)
from tests.crash_points.fixture import FAULTY, HEAL_SECONDS, HEALTHY, PREY, FaultyDeployment, Work
from tests.support.deployment import ENVIRONMENT, REPOSITORY
from tests.support.patience import PATIENCE_SECONDS, patient
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

FURTHER = {
    "F0", "H0", "O0", "M1", "B0", "L0", "R1 upsert", "R0 step", "R0 transaction", "R1 written", "R2 permit", "T0 snooze",
    "H1 snooze", "R1 decided", "R0 given up", "T0 late", "T1 late",
    "D0", "V0", "V2", "X0", "X2",
    "G0", "G3", "S0", "N0", "J0", "U1",
    "A0", "C0", "F3", "J3", "L1", "M0", "N3", "O2", "R1 step", "R2", "T0", "T1", "U0", "U3", "U5",
}  # fmt: skip
"""Points that only `make test-long` strikes. At those before a call, a process leaves what it leaves at any other moment; the
others are further statements of a step whose plain point stays, or leave a row or a list that another point of the step
leaves, too. That a worker of buckets may die at every single call, and
a rescuer, too, is shown by ``tests/integration/agents``."""


@pytest.fixture(scope="module")
async def deployment(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, valkey_server: ValkeyServer
) -> AsyncIterator[FaultyDeployment]:
    made = await FaultyDeployment.start(
        tmp_path_factory.mktemp("points"), postgres_server.dsn, valkey_server.url, [FAULTY, HEALTHY, PREY]
    )
    yield made
    await made.stop()


@pytest.fixture(autouse=True)
def afterwards(deployment: FaultyDeployment, tmp_path: Path) -> Iterator[None]:
    """A test that failed leaves no order and no closed gate to the next one."""
    yield
    deployment.withdraw_all()
    (tmp_path / "gate").touch()


def cases(*scenes: Situation) -> list[object]:
    """(name, later) of every point in these scenes."""
    found: list[object] = []
    for name, point in POINTS.items():
        if point.situation not in scenes:
            continue
        for later in (False, True) if point.later != point.first else (False,):
            marks = [pytest.mark.long] if later or name in FURTHER else []
            found.append(pytest.param(point, later, id=f"{name} {'later' if later else 'first'}", marks=marks))
    return found


# ---------------------------------------------------------------- the agent works, starts, leaves


@pytest.mark.parametrize(("point", "later"), cases(Situation.WORK))
async def test_at_work(deployment: FaultyDeployment, point: CrashPoint, later: bool) -> None:
    deployment.give("point", point.fault(later=later))
    work = await deployment.work_until("point")
    await deployment.healed(work, rescues_max=1)


@pytest.mark.parametrize(("point", "later"), cases(Situation.START))
async def test_at_the_start(deployment: FaultyDeployment, point: CrashPoint, later: bool) -> None:
    deployment.give("point", point.fault(later=later))
    await deployment.kill_agent(FAULTY)
    work = await deployment.work()
    await deployment.struck("point")
    await deployment.healed(work, rescues_max=1)


@pytest.mark.parametrize(("point", "later"), cases(Situation.LEAVE))
async def test_on_leaving(deployment: FaultyDeployment, point: CrashPoint, later: bool) -> None:
    """A graceful exit that is cut off becomes a rescue, and nothing worse."""
    leaving = await deployment.agent_id(FAULTY)
    work = await deployment.crowd()
    deployment.give("point", point.fault(later=later))
    await deployment.client.master.members.request_drain(leaving, actor="test")
    await deployment.struck("point")
    await deployment.healed(work, rescues_max=1)


@pytest.mark.parametrize(("point", "later"), cases(Situation.DOUBT))
async def test_with_its_lease_in_doubt(deployment: FaultyDeployment, point: CrashPoint, later: bool) -> None:
    """Outcomes that lie in the store are applied under their own identity, so not all of what had ended runs again."""
    ran = len(deployment.witnessed("witness"))
    silent = ("master.copy_final", "master.record_final", "master.renew")
    deployment.give("point", point.fault(later=later))
    for call in silent:
        deployment.give(call, FaultSpec(call, Action.HOLD))
    work = await deployment.crowd()
    await deployment.struck("point")
    ended = {line[0] for line in deployment.witnessed("witness")[ran:]}
    for call in silent:
        deployment.withdraw(call)
    await deployment.healed(work, rescues_max=1)
    runs = Counter(line[0] for line in deployment.witnessed("witness")[ran:])
    assert runs.keys() == {job_id.hex() for job_id in work.ids}
    assert [job_id for job_id in ended if runs[job_id] == 1], "what was kept in the store was not run again"


@pytest.mark.parametrize(("point", "later"), cases(Situation.BATCH))
async def test_with_a_batch(deployment: FaultyDeployment, point: CrashPoint, later: bool) -> None:
    """The batch ends all the same, once: its counters are those of its jobs, and it has one callback."""
    client, path = deployment.client, str(deployment.path("witness"))
    deployment.give("point", point.fault(later=later))
    async with client.batch("struck", on_complete=handlers.call(jobs.quick, path)) as batch:
        summary = await batch.submit_many(handlers.call(jobs.quick, path) for _ in range(30))
    view = await batch.wait(timeout=patient(HEAL_SECONDS))
    assert deployment.faulty.faults.done("point")
    assert view.counts is not None
    assert (view.state, view.size, view.counts.succeeded) == (BatchState.SUCCEEDED, 30, 30)
    callbacks = await deployment.fetch(
        "SELECT id FROM job WHERE position(convert_to($1, 'UTF8') IN headers) > 0", f'"{batch.id}"'
    )
    assert [str(row["id"]) for row in callbacks] == list(view.callbacks.values())
    work = Work()
    for job_id in [*summary.ids.as_bytes(), callbacks[0]["id"].bytes]:
        work.expected[job_id] = ("of a batch", JobState.SUCCEEDED, 1)
    deployment.acknowledged += work.ids
    await deployment.healed(work, rescues_max=1)


# ---------------------------------------------------------------- the agent rescues, certifies, runs maintenance


@pytest.mark.parametrize(("point", "later"), cases(Situation.RESCUE))
async def test_in_a_rescue(deployment: FaultyDeployment, point: CrashPoint, later: bool, tmp_path: Path) -> None:
    """The rescuer dies; the next one goes on where it was."""
    work = await claimed_prey(deployment, tmp_path)
    for name in (HEALTHY, PREY):
        deployment.give("wait", FaultSpec("master.take_lost", Action.HOLD), to=name)
    deployment.give("point", point.fault(later=later))
    await deployment.kill_agent(PREY)
    await deployment.struck("point")
    for name in (HEALTHY, PREY):
        deployment.withdraw("wait", to=name)
    (tmp_path / "gate").touch()
    await deployment.healed(work, rescues_max=1)


@pytest.mark.parametrize(("point", "later"), cases(Situation.CERTIFY))
async def test_before_a_certificate(
    deployment: FaultyDeployment, point: CrashPoint, later: bool, tmp_path: Path
) -> None:
    """No process saw the agent die. The certifier dies before it has written the certificate; another agent writes it."""
    work = await claimed_prey(deployment, tmp_path)
    dead = await deployment.agent_id(PREY)
    deployment.give("wait", FaultSpec("master.certify_dead", Action.HOLD), to=HEALTHY)
    deployment.give("a wait", FaultSpec("master.certify_dead", Action.HOLD))
    deployment.give("point", point.fault(later=later))
    deployment.by_name[PREY].kill_all()

    async def over() -> bool:
        rows = await deployment.fetch(
            "SELECT lease_until < clock_timestamp(), state::text FROM agent WHERE id = $1", UUID(bytes=dead)
        )
        assert rows[0][1] == "ACTIVE", "no agent may have certified it"
        return bool(rows[0][0])

    await eventually(over, HEAL_SECONDS, "the end of its lease")
    deployment.withdraw("a wait")
    await deployment.struck("point")
    deployment.withdraw("wait", to=HEALTHY)
    deployment.launch(PREY)
    (tmp_path / "gate").touch()
    await deployment.healed(work, rescues_max=1)


async def claimed_prey(deployment: FaultyDeployment, folder: Path) -> Work:
    """Work of the agent ``prey``, of which some runs; it goes on when ``gate`` is made in ``folder``."""
    before = len(deployment.witnessed("witness"))
    work = await deployment.prey_work(folder / "gate")

    async def began() -> bool:
        return len(deployment.witnessed("witness")) >= before + 4

    await eventually(began, HEAL_SECONDS, "four running jobs")
    return work


# ---------------------------------------------------------------- a producer


def produce(deployment: FaultyDeployment, ledger: Ledger, situation: Situation, faults: FaultDirectory) -> int:
    """Run a producer to its end, however it ends."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.crash_points.faulty_producer",
            str(deployment.config),
            str(ledger.path),
            situation.value,
        ],
        cwd=REPOSITORY,
        env={**ENVIRONMENT, VARIABLE: str(faults.directory)},
        timeout=PATIENCE_SECONDS,
        check=False,
    ).returncode


@pytest.fixture
def faults(tmp_path: Path) -> FaultDirectory:
    made = FaultDirectory(tmp_path / "orders")
    made.directory.mkdir()
    return made


def final_rows(deployment: FaultyDeployment, ids: list[bytes]) -> Work:
    """Expectation that every one of the ids has succeeded at its first attempt."""
    work = Work()
    work.expected = dict.fromkeys(ids, ("produced", JobState.SUCCEEDED, 1))
    deployment.acknowledged += ids
    return work


@pytest.mark.parametrize(("point", "later"), cases(Situation.SUBMIT))
async def test_of_a_producer(
    deployment: FaultyDeployment, point: CrashPoint, later: bool, tmp_path: Path, faults: FaultDirectory
) -> None:
    """The next producer sends what was not acknowledged under the same ids: each job exists once."""
    ledger = Ledger(tmp_path / "ledger")
    faults.give("point", point.fault(later=later))
    assert await asyncio.to_thread(produce, deployment, ledger, point.situation, faults) == -9
    acknowledged = ledger.ids("acknowledged")
    assert len(acknowledged) == (2 if later else 0)
    assert await asyncio.to_thread(produce, deployment, ledger, point.situation, faults) == 0
    assert len(set(ledger.ids("sent"))) == SINGLE_JOBS
    assert set(ledger.ids("acknowledged")) == set(ledger.ids("sent"))
    await deployment.healed(final_rows(deployment, ledger.ids("sent")), rescues_max=0)


@pytest.mark.parametrize(("point", "later"), cases(Situation.BULK))
async def test_of_a_producer_between_chunks(
    deployment: FaultyDeployment, point: CrashPoint, later: bool, tmp_path: Path, faults: FaultDirectory
) -> None:
    """What was sent is whole chunks, and each job of them ends."""
    ledger = Ledger(tmp_path / "ledger")
    before = {row["id"] for row in await deployment.fetch("SELECT id FROM job")}
    faults.give("point", point.fault(later=later))
    assert await asyncio.to_thread(produce, deployment, ledger, point.situation, faults) == -9
    await deployment.quiet()
    ids = [row["id"].bytes for row in await deployment.fetch("SELECT id FROM job") if row["id"] not in before]
    assert len(ids) % CHUNK_JOBS == 0
    assert len(ids) <= ((point.later if later else point.first) - 1) * CHUNK_JOBS < BULK_JOBS
    await deployment.healed(final_rows(deployment, ids), rescues_max=0)


@pytest.mark.parametrize(("point", "later"), cases(Situation.FILL))
async def test_of_a_producer_that_fills_a_batch(
    deployment: FaultyDeployment, point: CrashPoint, later: bool, tmp_path: Path, faults: FaultDirectory
) -> None:
    """The next run with the same key stores what the first one has not: no job is missing, and none exists or runs twice."""
    ledger = Ledger(tmp_path / "ledger")
    deployment.give("wait", FaultSpec("store.claim", Action.HOLD))
    faults.give("point", point.fault(later=later))
    assert await asyncio.to_thread(produce, deployment, ledger, point.situation, faults) == -9
    assert ledger.ids("batch") == []
    assert await asyncio.to_thread(produce, deployment, ledger, point.situation, faults) == 0
    stored_again = len(ledger.ids("acknowledged"))
    assert (stored_again == 0) if point.call == "master.close" else (0 < stored_again <= FILL_JOBS)
    deployment.withdraw("wait")
    view = await deployment.client.batches.wait(ledger.ids("batch")[0], timeout=patient(HEAL_SECONDS))
    assert view.counts is not None
    assert (view.state, view.size, view.counts.succeeded) == (BatchState.SUCCEEDED, FILL_JOBS, FILL_JOBS)
    rows = await deployment.fetch("SELECT id FROM job WHERE handler = 'quick' AND id > $1 AND id < $2", *_bounds(view))
    assert len(rows) == FILL_JOBS
    runs = Counter(line[0] for line in deployment.witnessed(str(ledger.path.with_name("witness"))))
    assert set(runs.values()) == {1}
    await deployment.healed(final_rows(deployment, [row["id"].bytes for row in rows]), rescues_max=0)


def _bounds(view: BatchView) -> tuple[UUID, UUID]:
    """Around every range of a batch."""
    return UUID(bytes=view.ranges[0]), UUID(bytes=range_end(view.ranges[-1]))


@pytest.mark.parametrize(("point", "later"), cases(Situation.CANCEL))
async def test_of_a_producer_that_cancels(
    deployment: FaultyDeployment, point: CrashPoint, later: bool, tmp_path: Path, faults: FaultDirectory
) -> None:
    """The copies in the bucket come after the rows that say CANCELLED, and change nothing."""
    ledger = Ledger(tmp_path / "ledger")
    deployment.give("wait", FaultSpec("store.claim", Action.HOLD))
    args = {"path": str(deployment.path("witness"))}
    receipts = [await deployment.client.submit(jobs.quick, args) for _ in range(4)]
    for receipt in receipts:
        ledger.add("cancel", receipt.id_bytes)
    faults.give("point", point.fault(later=later))
    assert await asyncio.to_thread(produce, deployment, ledger, point.situation, faults) == -9
    assert await asyncio.to_thread(produce, deployment, ledger, point.situation, faults) == 0
    deployment.withdraw("wait")
    work = Work()
    work.add("cancelled while waiting", receipts, JobState.CANCELLED, -1)
    deployment.acknowledged += work.ids
    await deployment.healed(work, rescues_max=0)


@pytest.mark.parametrize(("point", "later"), cases(Situation.CHANGE))
@pytest.mark.parametrize("again", [True, False])
async def test_of_a_producer_that_changes(
    deployment: FaultyDeployment, point: CrashPoint, later: bool, tmp_path: Path, faults: FaultDirectory, again: bool
) -> None:
    """Every job ends once, whether the change is sent again or never sent again."""
    ledger = Ledger(tmp_path / "ledger")
    deployment.give("wait", FaultSpec("store.claim", Action.HOLD))
    args = {"path": str(deployment.path("witness"))}
    receipts = [await deployment.client.submit(jobs.quick, args) for _ in range(4)]
    for receipt in receipts:
        ledger.add("change", receipt.id_bytes)
    faults.give("point", point.fault(later=later))
    assert await asyncio.to_thread(produce, deployment, ledger, point.situation, faults) == -9
    if again:
        assert await asyncio.to_thread(produce, deployment, ledger, point.situation, faults) == 0
    deployment.withdraw("wait")
    work = Work()
    work.add("changed while waiting", receipts, JobState.SUCCEEDED, 1)
    deployment.acknowledged += work.ids
    await deployment.healed(work, rescues_max=0)


@pytest.mark.parametrize(("point", "later"), cases(Situation.LOCK))
async def test_of_a_program_under_a_lock(
    deployment: FaultyDeployment, point: CrashPoint, later: bool, tmp_path: Path, faults: FaultDirectory
) -> None:
    """The next program gets the lock, with a higher number, after the ttl of the dead one. An action is repeated if, and only
    if, its end was not recorded."""
    for table in ("named_lock", "once_action", "once_attempt"):
        await deployment.fetch(f"DELETE FROM {table}")
    ledger = Ledger(tmp_path / "ledger")
    faults.give("point", point.fault(later=later))
    assert await asyncio.to_thread(produce, deployment, ledger, point.situation, faults) == -9
    done = await deployment.fetch("SELECT fence FROM once_action")
    loaded = len(ledger.ids("loaded"))
    await under_lock(deployment.client, ledger)
    fences = [int.from_bytes(fence, "big") for fence in ledger.ids("fence")]
    assert fences == sorted(set(fences))
    assert len(fences) == (1 if point.description == "lock taken, reply lost" else 2)
    assert len(ledger.ids("loaded")) == loaded + (0 if done else 1)
    assert (len(ledger.ids("done")), len(ledger.ids("mine"))) == ((1, 0) if done else (0, 1))
    (action,) = await deployment.client.once_actions()
    assert (action.name, action.version, action.state.value, action.failures) == (*ACTION, "done", 0)
    assert await deployment.client.locks(LOCK) == []


# ---------------------------------------------------------------- points of their own kind


async def test_l2_a_reply_after_the_deadline(deployment: FaultyDeployment) -> None:
    """Every renewal is written and none is answered in time, nor does the store's word come in time that could stand for
    it: the agent ends itself before its lease does."""
    fenced = deployment.faulty.count("agent_fenced")
    deployment.give("late", FaultSpec("master.renew", Action.HOLD_REPLY))
    deployment.give("silent", FaultSpec("store.grant_term", Action.HOLD_REPLY))
    work = await deployment.crowd()
    await deployment.faulty.wait_event("agent_fenced", fenced + 1, seconds=HEAL_SECONDS)
    deployment.withdraw("late")
    deployment.withdraw("silent")
    await deployment.healed(work, rescues_max=1)


async def fire_under_fault(deployment: FaultyDeployment, name: str) -> None:
    """Two schedules with one nominal time: the leader dies, and each has one job, whichever leader has made it."""
    settings = deployment.settings
    master = await Master.connect(
        dsn=deployment.dsn, schema=settings.schema_name(), settings=settings.master, application_name="test"
    )
    at_us = time.time_ns() // 1000 + 10_000_000
    args = b'{"path":"%s"}' % str(deployment.path("witness")).encode()
    schedules = [
        Schedule(name=f"{name}-{number}", handler="quick", lane=jobs.VICTIM, expression="60s", start_us=at_us,
                 end_us=at_us + 1, overlap=overlap, args=args)
        for number, overlap in enumerate((Overlap.PARALLEL, Overlap.SKIP))
    ]  # fmt: skip
    deployment.give(name, POINTS[name].fault(later=False))
    try:
        assert await master.schedules.put(schedules, next_fire_us) == []
        await deployment.struck(name)

        async def ended() -> bool:
            return all(row.next_us is None for row in await master.schedules.list([each.name for each in schedules]))

        await eventually(ended, HEAL_SECONDS, "every fire to be decided")
        lines = [line for each in schedules for line in await master.schedules.fires(each.name, 10)]
    finally:
        await master.close()
    assert [(line.nominal_us, line.outcome) for line in lines] == [(at_us, FireOutcome.FIRED)] * 2
    work = Work()
    work.expected = {line.job_id: ("fire", JobState.SUCCEEDED, 1) for line in lines if line.job_id is not None}
    deployment.acknowledged += work.ids
    await deployment.healed(work, rescues_max=1)
    rows = await deployment.fetch("SELECT count(*) FROM job WHERE handler = 'quick' AND id = ANY ($1)",
                                  [UUID(bytes=job_id) for job_id in work.ids])  # fmt: skip
    assert rows[0][0] == 2


async def test_z0_the_leader_dies_before_it_writes_fires(deployment: FaultyDeployment) -> None:
    await fire_under_fault(deployment, "Z0")


async def test_z1_the_leader_dies_after_it_has_written_fires(deployment: FaultyDeployment) -> None:
    await fire_under_fault(deployment, "Z1")


async def pause_under_fault(deployment: FaultyDeployment, name: str) -> None:
    """The agent dies while it gets a pause: the command that has paused waits for the next agent, which obeys it from its
    start, and no job starts until it is resumed."""
    client, path = deployment.client, str(deployment.path(f"witness-{name}"))
    deployment.give(name, POINTS[name].fault(later=False))
    assert (await client.pause(handler=jobs.quick, timeout=patient(HEAL_SECONDS))).changed
    assert deployment.faulty.faults.done(name)
    receipts = [await client.submit(jobs.quick, {"path": path}, durability="master") for _ in range(5)]
    receipts += [await client.submit(jobs.quick, {"path": path}) for _ in range(5)]
    marker = await client.submit(jobs.slow, {"path": path})
    await marker.result(timeout=patient(HEAL_SECONDS))
    assert not [line for line in deployment.witnessed(f"witness-{name}") if line[0] != marker.id.hex]
    await client.resume(handler=jobs.quick)
    work = Work()
    work.add("paused", receipts, JobState.SUCCEEDED, 1)
    deployment.acknowledged += [*work.ids, marker.id_bytes]
    await deployment.healed(work, rescues_max=1)


async def test_p0_the_agent_dies_before_it_reads_a_pause(deployment: FaultyDeployment) -> None:
    await pause_under_fault(deployment, "P0")


async def test_p1_the_agent_dies_before_it_confirms_a_pause(deployment: FaultyDeployment) -> None:
    await pause_under_fault(deployment, "P1")


async def test_p2_the_agent_dies_after_it_has_confirmed_a_pause(deployment: FaultyDeployment) -> None:
    await pause_under_fault(deployment, "P2")


async def signal_under_fault(deployment: FaultyDeployment, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender of a signal dies after its first portion, and some waits are over; the leader dies when it sees to it."""
    client, args = deployment.client, {"path": str(deployment.path(f"witness-{name}"))}
    deployment.give(name, POINTS[name].fault(later=False))
    waits = [await client.submit(jobs.quick, args, wait_for=signal(name)) for _ in range(4)]
    late = [
        await client.submit(jobs.quick, args, wait_for=signal("never", timeout=0.3, on_timeout=then))
        for then in (OnTimeout.EXPIRE, OnTimeout.RUN)
    ]
    monkeypatch.setattr(signals_module, "PORTION", 1)
    step = await client.master.signals.send(OutgoingSignal(new_id(), name, b"1", "all", 0.0), "test")
    assert (step.delivered, step.finished) == (1, False)
    work = Work()
    work.add("signalled", waits, JobState.SUCCEEDED, 1)
    work.add("too late", late[:1], JobState.EXPIRED, 0)
    work.add("without its signal", late[1:], JobState.SUCCEEDED, 1)
    deployment.acknowledged += work.ids
    await deployment.struck(name)
    await deployment.healed(work, rescues_max=1)
    received = [(await each.get()).headers.received is not None for each in (*waits, *late)]
    assert received == [True] * 4 + [False] * 2


async def test_i0_the_leader_dies_after_it_has_delivered_the_rest_of_a_signal(
    deployment: FaultyDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    await signal_under_fault(deployment, "I0", monkeypatch)


async def test_i1_the_leader_dies_after_it_has_ended_waits(
    deployment: FaultyDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    await signal_under_fault(deployment, "I1", monkeypatch)


async def breaker_under_fault(deployment: FaultyDeployment, name: str, gate: Path) -> None:
    """The agent under fault, which leads, dies in a decision about a breaker: others decide it, and its jobs end."""
    client = deployment.client
    deployment.give(name, POINTS[name].fault(later=False))
    args = {"path": str(deployment.path("witness")), "gate": str(gate)}
    receipts = [await client.submit(jobs.guarded, args) for _ in range(6)]
    work = Work()
    work.add("guarded", receipts, JobState.SUCCEEDED, -1)
    deployment.acknowledged += work.ids

    async def has_opened_again() -> bool:
        """Every job waits then: the agents obey it."""
        view = await client.breakers.get("resource")
        return view.state is BreakerState.OPEN and "trials have failed" in view.reason

    if name != "E3":  # that one strikes when the resource is back
        await deployment.struck(name)
    await eventually(has_opened_again, HEAL_SECONDS, "a trial to fail")
    gate.touch()
    await deployment.struck(name)

    async def is_closed() -> bool:
        return (await client.breakers.get("resource")).state is BreakerState.CLOSED

    await eventually(is_closed, HEAL_SECONDS, "the breaker to close")
    await deployment.healed(work, rescues_max=1)


@pytest.mark.long
async def test_e0_the_agent_dies_before_it_evaluates_what_it_has_reported(
    deployment: FaultyDeployment, tmp_path: Path
) -> None:
    await breaker_under_fault(deployment, "E0", tmp_path / "gate")


@pytest.mark.long
async def test_e1_the_leader_dies_after_it_has_half_opened_a_breaker(
    deployment: FaultyDeployment, tmp_path: Path
) -> None:
    await breaker_under_fault(deployment, "E1", tmp_path / "gate")


async def test_e2_the_leader_dies_after_it_has_chosen_trials(deployment: FaultyDeployment, tmp_path: Path) -> None:
    await breaker_under_fault(deployment, "E2", tmp_path / "gate")


async def test_e3_the_agent_dies_after_it_has_reported_a_trial(deployment: FaultyDeployment, tmp_path: Path) -> None:
    await breaker_under_fault(deployment, "E3", tmp_path / "gate")


async def test_c2_a_cancel_signal_that_is_lost(deployment: FaultyDeployment) -> None:
    """The hint is not left in the store, and the answer of the first renewal with the job is lost; the next one arrives."""
    receipt = await deployment.client.submit(jobs.endless, {"path": str(deployment.path("witness"))})
    await receipt.wait_saved(timeout=patient(HEAL_SECONDS))
    deployment.give("deaf", FaultSpec("master.renew", Action.LOSE_REPLY, 1, "cancel_requested=[b"))
    await deployment.client.master.requests.cancel(receipt.id_bytes, tombstone=None, actor="test")
    await deployment.struck("deaf")
    work = Work()
    work.add("cancelled while running", [receipt], JobState.CANCELLED, 1)
    deployment.acknowledged += work.ids
    await deployment.healed(work, rescues_max=0)


async def test_s3_the_store_dies_after_its_acknowledgement(
    new_valkey: Callable[..., ValkeyServer], tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """SIGKILL to the store while jobs lie in it and nowhere else: what it has acknowledged it has written to its log."""
    store = new_valkey()
    deployment = await FaultyDeployment.start(tmp_path, postgres_server.dsn, store.url, [FAULTY])
    try:
        deployment.give("wait", FaultSpec("store.claim", Action.HOLD))
        receipts = [
            await deployment.client.submit(jobs.quick, {"path": str(deployment.path("witness"))}) for _ in range(20)
        ]
        store.kill()
        store.start()
        deployment.withdraw("wait")
        work = Work()
        work.add("only in the store", receipts, JobState.SUCCEEDED, 1)
        deployment.acknowledged += work.ids
        await deployment.healed(work, rescues_max=1)
    finally:
        await deployment.stop()


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


async def test_x3_keys_that_come_back(
    deployment: FaultyDeployment, valkey_server: ValkeyServer, tmp_path: Path
) -> None:
    """A store is rolled back behind a bucket's end: its jobs, long finished, are there again in a bucket without a row.
    They are found, refused by their rows, and the keys go away again."""
    work = await claimed_prey(deployment, tmp_path)
    rows = await deployment.fetch("SELECT id FROM bucket WHERE lane = $1 AND state = 'ACTIVE'", jobs.PREY)
    client = redis.Redis.from_url(valkey_server.url)
    try:
        # Of one moment, as every copy of a store is: a list that was settled while its neighbours were copied is no past.
        pairs = client.eval(COPY, 0, *(f"*{row['id'].hex}*" for row in rows))
        copies = dict(zip(pairs[::2], pairs[1::2], strict=True))
        assert any(b":claimed:" in key for key in copies)
        (tmp_path / "gate").touch()
        await deployment.kill_agent(PREY)
        await deployment.healed(work, rescues_max=1)

        async def forgotten() -> bool:
            return not await deployment.fetch("SELECT FROM bucket WHERE id = ANY($1)", [row["id"] for row in rows])

        await eventually(forgotten, HEAL_SECONDS, "the end of the tombstones")
        ran = len(deployment.witnessed("witness"))
        with client.pipeline(transaction=True) as rollback:
            for key, copy in copies.items():
                rollback.restore(key, 0, copy)
            rollback.execute()

        async def gone() -> bool:
            return not any(client.exists(key) for key in copies)

        await eventually(gone, HEAL_SECONDS, "the end of the resurrected keys")
        await deployment.healed(work, rescues_max=1)
        assert len(deployment.witnessed("witness")) == ran, "nothing ran again"
    finally:
        client.close()
