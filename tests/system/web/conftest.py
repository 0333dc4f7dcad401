"""One browser, and one cluster with jobs of every kind, for all tests of the pages."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import uvicorn
from starlette.applications import Starlette

from jobmaster import call, chain, group, step
from jobmaster.client.cluster import Cluster
from jobmaster.embedded import ValkeyServer
from jobmaster.model.ids import text
from jobmaster.rules.access import READING, Role
from jobmaster.settings.model import Web, WebToken
from jobmaster.web.app import create_app
from jobmaster.wiring import open_cluster
from tests.conftest import MIGRATED_SCHEMA
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.servers.migrated_databases import MigratedDatabases
from tests.support.waiting import until
from tests.system.handlers.page_jobs import handlers, nightly_report, send_mail

if TYPE_CHECKING:
    from playwright.async_api import Browser

LINE_BYTES = 130_000
HOSTILE = (
    "<script>document.title = 'taken'</script>\n\u202egnp.exe \u2066<img src=x onerror=alert(1)>\n" + "x" * LINE_BYTES
)
"""A script, marks that turn the direction of text, and a line nearly as long as arguments may be."""
TOKEN = "a-token-of-the-tests-of-the-pages"
OPERATOR = {"username": "ann", "password": TOKEN}


LIMIT_MS = PATIENCE_SECONDS * 1000
"""Limit of every wait of the browser, in its unit."""


class Shown(NamedTuple):
    """A cluster, its pages, and some of its jobs."""

    deployment: Deployment
    cluster: Cluster
    url: str
    """Of pages on which nothing can be changed."""
    operator_url: str
    """Of pages for callers with a token."""
    ids: dict[str, str]
    """Of jobs and other things that pages show, by their name in addresses."""
    agents: list[AgentProcess]


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Chromium, as the system has it."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=LIMIT_MS)
        yield opened
        await opened.close()


@pytest.fixture(scope="module")
async def shown(
    migrated_databases: MigratedDatabases, valkey_server: ValkeyServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Shown]:
    """Two agents as processes, jobs that have succeeded, failed, wait and run, and the pages over them.

    They end with the tests of the pages: their transactions would hold back the events that other tests of this server read.
    """
    name = f"test-{secrets.token_hex(6)}"
    dsn = await migrated_databases.take(name)
    deployment = Deployment(tmp_path_factory.mktemp("web"), dsn, valkey_server.url, name)
    deployment.document["master"]["schema"] = MIGRATED_SCHEMA
    deployment.document["handlers"] = ["tests.system.handlers.page_jobs"]
    deployment.document["leases"]["lease"] = "300s"  # the pages show the same agents and buckets in every test
    agents = [await deployment.start_agent() for _ in range(2)]
    async with await open_cluster(deployment.settings, handlers) as cluster:
        ids = await _fill(cluster, deployment.directory)
        reading = create_app(cluster, Web(anonymous=sorted(READING)))
        writing = create_app(cluster, Web(tokens={"ann": WebToken(token=TOKEN, role=Role.ADMIN)}))
        async with serving(reading) as url, serving(writing) as operator_url:
            yield Shown(deployment, cluster, url, operator_url, ids, agents)
    await deployment.close()
    await migrated_databases.give_back(dsn)


async def _fill(cluster: Cluster, directory: Path) -> dict[str, str]:
    """Something of everything that pages show; ids by name."""
    sent = [await cluster.submit("mail.send", {"to": f"user {n}"}, priority="high", tags=["eu"]) for n in range(60)]
    failed = await cluster.submit("reports.nightly", {"day": "2030-01-31"}, priority="low")
    hostile = await cluster.submit("hostile", {"text": HOSTILE}, tags=["<b>bold</b>"], metadata={"note": HOSTILE[:500]})
    for minutes in (45, 45, 50, 300, 3000):  # none is due while these tests run
        await cluster.submit("mail.send", {"to": "later"}, after=minutes * 60.0)
    running = await cluster.submit("index.build", {"gate": str(directory / "gate")})
    flow = chain(
        step(call(send_mail, "a"), name="<b>first</b>"), group(call(send_mail, "b"), call(nightly_report, "today"))
    )
    workflow = await cluster.workflows.start("<i>order</i>", flow)
    async with cluster.batch("import") as batch:
        await batch.submit(call(send_mail, "c"))
    await cluster.schedules.put("nightly", "0 3 * * *", call(send_mail, "d"), zone="Europe/Berlin")
    await cluster.pause(tag="asia", reason="<script>", timeout=0)
    await cluster.limits.set("stripe", 50, rate="10/s", reason="tests", force=True)
    await cluster.wait_all([*sent, failed, hostile])
    await cluster.wait_saved(running)
    await cluster.workflows.wait(workflow)
    buckets = await cluster.master.queries.list_buckets()
    ids = {"failed": failed.id, "hostile": hostile.id, "running": running.id, "workflow": workflow, "batch": batch.id}
    return {
        **{name: str(value) for name, value in ids.items()},
        "bucket": text(buckets[0].id),
        "agent": text(buckets[0].owner),
    }


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """The application in a server on a free port; its URL."""
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started, "the server")
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    app.state.web.stopping.set()
    server.should_exit = True
    await task
    listener.close()
