"""TLS to both servers, with an authority of one's own: a cluster works over it, and a doubtful server is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from jobmaster.handlers import call
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.servers.tls_front import Authority, TlsFront
from tests.system.jobs import add, handlers


class Fronts(NamedTuple):
    """TLS in front of both servers, with a certificate of ``localhost``."""

    master: TlsFront
    store: TlsFront
    database: str
    trusted: Path
    other: Path
    """The root certificates of the servers' authority, and of another one."""

    def dsn(self, host: str = "localhost", root: Path | None = None) -> str:
        query = f"sslmode=verify-full&sslrootcert={root or self.trusted}"
        return f"postgresql://jobmaster@{host}:{self.master.port}{self.database}?{query}"

    def url(self, host: str = "localhost", root: Path | None = None) -> str:
        return f"rediss://{host}:{self.store.port}/0?ssl_ca_certs={root or self.trusted}"


@pytest.fixture
async def fronts(tmp_path: Path, migrated_dsn: str, store_url: str) -> AsyncIterator[Fronts]:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    parts = urlsplit(migrated_dsn)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    socket = f"{query['host']}/.s.PGSQL.{query['port']}"
    context = authority.server_context("localhost")
    async with AsyncExitStack() as stack:
        master = await stack.enter_async_context(TlsFront(socket, context, postgres=True))
        store = await stack.enter_async_context(TlsFront(unquote(urlsplit(store_url).path), context))
        yield Fronts(master, store, parts.path, authority.root, other.root)


@pytest.fixture
async def over_tls(deployment: Deployment, fronts: Fronts) -> Deployment:
    deployment.document["master"]["dsn"] = fronts.dsn()
    deployment.document["stores"]["default"]["url"] = fronts.url()
    return deployment


@pytest.mark.slow
async def test_agents_commands_and_producers_work_over_tls_with_a_private_authority(
    over_tls: Deployment, fronts: Fronts
) -> None:
    agent = await over_tls.start_agent()
    async with await open_cluster(over_tls.settings, handlers) as cluster:
        receipts = [await cluster.submit(call(add, number, 1)) for number in range(20)]
        receipts.append(await cluster.submit(call(add, 40, 2), durability="master"))
        assert [await receipt.result(timeout=60) for receipt in receipts][-2:] == [20, 42]
    for words in (["status"], ["store", "check"], ["doctor"]):
        done = await asyncio.to_thread(over_tls.run, *words)
        assert done.returncode == 0, done.stdout + done.stderr
    assert await agent.terminate() == 0
    assert fronts.master.passed > 3 < fronts.store.passed


async def test_a_server_of_another_authority_or_of_another_name_is_refused_in_one_sentence(
    over_tls: Deployment, fronts: Fronts
) -> None:
    """The front's certificate names localhost; 127.0.0.1 is the same server under a name that it does not have."""
    for dsn, url, said in (
        (fronts.dsn(root=fronts.other), fronts.url(), "the master database localhost"),
        (fronts.dsn(host="127.0.0.1"), fronts.url(), "the master database 127.0.0.1"),
        (fronts.dsn(), fronts.url(root=fronts.other), "agent store 'default'"),
        (fronts.dsn(), fronts.url(host="127.0.0.1"), "agent store 'default'"),
    ):
        over_tls.document["master"]["dsn"] = dsn
        over_tls.document["stores"]["default"]["url"] = url
        done = await asyncio.to_thread(over_tls.run, "store", "init")
        assert done.returncode != 0, dsn
        assert said in done.stderr
        assert "certificate" in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) <= 3, done.stderr
