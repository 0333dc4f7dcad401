"""DSNs of several hosts, answers of poolers, and what a DSN can be wrong in when it is dialled."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from jobmaster.clock import new_id
from jobmaster.master.driver.connection import DatabaseConnector
from jobmaster.master.driver.errors import calling, connecting
from jobmaster.master.master import Master
from jobmaster.master.reports import Reader
from jobmaster.model.errors import ConfigError, JobMasterError, Refused, SchemaMismatch, Unavailable
from jobmaster.settings.model import MasterSettings
from tests.integration.postgres.fixture import SCHEMA, MasterFixture, final_row
from tests.support.patience import PATIENCE_SECONDS, patient

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listener(folder: Path, answer: Answer) -> AsyncIterator[str]:
    """Something else at the place of a server; the directory of its socket."""
    folder.mkdir()
    under_way: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.transport.abort()

    def come_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way.add(asyncio.ensure_future(one(reader, writer)))

    server = await asyncio.start_unix_server(come_in, folder / ".s.PGSQL.5432")
    try:
        yield str(folder)
    finally:
        server.close()
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await server.wait_closed()


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A host that has vanished: it takes connections and answers nothing."""
    await asyncio.Event().wait()


def refusing(code: str, text: str) -> Answer:
    """An error for whatever the start-up message says."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack("!i", await reader.readexactly(4))
        await reader.readexactly(length - 4)
        fields = b"".join(
            kind + value.encode() + b"\0" for kind, value in ((b"S", "FATAL"), (b"C", code), (b"M", text))
        )
        writer.write(b"E" + struct.pack("!i", len(fields) + 5) + fields + b"\0")
        await writer.drain()
        await reader.read()  # until the other side has gone

    return answer


def behind(db: MasterFixture, *directories: str) -> str:
    """The DSN of the world's server with other hosts before it."""
    parts = urlsplit(db.dsn)
    own = parse_qs(parts.query)["host"][0]
    return parts._replace(query=f"host={','.join([*directories, own])}").geturl()


async def test_a_host_that_is_gone_is_passed_over(db: MasterFixture, server_root: Path) -> None:
    dsn = behind(db, str(server_root / "no-such-host"))
    master = await Master.connect(dsn=dsn, schema=SCHEMA, settings=MasterSettings(), application_name="several")
    assert await master.queries.list_buckets()
    await master.close()
    reader = await Reader.connect(dsn=dsn, schema=SCHEMA)
    assert await reader.report("server")
    await reader.close()


@pytest.mark.slow
async def test_a_host_that_is_silent_costs_its_share_of_the_time_and_once_only(
    db: MasterFixture, server_root: Path
) -> None:
    came = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        await silence(reader, writer)

    async with listener(server_root / f"silent-{id(db)}", counted) as silent:
        connector = DatabaseConnector(behind(db, silent))
        for _ in range(3):
            connection = await connector.connect(patient(0.6), server_settings={})
            await connection.close()
    assert came == 1


async def test_all_hosts_together_have_the_time_of_one(db: MasterFixture, server_root: Path) -> None:
    async with listener(server_root / f"mute-{id(db)}", silence) as silent:
        connector = DatabaseConnector(f"postgresql://app@/d?host={silent},{silent}")
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(TimeoutError):
                await connector.connect(0.2, server_settings={})


async def test_a_standby_is_passed_over_unless_it_is_wanted(db: MasterFixture, server_root: Path) -> None:
    """``primary`` is what several hosts mean; the only one here is a primary, so another wish finds no host."""
    gone = str(server_root / "no-such-host")
    dsn = behind(db, gone)
    with pytest.raises(Unavailable, match=r"no host of the master database .* is of the kind that is wanted"):
        await Reader.connect(dsn=f"{dsn}&target_session_attrs=standby", schema=SCHEMA)
    # A session that is read-only by its own settings still is one on the primary.
    for own in (dsn, f"{dsn}&target_session_attrs=read-write", f"{db.dsn}&target_session_attrs=read-write"):
        reader = await Reader.connect(dsn=own, schema=SCHEMA)
        await reader.close()


@pytest.mark.parametrize("name", ["sslrootcert", "sslcert", "sslkey"])
async def test_a_missing_file_of_a_dsn_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"h:5432/d names {name} /no/such.pem, which is not there"):
        await Reader.connect(dsn=f"postgresql://app@h/d?sslmode=verify-full&{name}=/no/such.pem", schema=SCHEMA)


async def test_a_parameter_that_the_server_does_not_know_is_refused(db: MasterFixture) -> None:
    with pytest.raises(Refused, match=r'unrecognized configuration parameter "sslmod".*after the \?'):
        await Reader.connect(dsn=f"{db.dsn}&sslmod=require", schema=SCHEMA)


@pytest.mark.parametrize(
    "name", ["search_path", "jit", "enable_hashjoin", "statement_timeout", "default_transaction_read_only"]
)
async def test_a_pooler_in_the_way_is_reported_in_one_sentence(db: MasterFixture, server_root: Path, name: str) -> None:
    said = f"unsupported startup parameter: {name}"  # as PgBouncer words it
    async with listener(server_root / f"pooler-{id(db)}-{name}", refusing("08P01", said)) as pooler:
        dsn = f"postgresql://app@/d?host={pooler}"
        for connect in (
            lambda: Reader.connect(dsn=dsn, schema=SCHEMA),
            lambda: Master.connect(dsn=dsn, schema=SCHEMA, settings=MasterSettings(), application_name="pooled"),
        ):
            with pytest.raises(Refused, match=rf"PgBouncer stands between .*: {said} \(connect directly") as caught:
                await connect()
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.DuplicatePreparedStatementError(
            'prepared statement "__asyncpg_stmt_1__" already exists\nHINT: pgbouncer'
        ),
        asyncpg.InvalidSQLStatementNameError('prepared statement "__asyncpg_stmt_7__" does not exist'),
    ],
)
def test_nor_do_statements_get_through_one(error: asyncpg.PostgresError) -> None:
    answers: list[JobMasterError] = [connecting(error, "h/d"), calling(error, "intake/insert_held", writes=True)]
    for answer in answers:
        assert isinstance(answer, Refused)
        assert "connect directly" in str(answer)
        assert "\n" not in str(answer)


async def test_a_schema_that_is_dropped_in_mid_work_is_a_schema_that_does_not_fit(db: MasterFixture) -> None:
    """And never a value of one row: writers wait for the schema instead of setting their jobs aside."""
    row = final_row(new_id(), db.fence)
    assert (await db.master.outcomes.record_final([row])).accepted
    await db.sql.execute(f"ALTER SCHEMA {SCHEMA} RENAME TO elsewhere")
    try:
        for _ in range(2):
            with pytest.raises(SchemaMismatch):
                await db.master.outcomes.record_final([final_row(new_id(), db.fence)])
    finally:
        await db.sql.execute(f"ALTER SCHEMA elsewhere RENAME TO {SCHEMA}")
    assert (await db.master.outcomes.record_final([final_row(new_id(), db.fence)])).accepted
