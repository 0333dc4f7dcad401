"""Submits in transactions of other drivers: psycopg, psycopg2, SQLAlchemy and Django, each against the real server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from msgspec.structs import replace
from psycopg.rows import dict_row
from psycopg2.extras import RealDictCursor
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from jobmaster import call
from jobmaster.client.sync import SyncCluster
from jobmaster.clock import new_id
from jobmaster.model import ids
from jobmaster.model.errors import AccessRefused, Conflict, InputError, InvalidArguments, JobMasterError, Unserved
from jobmaster.model.job import Durability
from jobmaster.settings.submit_rules import submit_rules
from jobmaster.wiring import open_sync_cluster
from tests.integration.client.fixture import ClientFixture, handlers, resize
from tests.support.waiting import until

ROOT = Path(__file__).parents[4]


def url_of(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://")


@pytest.fixture
async def plain(client: ClientFixture) -> AsyncIterator[SyncCluster]:
    settings = replace(client.settings, master=replace(client.settings.master, dsn=client.dsn))
    cluster = open_sync_cluster(settings, handlers)
    await client.master.members.publish_submit_rules(submit_rules(settings))
    yield cluster
    await asyncio.to_thread(cluster.close)


class Psycopg:
    def __init__(self, dsn: str) -> None:
        self.given: Any = psycopg.connect(dsn, row_factory=dict_row)

    def commit(self) -> None:
        self.given.commit()

    def rollback(self) -> None:
        self.given.rollback()

    def close(self) -> None:
        self.given.close()


class PsycopgCursor(Psycopg):
    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._connection = self.given
        self.given = self._connection.cursor()

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()


class Psycopg2(Psycopg):
    def __init__(self, dsn: str) -> None:
        self.given = psycopg2.connect(dsn, cursor_factory=RealDictCursor)


class AlchemyConnection(Psycopg):
    driver = "psycopg"

    def __init__(self, dsn: str) -> None:
        self._engine = sa.create_engine(url_of(dsn, self.driver))
        self.given = self.open()

    def open(self) -> Any:
        return self._engine.connect()

    def close(self) -> None:
        self.given.close()
        self._engine.dispose()


class AlchemySession(AlchemyConnection):
    driver = "psycopg2"

    def open(self) -> Any:
        return Session(self._engine)


DRIVERS: list[Callable[[str], Any]] = [Psycopg, PsycopgCursor, Psycopg2, AlchemyConnection, AlchemySession]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_job_of_another_driver_exists_if_and_only_if_the_caller_commits(
    client: ClientFixture, plain: SyncCluster, driver: Callable[[str], Any]
) -> None:
    def work() -> bytes:
        caller = driver(client.dsn)
        plain.submit(call(resize, "lost"), connection=caller.given)
        caller.rollback()
        receipt = plain.submit(call(resize, "kept", width=3), connection=caller.given, priority="high", tags=("a",))
        assert receipt.level is Durability.TRANSACTION
        assert not receipt.duplicate
        caller.commit()
        assert receipt.get().handler == "images.resize"
        again = plain.submit("images.resize", {"path": "k"}, connection=caller.given, idempotency_key="k")
        once_more = plain.submit("images.resize", {"path": "k"}, connection=caller.given, idempotency_key="k")
        assert (str(once_more), once_more.duplicate, again.duplicate) == (str(again), True, False)
        with pytest.raises(Conflict, match="'k' of handler 'images"):
            plain.submit("images.resize", {"path": "z"}, connection=caller.given, idempotency_key="k")
        caller.rollback()
        with pytest.raises(InvalidArguments):
            plain.submit(resize, {"paht": "a"}, connection=caller.given)
        caller.close()
        return ids.parse(str(receipt))

    kept = await asyncio.to_thread(work)
    assert await client.rows() == {kept: "HELD"}


async def psycopg_async(dsn: str) -> Any:
    return await psycopg.AsyncConnection.connect(dsn)


async def alchemy_async(dsn: str) -> Any:
    return await create_async_engine(url_of(dsn, "asyncpg"), poolclass=sa.NullPool).connect()


async def alchemy_session(dsn: str) -> Any:
    return AsyncSession(create_async_engine(url_of(dsn, "psycopg"), poolclass=sa.NullPool))


@pytest.mark.parametrize("connect", [psycopg_async, alchemy_async, alchemy_session])
async def test_async_connections_are_taken_by_the_async_cluster(client: ClientFixture, connect: Any) -> None:
    connection = await connect(client.dsn)
    await client.cluster.submit(call(resize, "lost"), connection=connection)
    await connection.rollback()
    kept = await client.cluster.submit(call(resize, "kept"), connection=connection, idempotency_key="k")
    assert kept.level is Durability.TRANSACTION
    assert await client.rows() == {}
    await connection.commit()
    with pytest.raises(Conflict):
        await client.cluster.submit(call(resize, "other"), connection=connection, idempotency_key="k")
    await connection.rollback()
    assert await client.rows() == {ids.parse(str(kept)): "HELD"}
    await connection.close()


@pytest.mark.slow
async def test_django_submits_within_atomic_and_refuses_autocommit(client: ClientFixture) -> None:
    schema, url = client.settings.schema_name(), client.settings.stores["default"].url
    script = f"""
