"""A password that does not fit for a while: who was accepted before is tried again until it does."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from jobmaster.embedded import PostgresServer
from jobmaster.master.schema.migrate import migrate
from jobmaster.model.job import JobState
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import free_port
from tests.system.jobs import handlers, note

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


class Account:
    """The role of the agents, on a server that asks for its password, and the administrator beside it."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        place = urlsplit(server.tcp_dsn)
        self.dsn = urlunsplit(place._replace(netloc=f"app:right@{place.hostname}:{place.port}"))

    async def say(self, *statements: str) -> None:
        admin = await asyncpg.connect(self.server.dsn)
        try:
            for statement in statements:
                await admin.execute(statement)
        finally:
            await admin.close()

    async def password(self, password: str) -> None:
        """Another one from now on; present connections stay."""
        await self.say(f"ALTER ROLE app PASSWORD '{password}'")

    async def throw_out(self) -> None:
        await self.say("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")


@pytest.fixture
async def account(server_root: Path) -> AsyncIterator[Account]:
    """On a port, since only there PostgreSQL asks for passwords."""
    path = server_root / f"guarded-{secrets.token_hex(4)}"
    with PostgresServer(path, durable=False, port=free_port()) as server:
        made = Account(server)
        database = urlsplit(made.dsn).path.removeprefix("/")
        await made.say("CREATE ROLE app LOGIN PASSWORD 'right'", f'GRANT CREATE ON DATABASE "{database}" TO app')
        yield made
    shutil.rmtree(path)


@pytest.fixture
async def guarded(deployment: Deployment, account: Account) -> Deployment:
    """The rig's cluster, with its master behind a password."""
    deployment.dsn = deployment.document["master"]["dsn"] = account.dsn
    settings = deployment.settings
    await migrate(dsn=account.dsn, schema=settings.schema_name(), cluster=settings.cluster, settings=settings.master)
    return deployment


async def test_a_password_that_is_wrong_for_a_while_stops_no_supervisor_for_good(
    guarded: Deployment, account: Account
) -> None:
    guarded.shorten_lease()
    agent = await guarded.start_agent("--processes", "2", processes=2)
    first, second = agent.children()
    await account.password("wrong")
    os.kill(first, signal.SIGKILL)
    told = await agent.wait_event("child_refused", 2, PATIENCE_SECONDS)
    assert "exit code 77" in told["how"]
    assert "does not accept this user or password" in agent.log.read_text()
    await account.throw_out()
    await agent.wait_event("agent_suspended", 1, PATIENCE_SECONDS)
    await agent.wait_event("child_refused", agent.count("child_refused") + 2, PATIENCE_SECONDS)
    assert second in agent.children(), "the sibling goes on: its store stands for it"
    await account.password("right")
    await agent.wait_event("agent_resumed", 1, PATIENCE_SECONDS)
    await agent.wait_event("agent_started", 3, PATIENCE_SECONDS)
    async with await open_cluster(guarded.settings, handlers) as cluster:
        receipt = await cluster.submit(note, {"path": str(guarded.path("n"))})
        assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    assert second in agent.children()
    assert await agent.terminate(PATIENCE_SECONDS) == 0


async def test_a_first_start_with_a_wrong_password_ends_with_one_error(guarded: Deployment, account: Account) -> None:
    await account.password("other")
    answer = guarded.run("agent", "run")
    assert answer.returncode == 77, answer.stderr
    assert answer.stderr.count("does not accept this user or password") == 1, answer.stderr


@pytest.mark.parametrize("table", ["agent", pytest.param("bucket", marks=pytest.mark.long)])
async def test_so_does_one_without_a_right(guarded: Deployment, account: Account, table: str) -> None:
    """Refused when it registers, or when it makes its buckets."""
    await account.say(f'REVOKE INSERT ON "{guarded.settings.schema_name()}".{table} FROM app')
    answer = guarded.run("agent", "run")
    assert answer.returncode == 77, answer.stderr
    assert answer.stderr.count("error: ") == 1, answer.stderr
    assert "Traceback" not in answer.stderr, answer.stderr
