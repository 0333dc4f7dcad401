"""What `docs/jobs.md` takes for granted: a handler that fails for one path, and two jobs that have failed."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import psycopg

from jobmaster import Cluster, Fail, Handlers, call
from jobmaster.server_addresses import addresses

handlers = Handlers()
paths = ["a.png", "b.png"]

EXAMPLE_ID = re.compile(r"019a9f3c(-[0-9a-f]+)+")
_waiting: list[tuple[str, str]] = []
"""DSN, and the id of a job that waits."""

__all__ = ["call", "paths", "timedelta"]


@handlers.job(name="images.resize")
async def resize(path: str) -> int:
    if path == "broken.png":
        raise Fail("no image")
    return len(path)


def run_sql(text: str) -> None:
    """As in psql, with the id of a job that waits in place of the page's."""
    dsn, job_id = _waiting[0]
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(EXAMPLE_ID.sub(job_id, text)).fetchone()
    assert found is not None
    assert found[:2] == ("CHANGED", "HELD")


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    waiting = await cluster.submit(call(resize, "c.png"), after=86_400.0)
    _waiting.append((addresses(cluster.settings).dsn, str(waiting)))
    for name in ("job", "other_job"):
        names[name] = await cluster.submit(call(resize, "broken.png"))
        await names[name].wait(timeout=60)
