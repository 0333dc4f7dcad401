"""Unique keys of submits by the SQL function: they meet those of the client, and the answers are the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import psycopg
import pytest

from jobmaster import Handlers, SubmitAnswer, Unique
from jobmaster.clock import new_id
from jobmaster.model.job import Durability
from jobmaster.settings.submit_rules import submit_rules
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, resize
from tests.support.cases import about

Sql: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
ARGS = {"path": "a"}

declared = Handlers()


@declared.job(name="images.resize", unique=Unique(args=["path"], on_conflict="replace"))
async def unique_resize(path: str, width: int = 800) -> None: ...


@pytest.fixture
async def sql(client: ClientFixture) -> AsyncIterator[Sql]:
    await client.master.members.publish_submit_rules(submit_rules(client.settings))
    connection = await client.connect()
    yield connection
    await connection.close()


async def submit(sql: Sql, args: Any = None, /, handler: str = "images.resize", **options: Any) -> UUID:
    job_id: UUID = await sql.fetchval(
        "SELECT submit($1, $2, $3)", handler, json.dumps(args or ARGS), json.dumps(options)
    )
    return job_id


async def refused(sql: Sql, args: Any = None, /, **options: Any) -> asyncpg.PostgresError:
    before = await sql.fetchval("SELECT count(*) FROM job")
    with pytest.raises(asyncpg.PostgresError) as raised:
        await submit(sql, args, **options)
    assert await sql.fetchval("SELECT count(*) FROM job") == before
    return raised.value


async def headers(sql: Sql, job_id: UUID) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await sql.fetchval("SELECT headers FROM job WHERE id = $1", job_id))
    return found


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"b": 1, "a": {"z": [1, 2.5, None, True], "y": {}}},
        {"f": 1e-7, "h": -0.1, "i": 9007199254740993},
        {"text": 'ü \u2028 \U0001f600 \\ / " \x1f'},
        {"long": "x" * 250},
        {"ключ": "значение"},
    ],
)
async def test_a_key_of_arguments_is_the_same_in_every_program(client: ClientFixture, sql: Sql, args: Any) -> None:
    first = await client.cluster.submit("any", args, unique=Unique(), allow_unregistered=True)
    again = await submit(sql, args, handler="any", unique={}, allow_unregistered=True) if args else first.id
    assert again == first.id
    view = await first.get()
    named = [*args, "missing"]
    some = await client.cluster.submit("any", args, unique=Unique(args=named), allow_unregistered=True)
    assert (
        await submit(sql, {**args, "other": 1}, handler="any", unique={"args": named}, allow_unregistered=True)
    ) == (some.id)
    assert view.unique_key is not None


async def test_a_key_goes_with_every_other_option(sql: Sql) -> None:
    """A migration that replaces the function has to keep what the ones before have added."""
    options: dict[str, Any] = {"unique": {"key": "k"}, "tenant": "acme", "ordering_key": "o", "tags": ["t"]}
    found = await headers(sql, await submit(sql, **options))
    marks = {"unique_key": "k", "unique_term": "live", "tenant": ["acme"], "ordering_key": "o", "tags": ["t"]}
    assert marks.items() <= found.items()


async def test_answers_are_those_of_the_client(client: ClientFixture, sql: Sql) -> None:
    first = await submit(sql, unique={"key": "k"}, tags=["t"], after=60)
    assert await headers(sql, first) == {"tags": ["t"], "unique_key": "k", "unique_term": "live"}
    assert await submit(sql, unique={"key": "k"}) == first
    met = await client.cluster.submit(resize, ARGS, unique=Unique(key="k"))
    assert (met.id, met.answer) == (first, SubmitAnswer.EXISTING)
    error = await refused(sql, unique={"key": "k", "on_conflict": "reject"})
    assert (error.sqlstate, str(first) in str(error)) == ("23505", True)
    second = await submit(sql, unique={"key": "k", "on_conflict": "replace"}, after=60)
    assert second != first
    assert (await headers(sql, first))["superseded_by"] == str(second)
    assert await sql.fetchval("SELECT state::text FROM job WHERE id = $1", first) == "CANCELLED"


async def test_windows_and_debounce(sql: Sql) -> None:
    first = await submit(sql, unique={"key": "w", "window": "1 hour"})
    await sql.execute("UPDATE job SET state = 'CANCELLED'")
    assert await submit(sql, unique={"key": "w"}) == first
    marks = await headers(sql, first)
    assert abs(marks["unique_until_us"] - marks["unique_from_us"] - 3_600_000_000) < 1_000_000
    slot = await submit(sql, unique={"key": "t", "throttle": 1e8})
    assert (await headers(sql, slot))["unique_until_us"] % 10**14 == 0
    waits = await submit(sql, unique={"key": "d", "debounce": "10 minutes"}, after=100)
    assert await submit(sql, unique={"key": "d", "debounce": "10 minutes"}, after=500) == waits
    left = await sql.fetchval("SELECT extract(epoch FROM due_at - clock_timestamp()) FROM job WHERE id = $1", waits)
    assert 400 < left <= 500


async def test_what_the_handler_declares_holds_here_too(
    client: ClientFixture, sql: Sql, open_cluster: OpenCluster
) -> None:
    await sql.execute("DELETE FROM handler")
    await client.agent.start(declared)
    first = await submit(sql, {"path": "a", "width": 1}, after=60)
    second = await submit(sql, {"path": "a", "width": 2}, after=60)
    assert (await headers(sql, first))["superseded_by"] == str(second)
    assert await submit(sql, {"path": "a"}, unique={"args": ["path"]}, after=60) == second
    keyed = await submit(sql, {"path": "a"}, idempotency_key="mine", after=60)
    assert keyed not in (first, second)


BAD: list[tuple[Any, ...]] = [
    ("k", "must be an object"),
    ({"kye": "k"}, "'unique' has no option 'kye'"),
    ({"key": ""}, "is empty"),
    ({"key": "k\u0007"}, "not printable"),
    ({"key": "k" * 201}, "201 characters"),
    ({"key": "k", "args": ["path"]}, "has key and args"),
    ({"args": []}, "must be a list"),
    ({"args": ["path", "path"]}, "twice"),
    ({"args": ["pth"]}, "'pth', which is no argument of handler"),
    ({"key": "k", "window": 60, "throttle": 60}, "held in one way"),
    ({"key": "k", "window": 0}, "must be 0.001 to"),
    ({"key": "k", "window": "soon"}, "must be seconds or the text"),
    ({"key": "k", "on_conflict": "debounce"}, "on_conflict of 'unique' must be"),
    ({"key": "k", "debounce": 60, "on_conflict": "replace"}, "has debounce and on_conflict"),
    ({"key": "k", "debounce": 60}, "needs a due time"),
]


async def test_bad_input_is_one_clear_error_and_stores_nothing(sql: Sql) -> None:
    for unique, message in BAD:
        with about(unique):
            assert message in str(await refused(sql, unique=unique))
            assert await sql.fetchval("SELECT count(*) FROM unique_key") == 0


async def test_a_key_and_an_idempotency_key_are_too_many(sql: Sql) -> None:
    assert "a job has one key" in str(await refused(sql, unique={"key": "k"}, idempotency_key="k"))
    assert "a key has no such job" in str(await refused(sql, unique={"key": "k"}, wait_for="s"))
    late = await refused(sql, unique={"key": "k", "debounce": 60}, after=61)
    assert "moves a due time at most 60 s" in str(late)


async def test_an_own_id_that_is_sent_again_is_the_same_job_here_too(sql: Sql) -> None:
    own = str(UUID(bytes=new_id()))
    first = await submit(sql, unique={"key": "k"}, job_id=own)
    assert await submit(sql, unique={"key": "k"}, job_id=own) == first == UUID(own)
    assert "exists already" in str(await refused(sql, {"path": "b"}, unique={"key": "k"}, job_id=own))


async def test_no_temporary_table_of_the_session_takes_the_place_of_the_keys(sql: Sql) -> None:
    await sql.execute("CREATE TEMPORARY TABLE unique_key (LIKE unique_key INCLUDING ALL)")
    schema = await sql.fetchval("SELECT current_schema()")
    await submit(sql, unique={"key": "k"})
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.unique_key") == 1
    assert await sql.fetchval("SELECT count(*) FROM pg_temp.unique_key") == 0


async def test_connections_of_other_drivers_have_unique_keys(
    client: ClientFixture, open_cluster: OpenCluster, sql: Sql
) -> None:
    cluster = await open_cluster(handlers=declared)
    async with await psycopg.AsyncConnection.connect(client.dsn) as connection:
        first = await cluster.submit(unique_resize, ARGS, connection=connection, after=60)
        met = await cluster.submit(unique_resize, ARGS, connection=connection, unique=Unique(args=["path"]), after=60)
        moved = [
            await cluster.submit(
                unique_resize, ARGS, connection=connection, unique=Unique(key="d", debounce="1h"), after=after
            )
            for after in (60, 120)
        ]
    assert (first.level, first.answer) == (Durability.TRANSACTION, SubmitAnswer.CREATED)
    assert (met.id, met.answer, met.duplicate) == (first.id, SubmitAnswer.EXISTING, True)
    assert (moved[1].id, moved[1].answer) == (moved[0].id, SubmitAnswer.DEBOUNCED)
    assert await client.rows() == {first.id_bytes: "HELD", moved[0].id_bytes: "HELD"}


async def test_a_statement_has_the_unique_key_of_the_submit(
    client: ClientFixture, open_cluster: OpenCluster, sql: Sql
) -> None:
    cluster = await open_cluster(handlers=declared)
    text, values = cluster.statement(unique_resize, ARGS, paramstyle="numeric", after=60)
    first = await sql.fetchval(text, *values)
    text, values = client.cluster.statement(resize, ARGS, paramstyle="numeric", unique=Unique(args=["path"]))
    assert await sql.fetchval(text, *values) == first
    remote = await open_cluster(handlers=Handlers())
    text, values = remote.statement(
        "images.resize", ARGS, paramstyle="numeric", unique=Unique(args=["path"], window="1h")
    )
    assert await sql.fetchval(text, *values) == first
    assert len(await client.rows()) == 1


async def test_jobs_of_a_handler_with_a_limit_require_that_word(sql: Sql) -> None:
    await sql.execute("""UPDATE handler SET spec = jsonb_set(spec, '{limited}', 'true') WHERE name = 'images.resize'""")
    for options in ({}, {"tags": ["t"]}, {"unique": {"key": "k"}}, {"checked": True}):
        job_id = await submit(sql, **options)
        words = await sql.fetchval("SELECT required_words(headers) FROM job WHERE id = $1", job_id)
        assert words == ["limits"]
        assert {"requires": ["limits"], **({"tags": ["t"]} if "tags" in options else {})}.items() <= (
            await headers(sql, job_id)
        ).items()
    assert "has a limit" in str(await refused(sql, complete_time=5))
    both = await sql.fetchval("""SELECT headers_requiring('{"requires":["orbit","a"],"tags":["]"]}', 'limits')""")
    assert json.loads(both) == {"requires": ["a", "limits", "orbit"], "tags": ["]"]}
