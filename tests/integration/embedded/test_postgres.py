from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import asyncpg
import pytest

from jobmaster.embedded import (
    BinaryOrigin,
    DirectoryInUse,
    DirectoryUnusable,
    EmbeddedError,
    PortTaken,
    PostgresServer,
    ServerStartFailed,
    find_postgres,
)
from tests.integration.embedded.conftest import linux_only, processes_on
from tests.support.processes import free_port
from tests.support.waiting import wait_until


async def run(dsn: str, statement: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


@pytest.mark.slow
async def test_data_survive_a_restart_and_stop_leaves_no_process(
    directory: Path, postgres_origin: BinaryOrigin
) -> None:
    server = PostgresServer(directory, origin=postgres_origin, durable=False)
    with server:
        assert server.program.origin is postgres_origin
        await run(server.dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
        assert server.pid in processes_on(directory)
    assert server.pid is None
    assert processes_on(directory) == []
    with server:
        assert await run(server.dsn, "SELECT answer FROM kept") == 42


@pytest.mark.slow
async def test_a_killed_server_comes_back_with_what_was_committed(
    directory: Path, postgres_origin: BinaryOrigin
) -> None:
    with PostgresServer(directory, origin=postgres_origin) as server:
        await run(server.dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
        server.kill()
        assert not server.is_running()
        server.start()
        assert await run(server.dsn, "SELECT answer FROM kept") == 42
        assert await run(server.dsn, "SELECT current_setting('fsync')") == "on"


@pytest.mark.slow
@linux_only
async def test_a_backend_that_lingers_after_a_crash_is_waited_for(directory: Path) -> None:
    with PostgresServer(directory, durable=False) as server:
        client = await asyncpg.connect(server.dsn)
        frozen: int = await client.fetchval("SELECT pg_backend_pid()")
        os.kill(frozen, signal.SIGSTOP)
        try:
            server.kill()
            starting = asyncio.create_task(asyncio.to_thread(server.start))
            refused = "is still in use"
            await asyncio.to_thread(wait_until, lambda: refused in server.directory.log.read_text(), 30, "a refusal")
        finally:
            os.kill(frozen, signal.SIGCONT)
        await starting
        assert await run(server.dsn, "SELECT 1") == 1
        client.terminate()


@pytest.mark.slow
async def test_the_version_that_wrote_the_data_is_the_one_that_is_started(directory: Path) -> None:
    try:
        of_system = find_postgres(BinaryOrigin.SYSTEM)
    except EmbeddedError as error:
        pytest.skip(str(error))
    if of_system.major == find_postgres().major:
        pytest.skip("the system's PostgreSQL has the same major version as the first choice")
    with PostgresServer(directory, origin=BinaryOrigin.SYSTEM, durable=False):
        pass
    with PostgresServer(directory, durable=False) as server:
        assert server.program.major == of_system.major


async def test_nothing_listens_on_tcp_unless_asked(postgres_server: PostgresServer) -> None:
    assert await run(postgres_server.dsn, "SELECT current_setting('listen_addresses')") == ""
    with pytest.raises(EmbeddedError, match="no TCP port"):
        _ = postgres_server.tcp_dsn


@pytest.mark.slow
async def test_tcp_asks_for_the_password(directory: Path) -> None:
    with PostgresServer(directory, durable=False, port=free_port()) as server:
        assert await run(server.tcp_dsn, "SELECT current_user") == "jobmaster"
        assert await run(server.dsn, "SELECT current_user") == "jobmaster"
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(server.tcp_dsn, password="wrong")


def test_a_taken_port_is_named(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} of 127.0.0.1"):
            PostgresServer(directory, port=port).start()


def test_a_second_server_on_the_directory_is_refused_with_the_owner_named(directory: Path) -> None:
    with PostgresServer(directory, durable=False) as server:
        with pytest.raises(DirectoryInUse, match="in use by process") as refused:
            PostgresServer(directory).start()
        assert refused.value.owner_pid > 0
        assert server.is_running()


def test_a_failed_start_shows_the_end_of_the_log(directory: Path) -> None:
    with pytest.raises(ServerStartFailed, match=r"ended while it was starting.*\n.*no_such_setting"):
        PostgresServer(directory, durable=False, settings={"no_such_setting": "1"}).start()
    assert processes_on(directory) == []
    with PostgresServer(directory, durable=False) as server:
        assert server.is_running()


@pytest.mark.slow
def test_an_initdb_that_was_cut_short_is_done_again(directory: Path) -> None:
    (directory / "data.new" / "base").mkdir(parents=True)
    with PostgresServer(directory, durable=False) as server:
        assert server.is_running()


def test_a_directory_that_is_no_postgres_is_not_touched(directory: Path) -> None:
    (directory / "data").mkdir(parents=True)
    (directory / "data" / "PG_VERSION").write_text("poem")
    with pytest.raises(DirectoryUnusable, match="does not name a PostgreSQL version"):
        PostgresServer(directory).start()
    assert [path.name for path in (directory / "data").iterdir()] == ["PG_VERSION"]
