"""What the page about signals takes for granted: handlers. Its own handler is in no agent, so its job stays where it is."""

from __future__ import annotations

from typing import Any

import psycopg

from jobmaster import Cluster, Handlers
from jobmaster.wiring import addresses

handlers = Handlers()


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    _servers.append(addresses(cluster.settings).dsn)
    assert await cluster.signals.waiting() == []


async def after(names: dict[str, Any]) -> None:
    """The job has received the payload."""
    assert names["sent"].delivered == 1
    (job,) = await names["cluster"].jobs()
    assert job.headers.received.payload == '{"amount":20}'


_servers: list[str] = []


def run_sql(text: str) -> None:
    """As in psql."""
    with psycopg.connect(_servers[0], autocommit=True) as connection:
        connection.execute(text)
