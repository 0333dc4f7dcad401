"""``examples/django_shop``: a web server, an agent, and orders whose jobs are a part of their transaction."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2
import psycopg
import pytest

from jobmaster.embedded import PostgresServer, ValkeyServer
from tests.support.deployment import REPOSITORY
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
FOLDER = REPOSITORY / "examples" / "django_shop"
MANAGE = [sys.executable, "manage.py"]


class Shop:
    """The shop from outside."""

    def __init__(self, dsn: str, store_url: str, folder: Path) -> None:
        self.dsn = dsn
        self.folder = folder
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "shop.settings",  # the tests of the adapter set theirs in this process
            "DATABASE_URL": dsn,
            "STORE_URL": store_url,
            # Other tests use the same store.
            "JOBMASTER_CLUSTER": f"shop-{secrets.token_hex(4)}",
            "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'agents'}",
        }

    def manage(self, *words: str) -> str:
        ran = subprocess.run(
            [*MANAGE, *words], cwd=FOLDER, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
            check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def start(self, name: str, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*MANAGE, *words], cwd=FOLDER, env=self.environment, stdin=subprocess.PIPE, stdout=out, stderr=out
            )
        return process, log

    def jobs(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(self.manage("jobmaster", "job", "list", "-o", "json"))
        return listed


def close(process: subprocess.Popen[bytes]) -> None:
    """Our end of its standard input."""
    assert process.stdin is not None
    process.stdin.close()


@pytest.fixture(scope="module")
def shop(
    postgres_server: PostgresServer, valkey_server: ValkeyServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    """The shop with its tables, and an agent."""
    name = f"shop_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
    dsn = urlunsplit(urlsplit(postgres_server.dsn)._replace(path=f"/{name}"))
    made = Shop(dsn, valkey_server.url, tmp_path_factory.mktemp("shop"))
    made.manage("jobmaster", "db", "migrate")
    made.manage("migrate", "-v", "0")
    agent, log = made.start("agent", "jobmaster", "agent", "run", "--leave-with-stdin")
    try:
        wait_until(lambda: agent.poll() is not None or "agent_started" in log.read_text(), 30, log.read_text)
        yield made
    finally:
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(PATIENCE_SECONDS) == 0, log.read_text()
        close(agent)


@pytest.fixture(scope="module")
def web(shop: Shop) -> Iterator[httpx2.Client]:
    """A client of the shop under Django's own server."""
    port = free_port()
    server, log = shop.start("web", "runserver", "--noreload", f"127.0.0.1:{port}")

    def answers() -> bool:
        assert server.poll() is None, log.read_text()
        try:
            return client.get("/").status_code == 404
        except httpx2.ConnectError:
            return False

    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS) as client:
        try:
            wait_until(answers, 30, log.read_text)
            yield client
        finally:
            server.terminate()
            server.wait(PATIENCE_SECONDS)
            close(server)
            assert "Traceback" not in log.read_text(), log.read_text()


def test_an_order_is_packed(web: httpx2.Client, shop: Shop) -> None:
    taken = web.post("/orders/", json={"item": "lamp", "quantity": 2})
    assert taken.status_code == 201, taken.text
    order = taken.json()

    def shown() -> dict[str, Any]:
        answer: dict[str, Any] = web.get(f"/orders/{order['order']}/").json()
        return answer

    wait_until(lambda: shown()["task"] == "SUCCESSFUL", 20, lambda: f"the parcel: {shown()}")
    assert (shown()["parcel"], shown()["quantity"]) == ("2 x lamp", 2)
    (job,) = (one for one in shop.jobs() if one["id"] == order["task"])
    assert (job["handler"], job["state"], job["priority"]) == ("orders.tasks.pack", "SUCCEEDED", "high")


def test_an_order_that_is_refused_leaves_no_job(web: httpx2.Client, shop: Shop) -> None:
    before = len(shop.jobs())
    refused = web.post("/orders/", json={"item": "lamp", "quantity": 1000})
    assert (refused.status_code, "there are only" in refused.json()["error"]) == (409, True)
    assert len(shop.jobs()) == before
    with psycopg.connect(shop.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM orders_order WHERE quantity = 1000").fetchone() == (0,)


def test_the_shop_has_no_findings_and_no_missing_migration(shop: Shop) -> None:
    assert "no issues" in shop.manage("check", "--database", "default")
    assert "No changes detected" in shop.manage("makemigrations", "--check", "--dry-run")
