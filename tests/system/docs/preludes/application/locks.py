"""What the page about locks takes for granted: a cluster of each kind, and things to do under a lock."""

from __future__ import annotations

from typing import Any

import jobmaster
from jobmaster import Cluster, Handlers
from jobmaster.server_addresses import addresses
from jobmaster.settings.loader import load_settings

__all__ = ["Handlers"]

handlers = Handlers()
pages = [1, 2]
stored: list[int] = []


async def import_rates(fence: int = 0) -> None:
    assert fence >= 0


def store_page(page: int, fence: int) -> None:
    assert fence > 0
    stored.append(page)


async def create_topics() -> None:
    pass


_servers: list[str] = []


def run_sql(text: str) -> None:
    """As in psql."""
    import psycopg

    with psycopg.connect(_servers[0], autocommit=True) as connection:
        connection.execute(text)


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    _servers.append(addresses(cluster.settings).dsn)
    run_sql("CREATE TABLE rates (name text, value numeric, fence bigint)")
    names["plain"] = jobmaster.connect_sync(load_settings().settings)


async def after(names: dict[str, Any]) -> None:
    """Each block did what the page says."""
    assert stored == pages
    assert names["ran_here"] is True
    assert [action.version for action in names["handlers"].once_actions] == ["3"]
    assert await names["cluster"].locks() == []
