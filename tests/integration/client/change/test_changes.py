"""Reschedule, reprioritise, move, run now: held jobs, jobs in a bucket, jobs without a row, and jobs that have started."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from jobmaster import ChangeEffect, JobChange
from jobmaster.agentstore.store import AgentStore
from jobmaster.client.jobs import changes as changes_module
from jobmaster.clock import new_id
from jobmaster.codec import encode_entry
from jobmaster.master.changes import Changes
from jobmaster.model.errors import (
    ConfigError,
    Conflict,
    InputError,
    InvalidDueTime,
    NotFound,
    OutcomeUnknown,
    UnknownLane,
)
from jobmaster.model.ids import Identity
from jobmaster.model.job import JobState, Priority
from jobmaster.model.job_change import NewValues
from jobmaster.model.job_view import JobView
from jobmaster.ports import Recall
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, resize
from tests.support.patience import PATIENCE_SECONDS

LATER = datetime(2031, 3, 4, 5, 6, 7, 890123, tzinfo=UTC)
ARGS = {"path": "a"}


async def row(client: ClientFixture, job_id: UUID) -> JobView:
    view = await client.master.queries.get(job_id.bytes)
    assert view is not None
    return view


async def log_of(client: ClientFixture, job_id: UUID) -> list[tuple[str, str]]:
    connection = await client.connect()
    found = await connection.fetch(
        "SELECT actor, action FROM operator_log WHERE subject = $1 ORDER BY seq", str(job_id)
    )
    await connection.close()
    return [tuple(line) for line in found]


async def put_into_bucket(client: ClientFixture, **options: Any) -> UUID:
    """A job that is ASSIGNED and lies in a bucket."""
    receipt = await client.cluster.submit(resize, ARGS, durability="master", **options)
    assert (await row(client, receipt.id)).state is JobState.ASSIGNED
    job_id: UUID = receipt.id
    return job_id


# ------------------------------------------------------------ in the master


async def test_a_held_job_gets_all_new_values_in_one_write(client: ClientFixture) -> None:
    await client.agent.open("payroll", 5)
    receipt = await client.cluster.submit(resize, ARGS, after=3600)
    before = await row(client, receipt.id)
    change = await client.cluster.change(receipt, at=LATER, priority="critical", lane="payroll", actor="me")
    assert change == JobChange(
        id_bytes=receipt.id_bytes, effect=ChangeEffect.CHANGED, state=JobState.HELD, due_us=change.due_us,
        priority=Priority.CRITICAL, lane="payroll",
    )  # fmt: skip
    assert change.changed
    after = await row(client, receipt.id)
    assert (after.due_at, after.priority, after.lane, after.token) == (LATER, 5, "payroll", before.token)
    assert change.due_at == LATER
    assert await log_of(client, receipt.id) == [("me", "job change")]


async def test_each_change_alone_leaves_the_rest(client: ClientFixture) -> None:
    await client.agent.open("payroll", 3)
    receipt = await client.cluster.submit(resize, ARGS, at=LATER)
    assert (await receipt.reprioritise("high")).priority is Priority.HIGH
    moved = await receipt.move("payroll")
    assert (moved.lane, moved.priority, moved.due_at) == ("payroll", Priority.HIGH, LATER)
    assert moved.unserved, "no agent has a bucket of payroll/high"
    soon = await receipt.reschedule(after=timedelta(hours=2))
    assert soon.due_at is not None
    assert timedelta(hours=1) < soon.due_at - datetime.now(UTC) <= timedelta(hours=2)
    actions = [action for _, action in await log_of(client, receipt.id)]
    assert actions == ["job reprioritise", "job move", "job reschedule"]


async def test_run_now_makes_it_due_and_gives_an_owner_a_hint(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, ARGS, at=LATER)
    change = await client.cluster.run_now(receipt.id)
    assert (change.effect, change.state) == (ChangeEffect.CHANGED, JobState.HELD)
    buckets = client.agent.buckets["default", 3]
    claims = [await client.store.claim(client.agent.fence(bucket), "hint", 10) for bucket in buckets]
    assert [claim.hint for claim in claims].count(True) == 1
    fence = client.agent.fence(buckets[0])
    assert [entry.id for entry in (await client.master.onboarding.onboard(fence, "default", 3, 0.0, 10)).entries] == [
        receipt.id_bytes
    ]
    assert [action for _, action in await log_of(client, receipt.id)] == ["job run-now"]


async def test_an_overdue_job_keeps_its_place_when_it_is_to_run_now(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, ARGS, at=LATER)
    connection = await client.connect()
    await connection.execute("UPDATE job SET due_at = '2020-01-01Z' WHERE id = $1", receipt.id)
    await connection.close()
    assert (await receipt.run_now()).due_at == datetime(2020, 1, 1, tzinfo=UTC)
    assert (await receipt.reschedule(at=datetime(2021, 1, 1, tzinfo=UTC))).due_at == datetime(2020, 1, 1, tzinfo=UTC)


async def test_a_job_that_is_put_off_gets_its_own_due_time_back_where_it_is_moved(client: ClientFixture) -> None:
    await client.agent.open("payroll", 3)
    receipt = await client.cluster.submit(resize, ARGS, at=LATER)
    connection = await client.connect()
    await connection.execute(
        "INSERT INTO put_off (job_id, lane, priority, handler, due_at, until)"
        " SELECT id, lane, priority, handler, due_at, '2032-01-01Z' FROM job WHERE id = $1",
        receipt.id,
    )
    await connection.execute("UPDATE job SET due_at = '2032-01-01Z' WHERE id = $1", receipt.id)
    assert (await receipt.move("payroll")).due_at == LATER
    assert await connection.fetchval("SELECT due_at FROM job WHERE id = $1", receipt.id) == LATER
    await connection.close()


# ------------------------------------------------------------ in a bucket


async def test_a_job_in_a_bucket_is_recalled_and_waits_in_the_master(client: ClientFixture) -> None:
    job_id = await put_into_bucket(client)
    change = await client.cluster.reschedule(job_id, at=LATER)
    assert (change.effect, change.state, change.due_at) == (ChangeEffect.CHANGED, JobState.HELD, LATER)
    view = await row(client, job_id)
    assert (view.state, view.bucket_id, view.token) == (JobState.HELD, None, 2)
    assert await client.waiting() == {}, "no copy is left that could start early"


async def test_a_job_that_only_its_bucket_knows_is_changed_too(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, ARGS)
    assert await client.master.queries.get(receipt.id_bytes) is None
    change = await client.cluster.change(receipt.id, at=LATER, priority="low")
    assert (change.effect, change.due_at, change.priority) == (ChangeEffect.CHANGED, LATER, Priority.LOW)
    view = await row(client, receipt.id)
    assert (view.state, view.arguments["path"], view.token) == (JobState.HELD, "a", 1)
    assert await client.waiting() == {}


async def test_it_runs_once_after_a_change(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, ARGS)
    await receipt.reschedule(at=LATER)
    assert await client.agent.work_off() == 0
    await receipt.run_now()
    bucket = client.agent.buckets["default", 3][0]
    onboarded = await client.master.onboarding.onboard(client.agent.fence(bucket), "default", 3, 0.0, 10)
    (entry,) = onboarded.entries
    assert entry.token == 2
    assert await client.store.assign(client.agent.fence(bucket), [(entry.due_us, encode_entry(entry))]) == "OK"
    assert await client.agent.work_off(result=b"1") == 1
    assert (await row(client, receipt.id)).state is JobState.SUCCEEDED


async def test_a_job_is_waited_for_that_is_on_its_way_into_the_bucket(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marked in the master, not put yet: a change of the row now would let the copy start early."""
    monkeypatch.setattr(changes_module, "TRY_SECONDS", PATIENCE_SECONDS)
    receipt = await client.cluster.submit(resize, ARGS, at=LATER)
    bucket = client.agent.buckets["default", 3][0]
    fence = client.agent.fence(bucket)
    (entry,) = (await client.master.onboarding.onboard(fence, "default", 3, 1e9, 10)).entries
    changing = asyncio.create_task(client.cluster.reschedule(receipt, after=7200))
    await asyncio.sleep(0.1)
    assert not changing.done()
    assert (await row(client, receipt.id)).state is JobState.ASSIGNED
    await client.store.assign(fence, [(entry.due_us, encode_entry(entry))])
    assert (await changing).effect is ChangeEffect.CHANGED
    assert await client.waiting() == {}


