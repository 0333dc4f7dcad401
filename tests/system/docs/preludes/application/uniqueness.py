"""What `docs/uniqueness.md` takes for granted: a handler, and a job of it that waits."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
from psycopg.sql import SQL, Identifier

from jobmaster import Cluster, Handlers, SubmitAnswer, Unique
from jobmaster.server_addresses import addresses

__all__ = ["handlers"]

_waiting: list[tuple[str, str, UUID]] = []

handlers = Handlers()


@handlers.job(name="documents.index")
async def reindex(document: int) -> None:
    assert document == 7


def run_sql(text: str) -> None:
    """As in psql: the job that waits is met."""
    dsn, schema, held = _waiting[0]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL("SET search_path = {}").format(Identifier(schema)))
        found = connection.execute(text).fetchone()
    assert found == (held,)


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    await cluster.pause(handler=reindex)  # in a bucket it would count as started
    held = await cluster.submit(reindex, {"document": 7}, unique=Unique(key="7", debounce="1m"), after=50)
    names["held"] = held.id
    _waiting.append((addresses(cluster.settings).dsn, cluster.settings.schema_name(), held.id))


async def after(names: dict[str, Any]) -> None:
    """Each submit did what the page says."""
    assert names["first"].answer is SubmitAnswer.CREATED
    assert names["other"].answer is SubmitAnswer.CREATED
    assert (names["moved"].answer, names["moved"].id) == (SubmitAnswer.DEBOUNCED, names["held"])
