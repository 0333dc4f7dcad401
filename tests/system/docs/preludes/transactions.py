"""What the page about transactions takes for granted: a table, a connection of psycopg, and a synchronous cluster."""

from __future__ import annotations

from typing import Any

import psycopg

import jobmaster
from jobmaster import Cluster, Handlers, call
from jobmaster.settings.loader import load_settings
from jobmaster.wiring import addresses

handlers = Handlers()

__all__ = ["call"]


@handlers.job(name="mail.send")
async def send_mail(to: str) -> None:
    pass


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    connection = psycopg.connect(addresses(cluster.settings).dsn)
    connection.execute("CREATE TABLE orders (id bigint, email text)")
    connection.commit()
    names["connection"], names["cursor"] = connection, connection.cursor()
    names["cluster"] = jobmaster.connect_sync(load_settings().settings, handlers=handlers)
