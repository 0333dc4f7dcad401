"""What `docs/operations.md` takes for granted: a session in the cluster's schema."""

from __future__ import annotations

from typing import Any

import psycopg

from jobmaster import Cluster, Handlers
from jobmaster.server_addresses import addresses

handlers = Handlers()
_servers: list[tuple[str, str]] = []


def run_sql(text: str) -> None:
    """As in psql."""
    dsn, schema = _servers[0]
    with psycopg.connect(dsn, autocommit=True, options=f"-c search_path={schema}") as connection:
        connection.execute(text)


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    settings = addresses(cluster.settings)
    _servers.append((settings.dsn, cluster.settings.schema_name()))
