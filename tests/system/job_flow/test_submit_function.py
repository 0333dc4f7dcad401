"""A job that was submitted in SQL starts with the commit: a real agent hears its notice."""

from __future__ import annotations

import asyncpg
import pytest

from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually

pytestmark = pytest.mark.cluster


async def test_a_notice_starts_the_job_without_a_look_of_the_leader(deployment: Deployment) -> None:
    # The leader looks for due jobs once an hour, so without the notice the job waits longer than the test.
    deployment.document["leases"] |= {"leader_lease": "3h", "leader_renew": "1h"}
    await deployment.start_agent()
    schema = deployment.settings.schema_name()

    async def listens() -> bool:
        found = await deployment.fetch(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN %' || $1 || '%'", schema
        )
        return bool(found[0][0])

    await eventually(listens, PATIENCE_SECONDS, "the leader's LISTEN")
    connection = await asyncpg.connect(deployment.dsn)
    async with connection.transaction():
        job_id = await connection.fetchval(f"SELECT {schema}.submit('add', '{{\"one\": 2, \"other\": 3}}')")
    await connection.close()

    async def ended() -> bool:
        rows = await deployment.fetch("SELECT state::text, result FROM job WHERE id = $1", job_id)
        return (rows[0]["state"], rows[0]["result"]) == ("SUCCEEDED", b"5")

    await eventually(ended, PATIENCE_SECONDS, "the end of the job")
