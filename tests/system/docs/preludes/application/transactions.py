"""What the page about transactions takes for granted: a table, a connection of psycopg, and a synchronous cluster."""

from __future__ import annotations

from typing import Any

import psycopg

import jobmaster
from jobmaster import Cluster, Handlers, JobContext, SyncCluster, call
from jobmaster.server_addresses import addresses
from jobmaster.settings.loader import load_settings
from tests.support.waiting import until

handlers = Handlers()

__all__ = ["JobContext", "call"]


@handlers.job(name="mail.send")
async def send_mail(to: str) -> None:
    pass


_servers: list[str] = []


def run_sql(text: str) -> None:
    """As in psql: each statement commits unless the text begins a transaction."""
    with psycopg.connect(_servers[0], autocommit=True) as connection:
        connection.execute(text)


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    _servers.append(addresses(cluster.settings).dsn)
    run_sql("DROP TABLE IF EXISTS orders CASCADE; CREATE TABLE orders (id bigint, email text); CREATE ROLE shop")
    connection = psycopg.connect(_servers[0])
    names["connection"], names["cursor"] = connection, connection.cursor()
    names["cluster"] = jobmaster.connect_sync(load_settings().settings, handlers=handlers)


async def after(names: dict[str, Any]) -> None:
    """The last block declares a trigger: an order submits a job from now on, and only with its transaction."""
    with psycopg.connect(_servers[0]) as connection:
        connection.execute("INSERT INTO orders VALUES (8, 'b@example.org')")
        connection.rollback()
        connection.execute("INSERT INTO orders VALUES (9, 'c@example.org')")
    await until(lambda: _held(names["cluster"]) == ["c@example.org"], "the jobs that are due now have ended")


def _held(cluster: SyncCluster) -> list[str]:
    return [job.arguments["to"] for job in cluster.jobs(handler="mail.send", state="HELD")]
