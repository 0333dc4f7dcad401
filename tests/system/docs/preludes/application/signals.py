"""What the page about signals takes for granted: a handler of another program. The page's own is in no agent, so its job
stays where it is."""

from __future__ import annotations

from typing import Any

import psycopg

from jobmaster import Cluster, Handlers
from jobmaster.server_addresses import addresses

handlers = Handlers()


@handlers.job(name="shop.ship")
async def ship_elsewhere(order: int) -> None: ...


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    _servers.append(addresses(cluster.settings).dsn)
    assert await cluster.signals.waiting() == []


async def after(names: dict[str, Any]) -> None:
    """The jobs have received the payload, from a program and in SQL."""
    assert names["sent"].delivered == 1
    jobs = await names["cluster"].jobs()
    assert {job.handler == "shop.ship" for job in jobs} == {True, False}
    assert [job.headers.received.payload for job in jobs] == ['{"amount":20}'] * 2


_servers: list[str] = []


def run_sql(text: str) -> None:
    """As in psql."""
    with psycopg.connect(_servers[0], autocommit=True) as connection:
        connection.execute(text)
