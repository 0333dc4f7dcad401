"""Schedules in tests of applications: fires are computed, a schedule runs on request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from jobmaster import Conflict, Handlers, InputError, JobContext, NotFound, call
from jobmaster.clock import new_id
from jobmaster.model.inspection.schedule_view import ScheduleState
from jobmaster.model.job import JobState
from jobmaster.rules.recurrence import next_fire_us
from jobmaster.settings.model import ClusterSettings
from jobmaster.testing import Jobs
from jobmaster.testing.memory.rows import MemoryRows
from jobmaster.testing.memory.schedules import MemorySchedules

handlers = Handlers()
BERLIN = ZoneInfo("Europe/Berlin")


@handlers.every("30 2 * * *", zone="Europe/Berlin", tags=["reports"])
@handlers.job(name="nightly")
async def nightly(region: str = "all") -> str:
    return f"report of {region}"


@handlers.every("1d", name="dated")
@handlers.job(name="dated")
async def dated(ctx: JobContext) -> str:
    return f"{ctx.schedule} {ctx.nominal_at}"


@handlers.every("8h", name="refresh.eu", args={"region": "eu"}, overlap="cancel_previous")
@handlers.job(name="refresh")
async def refresh(region: str) -> None: ...


@pytest.fixture
def jobmaster_handlers() -> Handlers:
    return handlers


def test_fires_are_computed(jobs: Jobs) -> None:
    start = datetime(2026, 3, 28, tzinfo=BERLIN)
    fires = jobs.fires_between(start, start + timedelta(days=2), "nightly")
    assert [fire.at.astimezone(BERLIN).strftime("%d %H:%M") for fire in fires] == ["28 02:30", "29 03:00"]
    assert (fires[0].handler, fires[0].arguments) == ("nightly", {})
    every = jobs.fires_between(start, start + timedelta(hours=10))
    assert [(fire.schedule, fire.arguments) for fire in every] == [
        ("dated", {}),
        ("refresh.eu", {"region": "eu"}),
        ("nightly", {}),
        ("refresh.eu", {"region": "eu"}),
    ]


def test_a_range_that_makes_no_sense_is_refused(jobs: Jobs) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(InputError, match="more than 10000 fires"):
        jobs.fires_between(start, start + timedelta(days=10_000))
    with pytest.raises(InputError, match=r"no schedule 'nightyl' is declared .*did you mean 'nightly'"):
        jobs.fires_between(start, start + timedelta(days=1), "nightyl")
    with pytest.raises(InputError, match="naive datetime"):
        jobs.fires_between(datetime(2026, 1, 1), start)  # noqa: DTZ001


async def test_a_schedule_runs_on_request(jobs: Jobs) -> None:
    receipt = await jobs.cluster.schedules.run("nightly")
    assert not (await jobs.cluster.state(receipt)).final, "a fire ran by itself"
    with pytest.raises(Conflict, match=f"job {receipt.id} has not ended"):
        await jobs.cluster.schedules.run("nightly")
    assert (await jobs.drain()).succeeded == 1
    assert await receipt.result(timeout=5) == "report of all"
    assert (await jobs.cluster.get(receipt)).tags == ("reports",)
    (fire,) = await jobs.cluster.schedules.fires("nightly")
    assert (fire.job_id, fire.manual) == (receipt.id, True)


async def test_a_handler_is_given_the_nominal_time_of_its_fire(jobs: Jobs) -> None:
    receipt = await jobs.cluster.schedules.run("dated")
    submitted = await jobs.cluster.submit(dated)
    await jobs.drain()
    (fire,) = await jobs.cluster.schedules.fires("dated")
    assert await receipt.result(timeout=5) == f"dated {fire.nominal_at}"
    assert await submitted.result(timeout=5) == "None None", "it is no fire"


async def test_cancel_previous_cancels_the_job_before(jobs: Jobs) -> None:
    first = await jobs.cluster.schedules.run("refresh.eu")
    second = await jobs.cluster.schedules.run("refresh.eu")
    await jobs.drain()
    assert [await jobs.cluster.state(one) for one in (first, second)] == [JobState.CANCELLED, JobState.SUCCEEDED]


async def test_the_next_time_moves_with_the_clock(jobs: Jobs) -> None:
    schedules = jobs.cluster.schedules
    before = (await schedules.put("often", "5m", refresh, {"region": "eu"})).next_at
    assert before is not None
    clock = jobs.memory.rows.clock
    with clock.at_least(clock.wall_us() + 3_600_000_000):
        after = (await schedules.get("often")).next_at
        assert [after] == await schedules.next("often", 1)
    assert after is not None
    assert timedelta(hours=1) <= after - before <= timedelta(hours=1, minutes=5)


async def test_schedules_are_put_listed_paused_and_removed(jobs: Jobs) -> None:
    schedules = jobs.cluster.schedules
    view = await schedules.put(
        "customer.17", "0 6 * * mon", call(refresh, "us"), zone="Europe/Berlin", tags=["customer"]
    )
    assert (view.state, view.source, view.arguments) == (ScheduleState.ACTIVE, "api", {"region": "us"})
    assert [one.name for one in await schedules.list()] == ["customer.17", "dated", "nightly", "refresh.eu"]
    assert [one.name for one in await schedules.list(tag="customer")] == ["customer.17"]
    assert await schedules.pause("customer.17", reason="holidays") == ["customer.17"]
    paused = await schedules.get("customer.17")
    assert (paused.state, paused.paused_reason, paused.next_at) == (ScheduleState.PAUSED, "holidays", None)
    assert all(at.astimezone(BERLIN).weekday() == 0 for at in await schedules.next("customer.17", 3))
    assert await schedules.resume(tag="customer") == ["customer.17"]
    assert await schedules.remove("customer.17") == ["customer.17"]
    assert [one.name for one in await schedules.list()] == ["dated", "nightly", "refresh.eu"]
    assert (await schedules.get("customer.17")).state is ScheduleState.RETIRED
    with pytest.raises(Conflict, match="is retired"):
        await schedules.run("customer.17")


def test_code_without_an_event_loop_has_the_same_functions(jobs: Jobs) -> None:
    schedules = jobs.sync_cluster.schedules
    schedules.put("often", "5m", refresh, {"region": "eu"})
    assert schedules.get("often").expression == "300s"
    assert [one.name for one in schedules.list()] == ["dated", "nightly", "often", "refresh.eu"]
    assert len(schedules.next("often", 7)) == 7
    assert schedules.pause("often") == ["often"]
    assert schedules.resume("often") == ["often"]
    receipt = schedules.run("often")
    jobs.drain_sync()
    assert jobs.sync_cluster.state(receipt) is JobState.SUCCEEDED
    assert schedules.fires("often")[0].job_id == receipt.id
    assert schedules.remove("often") == ["often"]


async def test_mistakes_are_named(jobs: Jobs) -> None:
    schedules = jobs.cluster.schedules
    with pytest.raises(Conflict, match="schedule 'nightly' is declared by agents"):
        await schedules.put("nightly", "5m", nightly)
    with pytest.raises(NotFound, match=r"there is no schedule 'nightyl' .*did you mean 'nightly'"):
        await schedules.get("nightyl")
    with pytest.raises(InputError, match=r"schedule 'x': .* missing argument 'region'"):
        await schedules.put("x", "5m", refresh)
    with pytest.raises(InputError, match="schedule 'x': there is no handler 'refrehs'"):
        await schedules.put("x", "5m", "refrehs")
    with pytest.raises(InputError, match=r"schedule 'x': .* never fires from now on"):
        await schedules.put("x", "5m", call(refresh, "eu"), end=datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(InputError, match="name one schedule, or a tag"):
        await schedules.pause()
    with pytest.raises(NotFound, match="no schedule with the tag 'none'"):
        await schedules.pause(tag="none")
    with pytest.raises(InputError, match="from 1 to 1000, not 0"):
        await schedules.next("nightly", 0)
    assert [one.name for one in await schedules.list()] == ["dated", "nightly", "refresh.eu"], "something was stored"


async def test_a_schedule_that_has_changed_since_it_was_read_is_left_alone(jobs: Jobs) -> None:
    """As in the master: the caller reads it again."""
    schedules = MemorySchedules(MemoryRows(ClusterSettings(cluster="test")), handlers)
    (read,) = await schedules.list(["nightly"])
    await schedules.pause(["nightly"], None, "ann", "")
    (paused,) = await schedules.list(["nightly"])
    assert await schedules.run_now(read, new_id(), 1, b"", "bob") is None
    answer = await schedules.run_now(paused, new_id(), 1, b"", "bob")
    assert answer is not None
    assert await schedules.run_now(paused, new_id(), 2, b"", "bob") is None, "it has been run since"
    assert await schedules.resume([paused], next_fire_us, "bob") == []
    (again,) = await schedules.list(["nightly"])
    assert await schedules.resume([again], next_fire_us, "bob") == ["nightly"]
    await schedules.remove(["nightly"], None, "ann")
    (retired,) = await schedules.list(["nightly"], retired=True)
    assert await schedules.run_now(retired, new_id(), 3, b"", "bob") is None