import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
to = {{key.upper(): value for key, value in conninfo_to_dict({client.dsn!r}).items()}}
settings.configure(DATABASES={{"default": {{"ENGINE": "django.db.backends.postgresql", **to, "NAME": to["DBNAME"]}}}})
django.setup()
from django.db import connection, transaction
from jobmaster import InputError, connect_sync, call
from tests.integration.client.fixture import handlers, resize
with connect_sync(None, handlers=handlers, env={{}}, overrides=["cluster={client.settings.cluster}",
        "master.dsn={client.dsn}", "master.schema={schema}", "stores.default.url={url}"]) as cluster:
    try:
        cluster.submit(call(resize, "a"), connection=connection)
    except InputError as error:
        print(error)
    try:
        with transaction.atomic():
            cluster.submit(call(resize, "lost"), connection=connection)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    with transaction.atomic(), connection.cursor() as cursor:
        print(cluster.submit(call(resize, "kept"), connection=connection).level.value)
        cursor.execute(*cluster.statement(call(resize, "two")))
        print(cluster.submit(call(resize, "three"), connection=cursor).level.value)
"""
    ran = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert ran.returncode == 0, ran.stderr
    first, *levels = ran.stdout.splitlines()
    assert "not in a transaction" in first
    assert levels == ["transaction", "transaction"]
    assert list((await client.rows()).values()) == ["HELD"] * 3


async def test_connections_that_commit_each_statement_are_refused(client: ClientFixture, plain: SyncCluster) -> None:
    def work() -> None:
        three = psycopg.connect(client.dsn, autocommit=True)
        two = psycopg2.connect(client.dsn)
        two.autocommit = True
        engine = sa.create_engine(url_of(client.dsn, "psycopg"), isolation_level="AUTOCOMMIT")
        with engine.connect() as alchemy:
            for connection in (three, two, alchemy):
                with pytest.raises(InputError, match="not in a transaction"):
                    plain.submit(call(resize, "a"), connection=connection)
        engine.dispose()
        with three.transaction():
            plain.submit(call(resize, "b"), connection=three)
        three.close()
        two.close()

    await asyncio.to_thread(work)
    at_once = create_async_engine(url_of(client.dsn, "asyncpg"), isolation_level="AUTOCOMMIT")
    connection = await at_once.connect()
    with pytest.raises(InputError, match="not in a transaction"):
        await client.cluster.submit(call(resize, "a"), connection=connection)
    await connection.close()
    await at_once.dispose()
    assert len(await client.rows()) == 1


async def test_a_connection_of_the_other_kind_or_of_no_kind_is_refused(
    client: ClientFixture, plain: SyncCluster
) -> None:
    blocking = psycopg.connect(client.dsn)
    with pytest.raises(InputError, match="blocks the event loop"):
        await client.cluster.submit(call(resize, "a"), connection=blocking)
    blocking.close()
    three = await psycopg_async(client.dsn)
    with pytest.raises(InputError, match="needs an asyncpg connection, not AsyncConnection"):
        client.cluster.transaction(three)
    await three.close()
    awaited = await client.connect()
    for given, message in (
        (awaited, "is async"),
        (object(), "not object"),
        (sa.create_engine("sqlite://").connect(), "sqlite"),
    ):
        with pytest.raises(InputError, match=message):
            await asyncio.to_thread(plain.submit, call(resize, "a"), connection=given)
    await awaited.close()


async def test_a_database_without_the_cluster_and_a_role_without_the_right_are_named(
    client: ClientFixture, plain: SyncCluster
) -> None:
    def work() -> None:
        elsewhere = psycopg.connect(client.dsn, dbname="postgres")
        with pytest.raises(InputError, match="has no function submit of this cluster"):
            plain.submit(call(resize, "a"), connection=elsewhere)
        elsewhere.close()
        role = f"shop_{new_id().hex()[:12]}"
        connection = psycopg.connect(client.dsn)
        connection.execute(f"CREATE ROLE {role}; SET ROLE {role}")
        with pytest.raises(AccessRefused, match="may not submit"):
            plain.submit(call(resize, "a"), connection=connection)
        connection.rollback()
        with pytest.raises(Unserved):
            plain.submit(call(resize, "a"), connection=connection, priority="critical", on_unserved="raise")
        connection.close()

    await asyncio.to_thread(work)
    assert await client.rows() == {}


async def test_options_that_mean_nothing_there_and_text_that_jsonb_cannot_hold_are_refused(
    client: ClientFixture, plain: SyncCluster
) -> None:
    def work() -> None:
        with psycopg.connect(client.dsn) as connection:
            for options in ({"durability": "store"}, {"on_full": "raise"}, {"allow_volatile": True}):
                with pytest.raises(InputError, match="has no meaning inside a transaction"):
                    plain.submit(resize, {"path": "a"}, connection=connection, **options)
            for metadata in ({"k": "v\0"}, {"k": "\\\0"}):
                with pytest.raises(InputError, match=r"the metadata of a job of handler 'images\.resize' .*U\+0000"):
                    plain.submit(resize, {"path": "a"}, connection=connection, metadata=metadata)
            assert connection.execute("SELECT 1").fetchone() == (1,), "the caller's transaction is not aborted"
            with pytest.raises(InvalidArguments, match=r"U\+0000"):
                plain.submit(resize, {"path": "a\0"}, connection=connection)
            plain.submit(
                resize, {"path": r"a\u0000"}, connection=connection, metadata={"k": r"\u0000"}, allow_volatile=False
            )

    await asyncio.to_thread(work)
    assert len(await client.rows()) == 1


async def test_a_transaction_of_asyncpg_refuses_the_same_options(client: ClientFixture) -> None:
    connection = await client.connect()
    for options in ({"durability": "store"}, {"on_full": "raise"}, {"allow_volatile": True}):
        given: Any = options
        async with client.cluster.transaction(connection) as tx:
            with pytest.raises(InputError, match="has no meaning inside a transaction"):
                await tx.submit(call(resize, "a"), **given)
            with pytest.raises(InputError, match="has no meaning inside a transaction"):
                await client.cluster.submit(call(resize, "a"), connection=connection, **given)
        with pytest.raises(InputError, match="has no meaning inside a transaction"):
            client.cluster.statement(call(resize, "a"), **given)
    async with client.cluster.transaction(connection) as tx:
        await tx.submit(call(resize, "kept"), allow_volatile=False)
    await connection.close()
    assert len(await client.rows()) == 1


async def test_the_notice_of_a_commit_can_be_left_out(client: ClientFixture, plain: SyncCluster) -> None:
    listener, heard = await client.connect(), list[str]()
    await listener.add_listener(client.settings.schema_name(), lambda *notice: heard.append(str(notice[-1])))

    def work() -> None:
        with psycopg.connect(client.dsn) as connection:
            plain.submit(call(resize, "a"), connection=connection, notify=False)
        with psycopg.connect(client.dsn) as connection:
            connection.execute(*client.cluster.statement(call(resize, "b"), notify=False))
            connection.execute(*client.cluster.statement("images.resize", {"path": "c"}, notify=False))
        with psycopg.connect(client.dsn) as connection:
            plain.submit(call(resize, "d"), connection=connection, notify=True, lane="payroll")

    await asyncio.to_thread(work)
    await until(lambda: heard, "the notice")
    assert [text.partition(" ")[0] for text in heard] == ["payroll"]
    await listener.close()
    assert len(await client.rows()) == 4


async def test_the_option_about_the_notice_is_refused_where_no_notice_is_sent(client: ClientFixture) -> None:
    connection = await client.connect()
    with pytest.raises(InputError, match="'notify' is an option of a submit by the SQL function"):
        await client.cluster.submit(call(resize, "a"), notify=False)
    with pytest.raises(InputError, match="'notify' is an option of a submit by the SQL function"):
        await client.cluster.submit_many([call(resize, "a")], notify=True)  # type: ignore[call-arg]
    async with client.cluster.transaction(connection) as tx:
        with pytest.raises(InputError, match="'notify' is an option of a submit by the SQL function"):
            await tx.submit(call(resize, "a"), notify=False)
    with pytest.raises(InputError, match="'notify' must be True or False, not 'no'"):
        client.cluster.statement(call(resize, "a"), notify="no")  # type: ignore[call-overload]
    await connection.close()
    assert await client.rows() == {}


async def test_an_own_id_and_every_option_arrive(client: ClientFixture, plain: SyncCluster) -> None:
    own, due = new_id(), datetime(2031, 1, 1, tzinfo=UTC)

    def work() -> None:
        with psycopg.connect(client.dsn) as connection:
            first = plain.submit(
                call(resize, "a"), connection=connection, job_id=own, at=due, expires=due + timedelta(1), tags=("t",),
                metadata={"k": "v"}, timeout=timedelta(seconds=5), max_attempts=1, delivery="at_most_once", lane="payroll",
            )  # fmt: skip
            assert not first.duplicate
        with psycopg.connect(client.dsn) as connection:
            assert plain.submit(call(resize, "a"), connection=connection, job_id=own).duplicate
            with pytest.raises(Conflict):
                plain.submit(call(resize, "b"), connection=connection, job_id=own)

    await asyncio.to_thread(work)
    connection = await client.connect()
    row = await connection.fetchrow("SELECT id, lane, due_at, headers, args FROM job")
    assert row is not None
    assert (row["id"].bytes, row["lane"], row["due_at"]) == (own, "payroll", due)
    expires = int((due + timedelta(1)).timestamp()) * 1_000_000
    assert row["headers"] == (
        b'{"tags":["t"],"metadata":{"k":"v"},"timeout_seconds":5.0,"max_attempts":1,"expires_us":%d,"at_most_once":true}'
        % expires
    )
    assert row["args"] == b'{"path":"a"}'
    await connection.close()


async def test_a_statement_runs_on_any_connection_and_in_every_style(client: ClientFixture) -> None:
    text, params = client.cluster.statement(call(resize, "a"), paramstyle="numeric", priority="low")
    sql = await asyncpg.connect(client.dsn)
    async with sql.transaction():
        one = await sql.fetchval(text, *params)
    await sql.close()

    def work() -> list[Any]:
        with psycopg.connect(client.dsn) as connection:
            two = connection.execute(*client.cluster.statement(call(resize, "b"))).fetchone()
        engine = sa.create_engine(url_of(client.dsn, "psycopg2"))
        with engine.begin() as alchemy:
            named, values = client.cluster.statement("images.resize", {"path": "c"}, paramstyle="named")
            three = alchemy.execute(sa.text(named), values).scalar_one()
        engine.dispose()
        assert two is not None
        return [two[0], three]

    two, three = await asyncio.to_thread(work)
    assert (await client.rows()).keys() == {one.bytes, two.bytes, three.bytes}


async def test_a_statement_is_made_in_a_thread_without_an_event_loop(client: ClientFixture) -> None:
    def work() -> None:
        with psycopg.connect(client.dsn) as connection:
            connection.execute(*client.cluster.statement(call(resize, "a")))

    await asyncio.to_thread(work)
    assert len(await client.rows()) == 1
    await client.cluster.close()
    with pytest.raises(JobMasterError, match="the cluster is closed"):
        client.cluster.statement(call(resize, "a"))


async def test_a_statement_that_could_never_work_is_refused_before_it_is_run(client: ClientFixture) -> None:
    statement = client.cluster.statement
    with pytest.raises(InvalidArguments):
        statement(resize, {"width": 3})
    with pytest.raises(InputError, match="'pyformat' is not a parameter style"):
        statement(call(resize, "a"), paramstyle="pyformat")  # type: ignore[call-overload]
    with pytest.raises(InputError, match="has no connection"):
        statement(call(resize, "a"), connection=object())
    with pytest.raises(InputError, match="no option"):
        statement(call(resize, "a"), priorty="high")  # type: ignore[call-overload]
    with pytest.raises(InputError, match="is empty"):
        statement("", {})
