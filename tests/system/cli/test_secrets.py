"""No command, and no agent, prints a password: neither one that works nor one that breaks its URL."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import asyncpg
import pytest
import redis.asyncio

from jobmaster.embedded import PostgresServer, ValkeyServer
from jobmaster.model.errors import JobMasterError
from jobmaster.settings.loader import load_settings
from jobmaster.wiring import open_cluster
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import free_port
from tests.support.waiting import wait_until
from tests.system.cli.conftest import Result, Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

Inside = Callable[..., Result]
PARTS = ("s3kr", "r3t", "t41l")
"""Every password here holds them; none of them may be printed. None is hexadecimal, because names of clusters and ids are."""
PASSWORDS = ["s3kr@r3t/t41l", "s3kr[r3t+ t41l'\"", "s3kr:r3t%41#t41l", "s3kr?r3t=1&t41l", "s3kr,r3t\\$t41l"]
FURTHER = [pytest.param(each, marks=pytest.mark.long) for each in PASSWORDS[2:]]
COMMANDS = [
    ("config", "validate"),
    ("config", "show"),
    ("config", "show", "-o", "yaml"),
    ("config", "show", "-o", "json"),
    ("db", "status"),
    ("db", "migrate"),
    ("store", "init"),
    ("store", "check"),
    ("store", "check", "-o", "json"),
    ("status",),
    ("doctor",),
    ("doctor", "-o", "json"),
    ("job", "list"),
    ("job", "submit", "nobody", "a=1"),
    ("--debug", "job", "submit", "nobody", "a=1", "-o", "json"),
    ("bucket", "list"),
    ("agent", "list"),
]


def shows_nothing(*texts: str) -> None:
    for text in texts:
        for part in PARTS:
            assert part not in text, text


@pytest.fixture(scope="module")
def tcp_postgres(server_root: Path) -> Iterator[PostgresServer]:
    """A server that wants passwords."""
    with PostgresServer(server_root / f"secret-{uuid4().hex[:6]}", durable=False, port=free_port()) as server:
        yield server


def give(wanted: str, postgres: PostgresServer, valkey: ValkeyServer) -> None:
    """The user ``app`` gets this password in both servers, and in the store the rights that docs/operations.md names."""

    async def both() -> None:
        connection = await asyncpg.connect(postgres.tcp_dsn)
        literal = await connection.fetchval("SELECT quote_literal($1::text)", wanted)
        there = await connection.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = 'app'")
        await connection.execute(f"{'ALTER' if there else 'CREATE'} ROLE app SUPERUSER LOGIN PASSWORD {literal}")
        await connection.close()
        async with redis.asyncio.Redis.from_url(valkey.url) as client:
            await client.acl_setuser(
                "app",
                enabled=True,
                reset=True,
                passwords=[f"+{wanted}"],
                keys=["jm:*"],
                channels=["jm:*"],
                categories=["+@read", "+@write", "+@connection", "+@scripting", "+@pubsub"],
                commands=["+info", "+time", "+config|get"],
            )

    asyncio.run(both())


def address(server: PostgresServer) -> str:
    return server.tcp_dsn.rpartition("@")[2]


@pytest.mark.parametrize("password", [*PASSWORDS[:2], *FURTHER])
def test_a_password_of_any_characters_works_and_is_never_printed(
    inside: Inside,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tcp_postgres: PostgresServer,
    valkey_server: ValkeyServer,
    password: str,
) -> None:
    give(password, tcp_postgres, valkey_server)
    (tmp_path / "pw").write_text(password)
    socket = valkey_server.url.removeprefix("unix://").partition("?")[0]
    (tmp_path / "jobmaster.yaml").write_text(
        f"cluster: s{uuid4().hex[:8]}\n"
        f"master: {{dsn: 'postgresql://app:${{file:pw}}@{address(tcp_postgres)}'}}\n"
        f"stores: {{default: {{url: 'unix://app:${{PW}}@{socket}'}}}}\n"
    )
    monkeypatch.setenv("PW", password)
    for words in COMMANDS:
        result = inside(*words)
        shows_nothing(result.out, result.err)
        if words[0] in ("config", "db", "store", "status"):
            assert result.code in (0, 77 if words == ("db", "status") else 0), (words, result)


@pytest.mark.parametrize("secret", PASSWORDS)
def test_a_password_that_breaks_its_url_is_one_clear_error(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """As a whole from the environment, where nothing can be encoded. What can be read as it is meant is taken."""
    reads = secret == "s3kr,r3t\\$t41l"
    for key, form in (
        ("MASTER__DSN", "postgresql://app:{}@localhost:1/d"),
        ("STORES__DEFAULT__URL", "redis://:{}@localhost:1/0"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv("JOBMASTER_MASTER__DSN", "postgresql://app@localhost:1/d")
            patch.setenv("JOBMASTER_STORES__DEFAULT__URL", "redis://localhost:1/0")
            patch.setenv(f"JOBMASTER_{key}", form.format(secret))
            for words in (*COMMANDS, ("agent", "run")):
                if reads and words == ("agent", "run"):
                    continue  # it waits for its servers
                result = inside(*words)
                shows_nothing(result.out, result.err)
                assert "Traceback" not in result.err or words[0] == "--debug"
                if not reads:
                    assert result.code == 78, (words, result)
            try:
                asyncio.run(produce({f"JOBMASTER_{key}": form.format(secret)}))
            except JobMasterError as error:
                shows_nothing(str(error), repr(error))


async def produce(env: dict[str, str]) -> None:
    base = {
        "JOBMASTER_MASTER__DSN": "postgresql://app@localhost:1/d",
        "JOBMASTER_STORES__DEFAULT__URL": "redis://localhost:1/0",
    }
    async with await open_cluster(load_settings(None, {**base, **env}).settings) as cluster:
        await cluster.submit("nobody")


def test_errors_of_servers_that_refuse_the_password_do_not_print_it(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, tcp_postgres: PostgresServer, valkey_server: ValkeyServer
) -> None:
    wrong = quote("s3kr@r3t/t41l", safe="")
    socket = valkey_server.url.removeprefix("unix://").partition("?")[0]
    monkeypatch.setenv("JOBMASTER_MASTER__DSN", f"postgresql://jobmaster:{wrong}@{address(tcp_postgres)}")
    monkeypatch.setenv("JOBMASTER_STORES__DEFAULT__URL", f"unix://nobody:{wrong}@{socket}")
    for words in COMMANDS:
        result = inside(*words)
        shows_nothing(result.out, result.err)
        if words[0] in ("db", "status", "job", "doctor"):
            assert result.code in (5, 77), (words, result)


def test_neither_dev_nor_its_agent_prints_one(
    server_root: Path, tcp_postgres: PostgresServer, valkey_server: ValkeyServer
) -> None:
    password = PASSWORDS[0]
    give(password, tcp_postgres, valkey_server)
    terminal = Terminal(server_root / f"dev-{uuid4().hex[:6]}")
    file = server_root / f"{uuid4().hex[:6]}.yaml"
    (server_root / "pw").write_text(password)
    socket = valkey_server.url.removeprefix("unix://").partition("?")[0]
    file.write_text(
        f"cluster: s{uuid4().hex[:8]}\n"
        f"master: {{dsn: 'postgresql://app:${{file:pw}}@{address(tcp_postgres)}'}}\n"
        f"stores: {{default: {{url: 'unix://app:${{file:pw}}@{socket}'}}}}\n"
    )
    dev = terminal.start("-vv", "dev", "--config", str(file))
    try:
        wait_until(
            lambda: '"alive": 1' in terminal.call("status", "--config", str(file), "-o", "json").out, 60, "the agent"
        )
        done = terminal.call(
            "job",
            "submit",
            "demo.index_file",
            f"path={__file__}",
            "--within",
            "10m",
            "--config",
            str(file),
            "-o",
            "json",
        )
        assert done.code == 0, done
        assert json.loads(done.out)["state"] == "SUCCEEDED"
    finally:
        dev.send_signal(signal.SIGTERM)
        assert dev.wait(PATIENCE_SECONDS) == 0
    (log,) = terminal.data_dir.parent.glob(f"{terminal.data_dir.name}-*.log")
    text = log.read_text()
    assert "master      postgresql://app:***@" in text
    shows_nothing(text)
