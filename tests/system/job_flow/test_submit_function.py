"""A job that was submitted in SQL starts with the commit: a real agent hears its notice."""

from __future__ import annotations

from functools import partial

import asyncpg
import pytest

from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


async def test_a_notice_starts_the_job_without_a_look_of_the_leader(deployment: Deployment) -> None:
    # The leader looks for due jobs once an hour, so without the notice the job waits longer than the test.
    deployment.document["leases"] |= {"leader_lease": "3h", "leader_renew": "1h"}
    await deployment.start_agent()
    schema = deployment.settings.schema_name()

    connection = await asyncpg.connect(deployment.dsn)

    async def submitted() -> object:
        async with connection.transaction():
            return await connection.fetchval(f"SELECT {schema}.submit('add', '{{\"one\": 2, \"other\": 3}}')")

    async def has_ended(job_id: object) -> bool:
        rows = await deployment.fetch("SELECT state::text, result FROM job WHERE id = $1", job_id)
        return (rows[0]["state"], rows[0]["result"]) == ("SUCCEEDED", b"5")

    # The leader also looks once when it begins to listen, for what was committed before.
    for what in ("a job that may have come before the LISTEN", "a job that a notice starts", "another one"):
        await eventually(partial(has_ended, await submitted()), PATIENCE_SECONDS, f"the end of {what}")
    await connection.close()
