"""Passwords of both servers change under an agent and a producer that run."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
import redis.asyncio

import jobmaster
from jobmaster import PasswordFunctions
from jobmaster.embedded import PostgresServer, ValkeyServer
from jobmaster.handlers import call
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.system.jobs import add, handlers

pytestmark = pytest.mark.slow


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Rotated:
    """Two servers that ask for passwords, and two files that hold the present ones."""

    def __init__(self, directory: Path, postgres: PostgresServer, valkey: ValkeyServer) -> None:
        self._postgres, self._valkey = postgres, valkey
        self.files = {name: directory / f"{name}.password" for name in ("master", "store")}
        self.asked = 0

    async def rotate(self) -> None:
        """New passwords; every session of the old ones ends."""
        admin = await asyncpg.connect(self._postgres.dsn)
        store = redis.asyncio.Redis.from_url(self._valkey.url)
        words = {name: secrets.token_hex(8) for name in self.files}
        await admin.execute(f"ALTER ROLE app PASSWORD '{words['master']}'")
        await store.execute_command(
            "ACL", "SETUSER", "app", "on", "resetpass", f">{words['store']}", "~*", "&*", "+@all"
        )  # type: ignore[no-untyped-call]
        for name, path in self.files.items():
            path.write_text(words[name] + "\n")
        await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
        await store.execute_command("CLIENT", "KILL", "USER", "app")  # type: ignore[no-untyped-call]
        await admin.close()
        await store.aclose()

    def read(self, name: str) -> str:
        self.asked += 1
        return self.files[name].read_text().strip()


async def test_an_agent_and_a_producer_go_on_with_new_passwords_and_the_old_ones_are_asked_for_no_more(
    tmp_path: Path, server_root: Path, cluster_name: str, new_valkey: Callable[..., ValkeyServer]
) -> None:
    ports = {"postgres": _free_port(), "valkey": _free_port()}
    with (
        PostgresServer(server_root / f"pg-{cluster_name}", durable=False, port=ports["postgres"]) as postgres,
        ValkeyServer(server_root / f"vk-{cluster_name}", settings={"port": str(ports["valkey"])}) as valkey,
    ):
        rotated = Rotated(tmp_path, postgres, valkey)
        admin = await asyncpg.connect(postgres.dsn)
        await admin.execute("CREATE ROLE app LOGIN SUPERUSER")
        await admin.close()
        await rotated.rotate()
        database = urlsplit(postgres.tcp_dsn).path
        deployment = Deployment(
            tmp_path,
            f"postgresql://app@127.0.0.1:{ports['postgres']}{database}",
            f"redis://app@127.0.0.1:{ports['valkey']}/0",
            cluster_name,
        )
        for section, name in (
            (deployment.document["master"], "master"),
            (deployment.document["stores"]["default"], "store"),
        ):
            section["password_command"] = f"cat {rotated.files[name]}"
            section["password_lifetime"] = "1h"
        done = deployment.run("db", "migrate")
        assert done.returncode == 0, done.stderr
        agent = await deployment.start_agent()
        settings = deployment.settings
        functions = PasswordFunctions(lambda: rotated.read("master"), {"default": lambda: rotated.read("store")})
        async with jobmaster.connect(settings, handlers=handlers, passwords=functions) as cluster:
            for number in range(3):
                receipt = await cluster.submit(call(add, number, 1))
                held = await cluster.submit(call(add, number, 2), durability="master")
                assert await receipt.result(timeout=PATIENCE_SECONDS) == number + 1
                assert await held.result(timeout=PATIENCE_SECONDS) == number + 2
                await rotated.rotate()
            assert rotated.asked >= 4
        shown = deployment.run("status")
        assert shown.returncode == 0, shown.stderr
        assert await agent.terminate() == 0
        assert agent.count("agent_started") == 1, "no agent was replaced"
        for path in rotated.files.values():
            assert path.read_text().strip() not in agent.log.read_text()
        await deployment.close()