async def test_a_job_that_stays_between_master_and_bucket_is_a_conflict(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_module, "TRY_SECONDS", 0.1)
    receipt = await client.cluster.submit(resize, ARGS, at=LATER)
    fence = client.agent.fence(client.agent.buckets["default", 3][0])
    await client.master.onboarding.onboard(fence, "default", 3, 1e9, 10)
    with pytest.raises(Conflict, match="was not changed"):
        await receipt.run_now()
    assert (await row(client, receipt.id)).state is JobState.ASSIGNED


async def test_a_claimed_job_that_is_due_later_is_on_its_way_to_the_master(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent takes it out of the bucket only to write it to the master."""
    monkeypatch.setattr(changes_module, "TRY_SECONDS", 0.1)
    receipt = await client.cluster.submit(resize, ARGS, after=60.0, durability="store")
    for bucket in client.agent.buckets["default", 3]:
        await client.agent.claim(bucket)
    with pytest.raises(Conflict, match="was not changed"):
        await receipt.run_now()


# ------------------------------------------------------------ too late


async def test_what_an_agent_has_in_memory_is_not_changed(client: ClientFixture) -> None:
    rowless, assigned = await client.cluster.submit(resize, ARGS), await put_into_bucket(client)
    for bucket in client.agent.buckets["default", 3]:
        await client.agent.claim(bucket)
    for job_id in (rowless.id, assigned):
        change = await client.cluster.reschedule(job_id, at=LATER)
        assert (change.effect, change.state) == (ChangeEffect.ALREADY_CLAIMED, JobState.QUEUED)
        assert not change.changed
    assert await client.master.queries.get(rowless.id_bytes) is None, "nothing is written about it"
    assert (await row(client, assigned)).state is JobState.ASSIGNED
    assert await log_of(client, assigned) == []


async def test_what_runs_or_has_ended_is_not_changed(client: ClientFixture) -> None:
    ended = await client.cluster.submit(resize, ARGS)
    await client.agent.work_off()
    running, waiting = await put_into_bucket(client), await client.cluster.submit(resize, ARGS, at=LATER)
    cancelled = await client.cluster.submit(resize, ARGS, at=LATER)
    await cancelled.cancel()
    connection = await client.connect()
    await connection.execute("UPDATE job SET state = 'PROCESSING' WHERE id = $1", running)
    await connection.execute("UPDATE job SET state = 'WAITING' WHERE id = $1", waiting.id)
    await connection.close()
    found = [await client.cluster.run_now(job) for job in (running, waiting, ended, cancelled)]
    assert [(change.effect.value, change.state.value) for change in found] == [
        ("ALREADY_STARTED", "PROCESSING"),
        ("ALREADY_STARTED", "WAITING"),
        ("ALREADY_ENDED", "SUCCEEDED"),
        ("ALREADY_ENDED", "CANCELLED"),
    ]
    with pytest.raises(NotFound):
        await client.cluster.run_now(new_id())


async def test_a_cancel_request_that_came_before_ends_the_job(client: ClientFixture) -> None:
    job_id = await put_into_bucket(client)
    await client.cluster.cancel(job_id)
    change = await client.cluster.reschedule(job_id, at=LATER)
    assert (change.effect, change.state) == (ChangeEffect.ALREADY_ENDED, JobState.CANCELLED)
    assert (await row(client, job_id)).state is JobState.CANCELLED


# ------------------------------------------------------------ wrong input


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, InputError, "sets nothing"),
        ({"at": None}, InputError, "sets nothing"),
        ({"prority": "high"}, InputError, "no option 'prority'"),
        ({"priority": "urgent"}, InputError, "unknown priority 'urgent'"),
        ({"lane": "No Lane"}, InputError, "lane"),
        ({"lane": "nowhere"}, UnknownLane, "no agent serves lane 'nowhere'"),
        ({"at": LATER, "after": 5}, InvalidDueTime, "both 'at' and 'after'"),
        ({"at": datetime(2031, 1, 1)}, InvalidDueTime, "naive"),  # noqa: DTZ001  # that is the mistake
        ({"after": float("nan")}, InvalidDueTime, "finite"),
        ({"after": 4000 * 86400.0}, InvalidDueTime, "days ahead, the limit is 3660"),
    ],
)
async def test_a_wrong_change_is_one_clear_error_and_changes_nothing(
    client: ClientFixture, options: Any, error: type[InputError], said: str
) -> None:
    receipt = await client.cluster.submit(resize, ARGS, at=LATER)
    before = await row(client, receipt.id)
    with pytest.raises(error, match=said) as caught:
        await client.cluster.change(receipt, **options)
    assert type(caught.value) is error
    assert await row(client, receipt.id) == before


@pytest.mark.parametrize(
    ("actor", "said"),
    [
        (5, "'actor' must be text, not int"),
        ("", "'actor' is empty"),
        ("a\0b", r"U\+0000"),
        ("x" * 201, "limit is 200"),
    ],
)
async def test_a_wrong_actor_is_one_clear_error(client: ClientFixture, actor: Any, said: str) -> None:
    receipt = await client.cluster.submit(resize, ARGS, at=LATER)
    before = await row(client, receipt.id)
    with pytest.raises(InputError, match=said):
        await client.cluster.change(receipt, after=60, actor=actor)
    with pytest.raises(InputError, match=said):
        await client.cluster.release_lock("nightly", actor=actor)
    assert await row(client, receipt.id) == before


async def test_a_job_in_a_store_that_the_configuration_lacks_is_an_error_with_its_name(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    job_id = await put_into_bucket(client)
    before = await row(client, job_id)
    elsewhere = await open_cluster(stores={"other": client.store})
    with pytest.raises(ConfigError, match=r"store 'default', which this configuration .* \(add stores\.default"):
        await elsewhere.run_now(job_id)
    assert await row(client, job_id) == before
    assert (await client.cluster.reschedule(job_id, at=LATER)).changed


@pytest.mark.parametrize("where", ["held", "bucket", "no row"])
async def test_a_due_time_after_the_expiry_is_refused(client: ClientFixture, where: str) -> None:
    options: Any = {"held": {"after": 3600}, "bucket": {"durability": "master"}}.get(where, {})
    receipt = await client.cluster.submit(resize, ARGS, expires=7200, **options)
    with pytest.raises(InvalidDueTime, match=r"expires at .* UTC, not after the new due time"):
        await receipt.reschedule(after=7200)
    waits = {"held": "HELD", "bucket": "ASSIGNED", "no row": "SAVE_PENDING"}
    assert (await receipt.get()).state == waits[where]
    assert (await receipt.reschedule(after=3600)).changed
    assert (await receipt.get()).headers.expires_us is not None


# ------------------------------------------------------------ lost answers, and a crash in between


async def test_a_lost_answer_of_any_step_is_asked_for_again(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in (
        (AgentStore, "recall"),
        (Changes, "hold_recalled"),
        (Changes, "assign_copy"),
        (Changes, "change_held"),
    ):
        done = getattr(owner, name)
        lost: list[str] = []

        async def once_without_answer(self: Any, *args: Any, _done: Any = done, _lost: Any = lost, **more: Any) -> Any:
            answer = await _done(self, *args, **more)
            if not _lost:
                _lost.append("reply")
                raise OutcomeUnknown("the answer was lost")
            return answer

        with monkeypatch.context() as patched:
            patched.setattr(owner, name, once_without_answer)
            receipt = await client.cluster.submit(resize, ARGS)
            change = await receipt.reschedule(at=LATER)
        assert lost, name
        assert (change.effect, change.due_at) == (ChangeEffect.CHANGED, LATER), name
        assert await client.waiting() == {}, name


@pytest.mark.parametrize("durability", ["store", "master"])
async def test_a_client_that_dies_between_recall_and_write_has_lost_nothing(
    client: ClientFixture, durability: Any
) -> None:
    """The row is there without a copy: the next change takes effect at once, and anti-entropy gives it back otherwise."""
    receipts = [await client.cluster.submit(resize, ARGS, durability=durability) for _ in range(2)]
    for receipt in receipts:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Changes, "hold_recalled", _dies)
            with pytest.raises(asyncio.CancelledError):
                await receipt.reschedule(at=LATER)
        assert (await row(client, receipt.id)).state is JobState.ASSIGNED
    assert await client.waiting() == {}
    again = await receipts[1].run_now()
    assert again.effect is ChangeEffect.CHANGED
    view = await row(client, receipts[0].id)
    assert view.bucket_id is not None
    fence = next(client.agent.fence(each) for each in client.agent.buckets["default", 3] if each.id == view.bucket_id)
    written = await client.master.onboarding.release(fence, [(receipts[0].id_bytes, view.token)])
    assert written.accepted == {receipts[0].id_bytes}
    assert (await row(client, receipts[0].id)).state is JobState.HELD


async def _dies(*_: Any) -> Any:
    raise asyncio.CancelledError


async def test_a_job_that_was_given_to_another_bucket_meanwhile_is_not_taken_from_it(client: ClientFixture) -> None:
    """Between the recall and the write the job was given back and assigned anew: that assignment stands."""
    job_id = await put_into_bucket(client)
    view = await row(client, job_id)
    assert view.bucket_id is not None
    identity = Identity(view.token, view.bucket_id, 1)
    first = next(each for each in client.agent.buckets["default", 3] if each.id == view.bucket_id)
    other = next(each for each in client.agent.buckets["default", 3] if each.id != view.bucket_id)
    assert await client.store.recall(job_id.bytes, identity, view.due_us or 0, 100) is Recall.RECALLED
    await client.master.onboarding.release(client.agent.fence(first), [(job_id.bytes, view.token)])
    (entry,) = (await client.master.onboarding.onboard(client.agent.fence(other), "default", 3, 0.0, 10)).entries
    assert await client.master.changes.hold_recalled(job_id.bytes, identity, NewValues(1), "late") is None
    view = await row(client, job_id)
    assert (view.state, view.bucket_id, view.token) == (JobState.ASSIGNED, other.id, entry.token)
