"""The function ``change_job`` of the schema: the changes of a client, in the caller's own transaction."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import asyncpg
import pytest

from jobmaster.model.errors import InputError
from jobmaster.settings.submit_rules import submit_rules
from tests.integration.client.fixture import ClientFixture, resize
from tests.support.patience import PATIENCE_SECONDS

Sql: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
LATER = datetime(2031, 3, 4, 5, 6, 7, 890123, tzinfo=UTC)
ARGS = {"path": "a"}


@pytest.fixture
async def sql(client: ClientFixture) -> Any:
    await client.agent.open("payroll", 4)
    await client.master.members.publish_submit_rules(submit_rules(client.settings))
    connection = await client.connect()
    yield connection
    await connection.close()


async def change(sql: Sql, job_id: UUID, changes: Any) -> dict[str, Any]:
    found = await sql.fetchrow("SELECT * FROM change_job($1, $2)", job_id, json.dumps(changes))
    assert found is not None
    return dict(found)


async def row(sql: Sql, job_id: UUID) -> dict[str, Any]:
    found = await sql.fetchrow("SELECT * FROM job WHERE id = $1", job_id)
    assert found is not None
    return dict(found)


async def test_the_row_is_that_of_a_clients_change(client: ClientFixture, sql: Sql) -> None:
    theirs, mine = [await client.cluster.submit(resize, ARGS, after=3600) for _ in range(2)]
    await client.cluster.change(theirs, at=LATER, priority="high", lane="payroll", actor="me")
    answer = await change(sql, mine.id, {"at": LATER.isoformat(), "priority": "high", "lane": "payroll"})
    assert answer == {"effect": "CHANGED", "state": "HELD", "due_at": LATER, "priority": "high", "lane": "payroll"}
    rows = [await row(sql, each.id) for each in (theirs, mine)]
    assert [each.pop("id") for each in rows] == [theirs.id, mine.id]
    for each in rows:
        each.pop("changed_at")
    assert rows[0] == rows[1]
    log = await sql.fetch("SELECT action, detail FROM operator_log ORDER BY seq")
    assert log[0]["action"] == log[1]["action"] == "job change"
    assert json.loads(log[0]["detail"]) == json.loads(log[1]["detail"])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"at": None},
        {"priority": "urgent"},
        {"lane": "nowhere"},
        {"lane": "No Lane"},
        {"at": LATER.isoformat(), "after": 5},
        {"after": 4000 * 86400},
    ],
)
async def test_a_wrong_change_has_the_error_of_a_client_and_changes_nothing(
    client: ClientFixture, sql: Sql, changes: dict[str, Any]
) -> None:
    receipt = await client.cluster.submit(resize, ARGS, at=LATER)
    before = await row(sql, receipt.id)
    given = {**changes, "at": LATER} if changes.get("at") else changes
    with pytest.raises(InputError) as mine:
        await client.cluster.change(receipt, **given)
    with pytest.raises(asyncpg.PostgresError) as theirs:
        await change(sql, receipt.id, changes)
    assert await row(sql, receipt.id) == before
    assert mine.value.message.startswith(str(theirs.value).partition("\n")[0].replace('"', "'"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([1], "must be an object, not array"),
        ({"prority": 1}, "no option 'prority'"),
        ({"after": 1, "notify": 7}, "notify"),
    ],
)
async def test_what_only_sql_can_get_wrong(client: ClientFixture, sql: Sql, changes: Any, said: str) -> None:
    receipt = await client.cluster.submit(resize, ARGS, at=LATER)
    with pytest.raises(asyncpg.InvalidParameterValueError, match=said):
        await change(sql, receipt.id, changes)


async def test_what_does_not_wait_in_the_master_is_left_alone_and_the_answer_shows_it(
    client: ClientFixture, sql: Sql
) -> None:
    assigned = await client.cluster.submit(resize, ARGS, durability="master")
    running = await client.cluster.submit(resize, ARGS, durability="master")
    ended = await client.cluster.submit(resize, ARGS, at=LATER)
    await ended.cancel()
    await sql.execute("UPDATE job SET state = 'PROCESSING' WHERE id = $1", running.id)
    found = [await change(sql, each.id, {"after": 60}) for each in (assigned, running, ended)]
    assert [(each["effect"], each["state"]) for each in found] == [
        ("IN_BUCKET", "ASSIGNED"),
        ("ALREADY_STARTED", "PROCESSING"),
        ("ALREADY_ENDED", "CANCELLED"),
    ]
    assert await sql.fetchval("SELECT count(*) FROM operator_log WHERE action LIKE 'job re%'") == 0
    with pytest.raises(asyncpg.NoDataFoundError, match="the master has no job"):
        await change(sql, uuid4(), {"after": 60})


async def test_a_due_time_after_the_expiry_is_refused(client: ClientFixture, sql: Sql) -> None:
    receipt = await client.cluster.submit(resize, ARGS, after=3600, expires=7200)
    with pytest.raises(asyncpg.InvalidParameterValueError, match="not after the new due time"):
        await change(sql, receipt.id, {"after": "2 hours"})
    assert (await change(sql, receipt.id, {"after": "1 hour"}))["effect"] == "CHANGED"


async def test_a_change_counts_with_the_commit_and_so_does_its_notice(client: ClientFixture, sql: Sql) -> None:
    receipt = await client.cluster.submit(resize, ARGS, at=LATER)
    notices: asyncio.Queue[str] = asyncio.Queue()
    listener = await client.connect()
    await listener.add_listener(client.settings.schema_name(), lambda *found: notices.put_nowait(found[3]))
    transaction = sql.transaction()
    await transaction.start()
    await change(sql, receipt.id, {"after": 0})
    await transaction.rollback()
    assert (await row(sql, receipt.id))["due_at"] == LATER
    async with sql.transaction():
        await change(sql, receipt.id, {"after": 0})
    assert await asyncio.wait_for(notices.get(), PATIENCE_SECONDS) == "default 3"
    await change(sql, receipt.id, {"after": 0, "notify": False})
    await change(sql, receipt.id, {"after": 3600})
    await listener.execute("SELECT pg_notify($1, 'last')", client.settings.schema_name())
    assert await asyncio.wait_for(notices.get(), PATIENCE_SECONDS) == "last"
    await listener.close()


async def test_a_role_needs_execute_alone(client: ClientFixture, sql: Sql) -> None:
    receipt = await client.cluster.submit(resize, ARGS, at=LATER)
    role = f"changer_{receipt.id.hex[-8:]}"
    schema = client.settings.schema_name()
    await sql.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema} TO {role}")
    await sql.execute(f"SET ROLE {role}")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await change(sql, receipt.id, {"after": 60})
    await sql.execute(f"RESET ROLE; GRANT EXECUTE ON FUNCTION change_job(uuid, jsonb) TO {role}; SET ROLE {role}")
    assert (await change(sql, receipt.id, {"after": 60}))["effect"] == "CHANGED"
    await sql.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
