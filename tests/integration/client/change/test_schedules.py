"""``cluster.schedules`` on a real master: definitions, what people do to them, and the operator's log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobmaster import NewSchedule
from jobmaster.clock import new_id
from jobmaster.codec import encode_fire_headers
from jobmaster.master.reports import Reader
from jobmaster.model.errors import Conflict, InputError, NotFound
from jobmaster.model.inspection.schedule_view import ScheduleState
from jobmaster.model.job import JobState
from jobmaster.model.schedule import LEAD_SECONDS, Overlap, Schedule, ScheduleRow, ScheduleSource
from jobmaster.ports import NewFire, ScheduleMove
from jobmaster.rules.recurrence import next_fire_us
from tests.integration.client.fixture import ClientFixture

ARGS = {"path": "a.png"}


async def test_a_schedule_is_stored_as_it_was_put(client: ClientFixture) -> None:
    schedules = client.cluster.schedules
    view = await schedules.put(
        "nightly",
        "0 3 * * *",
        "images.resize",
        ARGS,
        zone="Europe/Berlin",
        tags=["reports"],
        overlap="queue",
        jitter="1m",
        priority="low",
    )
    assert view == await schedules.get("nightly")
    assert (view.state, view.source, view.handler, view.arguments) == (
        ScheduleState.ACTIVE,
        "api",
        "images.resize",
        ARGS,
    )
    assert (view.expression, view.zone, view.overlap, view.tags) == (
        "0 3 * * *",
        "Europe/Berlin",
        Overlap.QUEUE,
        ("reports",),
    )
    assert (view.definition.jitter_seconds, view.priority.label, view.headers.tags) == (60.0, "low", ("reports",))
    upcoming = await schedules.next("nightly", 3)
    assert view.next_at == upcoming[0] > datetime.now(UTC)
    assert [one.name for one in await schedules.list()] == ["nightly"]


async def test_nothing_is_stored_when_a_definition_is_refused(client: ClientFixture) -> None:
    schedules = client.cluster.schedules
    for when, handler, options in (
        ("0 0 30 2 *", "images.resize", {}),
        ("5m", "images.resize", {"zone": "Europe/Berlin"}),
        ("0 3 * * *", "images.resize", {"zone": "Europe/Berlim"}),
        ("0 3 * * *", "nothing", {}),
        ("0 3 * * *", "images.resize", {"end": datetime.now(UTC) - timedelta(days=1)}),
        (0.5, "images.resize", {}),
    ):
        with pytest.raises(InputError, match="schedule 'x': "):
            await schedules.put("x", when, handler, ARGS, **options)
    with pytest.raises(InputError, match=r"schedule 'x': .*argument"):
        await schedules.put("x", "5m", "images.resize", {"pth": 1})
    with pytest.raises(InputError, match="the name of a schedule is empty"):
        await schedules.put("", "5m", "images.resize", ARGS)
    assert await schedules.list(retired=True) == []


async def test_many_schedules_are_put_by_a_few_statements(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for runner in {id(each): each for each in vars(client.cluster.master.schedules).values()}.values():
        for name in ("read", "write", "in_transaction"):
            method = getattr(runner, name)

            async def counted(statement: str, *args: Any, method: Any = method, **words: Any) -> Any:
                calls.append(statement)
                return await method(statement, *args, **words)

            monkeypatch.setattr(runner, name, counted)
    schedules = client.cluster.schedules
    new = [NewSchedule(f"customer.{number}", "5m", "images.resize", ARGS, tags=["bulk"]) for number in range(2500)]
    stored = await schedules.put_many(new)
    assert [each.name for each in stored] == [each.name for each in new]
    assert {(each.expression, each.handler, each.source) for each in stored} == {("300s", "images.resize", "api")}
    assert len(calls) <= 12, calls
    monkeypatch.undo()
    assert len(await schedules.list(tag="bulk")) == 2500
    (changed,) = await schedules.put_many([NewSchedule("customer.7", "6m", "images.resize", ARGS)])
    assert changed.expression == "360s"
    assert await schedules.put_many([]) == []


async def test_of_many_schedules_none_is_stored_when_one_is_refused(client: ClientFixture) -> None:
    schedules = client.cluster.schedules
    good = NewSchedule("good", "5m", "images.resize", ARGS)
    for bad, message in (
        (NewSchedule("bad", "0 0 30 2 *", "images.resize", ARGS), "schedule 'bad': "),
        (NewSchedule("bad", "5m", "images.resize", {"pth": 1}), r"schedule 'bad': .*argument"),
        (NewSchedule("good", "6m", "images.resize", ARGS), "two of the schedules are called 'good'"),
        ("bad", "'bad' is no NewSchedule"),
    ):
        with pytest.raises(InputError, match=message):
            await schedules.put_many([good, bad])  # type: ignore[list-item]
    declared = Schedule(name="nightly", handler="images.resize", expression="300s", args=b'{"path":"a.png"}')
    await client.master.schedules.publish(client.agent.id, ScheduleSource.CODE, [declared], next_fire_us)
    with pytest.raises(Conflict, match="schedule 'nightly' is declared by agents"):
        await schedules.put_many([good, NewSchedule("nightly", "6m", "images.resize", ARGS)])
    assert [one.name for one in await schedules.list()] == ["nightly"]


async def test_a_schedule_that_agents_declare_is_not_replaced(client: ClientFixture) -> None:
    declared = Schedule(name="nightly", handler="images.resize", expression="300s", args=b'{"path":"a.png"}')
    kept = await client.master.schedules.publish(client.agent.id, ScheduleSource.CODE, [declared], next_fire_us)
    assert kept == []
    with pytest.raises(Conflict, match="schedule 'nightly' is declared by agents"):
        await client.cluster.schedules.put("nightly", "6m", "images.resize", ARGS)
    assert (await client.cluster.schedules.get("nightly")).expression == "300s"


async def test_an_agent_declares_its_code_and_its_configuration(client: ClientFixture) -> None:
    """The second source does not take the names of the first away."""
    for source, name in ((ScheduleSource.CODE, "one"), (ScheduleSource.YAML, "two")):
        declared = Schedule(name=name, handler="images.resize", expression="300s", args=b'{"path":"a.png"}')
        await client.master.schedules.publish(client.agent.id, source, [declared], next_fire_us)
    await client.master.schedules.retire_undeclared(0.0)
    assert await client.master.schedules.retire_undeclared(0.0) == []
    assert [(one.name, one.source) for one in await client.cluster.schedules.list()] == [
        ("one", "code"),
        ("two", "yaml"),
    ]


async def test_the_report_names_a_schedule_of_the_api_that_hides_a_declared_one(client: ClientFixture) -> None:
    for name in ("mine", "other"):
        await client.cluster.schedules.put(name, "5m", "images.resize", ARGS)
    declared = [
        Schedule(name=name, handler="images.resize", expression="300s", args=b'{"path":"b"}') for name in ("mine", "x")
    ]
    kept = await client.master.schedules.publish(client.agent.id, ScheduleSource.CODE, declared, next_fire_us)
    assert kept == ["mine"]
    reader = await Reader.connect(dsn=client.dsn, schema=client.settings.schema_name())
    try:
        rows = await reader.report("schedules")
    finally:
        await reader.close()
    assert {row["name"]: row["hides"] for row in rows} == {"mine": True, "other": False, "x": False}


async def test_pause_and_resume_by_tag(client: ClientFixture) -> None:
    schedules = client.cluster.schedules
    for name in ("one", "two", "three"):
        await schedules.put(name, "5m", "images.resize", ARGS, tags=["few"] if name != "three" else [])
    assert await schedules.pause(tag="few", reason="stocktaking", actor="ann") == ["one", "two"]
    paused = await schedules.get("one")
    assert (paused.state, paused.paused_by, paused.paused_reason) == (ScheduleState.PAUSED, "ann", "stocktaking")
    assert paused.paused_at is not None
    assert await schedules.pause("one") == [], "it was paused before"
    changed = await schedules.put("one", "6m", "images.resize", ARGS, tags=["few"])
    assert (changed.state, changed.expression) == (ScheduleState.PAUSED, "360s"), "a new definition ends no pause"
    assert await schedules.resume(tag="few") == ["one", "two"]
    resumed = await schedules.get("one")
    assert resumed.state is ScheduleState.ACTIVE
    assert resumed.next_at is not None
    assert resumed.next_at > datetime.now(UTC)


async def test_run_makes_a_job_that_the_overlap_rule_allows(client: ClientFixture) -> None:
    schedules = client.cluster.schedules
    await schedules.put("often", "1d", "images.resize", ARGS, tags=["t"])
    receipt = await schedules.run("often")
    job = await client.cluster.get(receipt)
    assert (job.handler, job.arguments, job.tags) == ("images.resize", ARGS, ("t",))
    with pytest.raises(Conflict, match=f"job {receipt.id} has not ended, and its overlap rule is skip"):
        await schedules.run("often")
    await client.cluster.cancel(receipt)
    await schedules.pause("often")
    again = await schedules.run("often")
    assert again.id != receipt.id, "a paused schedule runs on request"
    assert {fire.job_id for fire in await schedules.fires("often") if fire.manual} >= {again.id}


async def test_remove_ends_it_and_a_new_definition_begins_again(client: ClientFixture) -> None:
    schedules = client.cluster.schedules
    await schedules.put("often", "5m", "images.resize", ARGS)
    assert await schedules.remove("often", actor="ann") == ["often"]
    retired = await schedules.get("often")
    assert (retired.state, retired.retired_reason, retired.next_at) == (ScheduleState.RETIRED, "removed by ann", None)
    assert await schedules.list() == []
    with pytest.raises(Conflict, match="schedule 'often' is retired: removed by ann"):
        await schedules.run("often")
    assert (await schedules.put("often", "5m", "images.resize", ARGS)).state is ScheduleState.ACTIVE


async def test_a_page_is_no_limit_of_the_list(client: ClientFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmaster.client.schedules.schedules.PAGE", 2)
    schedules = client.cluster.schedules
    names = [f"s{n}" for n in range(5)]
    for name in names:
        await schedules.put(name, "5m", "images.resize", ARGS)
    assert [one.name for one in await schedules.list()] == names


async def test_an_unknown_name_gets_a_suggestion(client: ClientFixture) -> None:
    await client.cluster.schedules.put("nightly", "5m", "images.resize", ARGS)
    for act in (client.cluster.schedules.get, client.cluster.schedules.run, client.cluster.schedules.pause):
        with pytest.raises(NotFound, match=r"there is no schedule 'nightyl' .*did you mean 'nightly'"):
            await act("nightyl")


async def test_each_act_leaves_a_line_in_the_operators_log(client: ClientFixture) -> None:
    schedules = client.cluster.schedules
    await schedules.put("often", "5m", "images.resize", ARGS)
    await schedules.pause("often", actor="ann", reason="why")
    await schedules.resume("often", actor="ann")
    await client.cluster.cancel(await schedules.run("often", actor="ann"))
    await schedules.remove("often", actor="ann")
    connection = await client.connect()
    try:
        rows = await connection.fetch(
            "SELECT action FROM operator_log WHERE actor = 'ann' AND subject = 'often' ORDER BY at"
        )
    finally:
        await connection.close()
    assert [row["action"] for row in rows] == ["schedule pause", "schedule resume", "schedule run", "schedule remove"]


async def test_a_final_state_of_the_job_frees_the_schedule(client: ClientFixture) -> None:
    schedules = client.cluster.schedules
    await schedules.put("often", "1d", "images.resize", ARGS)
    first = await schedules.run("often")
    assert await client.cluster.cancel(first) is JobState.CANCELLED
    assert (await schedules.run("often")).id != first.id


async def test_a_fire_whose_job_is_made_ahead_is_the_next_one_until_its_time(client: ClientFixture) -> None:
    schedules = client.cluster.schedules
    start = datetime.now(UTC) + timedelta(seconds=20)
    for name, days in (("goes on", 9), ("ends", 0.5)):
        await schedules.put(name, "1d", "images.resize", ARGS, start=start, end=start + timedelta(days=days))
    for due in await client.master.schedules.due(10):
        after_us = next_fire_us(due.schedule, due.next_us)
        headers = encode_fire_headers(due.schedule, due.next_us, due.next_us)
        fire = NewFire(due.schedule.name, due.next_us, "fired", 0, new_id(), due.next_us, headers)
        move = ScheduleMove(due.schedule.name, due.next_us, due.revision, after_us or 0)
        assert await client.master.schedules.fire([move], [fire], LEAD_SECONDS, 1)
    for name in ("goes on", "ends"):
        view = await schedules.get(name)
        assert (view.state, view.next_at) == (ScheduleState.ACTIVE, (await schedules.next(name, 1))[0])
        assert view.next_at == start
    assert [(one.state, one.next_at) for one in await schedules.list()] == [(ScheduleState.ACTIVE, start)] * 2


async def test_a_fire_that_waits_for_its_decision_is_the_next_one(client: ClientFixture) -> None:
    schedules = client.cluster.schedules
    await schedules.put("late", "5m", "images.resize", ARGS)
    connection = await client.connect()
    try:
        at = await connection.fetchval(
            "UPDATE schedule SET next_fire = next_fire - interval '1 hour' WHERE name = 'late' RETURNING next_fire"
        )
    finally:
        await connection.close()
    assert (await schedules.get("late")).next_at == at


async def test_a_retired_schedule_has_no_times(client: ClientFixture) -> None:
    schedules = client.cluster.schedules
    await schedules.put("often", "5m", "images.resize", ARGS)
    assert len(await schedules.next("often", 3)) == 3
    await schedules.remove("often")
    assert await schedules.next("often", 3) == []


async def test_resume_overtakes_a_change_by_another_client(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules, resume = client.cluster.schedules, client.master.schedules.resume
    for name in ("one", "two"):
        await schedules.put(name, "5m", "images.resize", ARGS, tags=["few"])
    changes = 1

    async def late(rows: Sequence[ScheduleRow], *others: Any) -> list[str]:
        nonlocal changes
        if changes:
            changes -= 1
            await schedules.put("one", f"{changes + 6}m", "images.resize", ARGS, tags=["few"])
        return await resume(rows, *others)

    monkeypatch.setattr(schedules._master.schedules, "resume", late)
    await schedules.pause(tag="few")
    assert await schedules.resume(tag="few") == ["one", "two"]
    assert [one.state for one in await schedules.list()] == [ScheduleState.ACTIVE] * 2
    await schedules.pause(tag="few")
    changes = 100
    with pytest.raises(Conflict, match="changed again and again meanwhile, and still paused: schedule 'one'"):
        await schedules.resume(tag="few")
    assert [one.state for one in await schedules.list()] == [ScheduleState.PAUSED, ScheduleState.ACTIVE]
