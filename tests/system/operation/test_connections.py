"""Connections of an agent process to the master: three, whatever it does."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from jobmaster.client.cluster import Cluster
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import noop

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("long_lease")]

CONNECTIONS = 3
"""For the lease, for control, for data."""
_SESSIONS = """
SELECT s.query FROM pg_stat_activity s JOIN {schema}.agent a ON a.id::text = s.application_name WHERE a.state = 'ACTIVE'
"""


async def ended(deployment: Deployment, jobs: int) -> bool:
    schema = deployment.settings.schema_name()
    [[found]] = await deployment.fetch(f"SELECT count(*) FROM {schema}.job WHERE state = 'SUCCEEDED'")
    return int(found) == jobs


async def test_an_agent_under_load_that_leads_and_listens_has_three_connections(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    """Outcomes by COPY, rows of jobs that wait, onboarding, cancels, hints. The last statement of each session shows its
    purpose."""
    query = _SESSIONS.format(schema=deployment.settings.schema_name())
    seen: Counter[int] = Counter()
    over = asyncio.Event()

    async def count() -> None:
        while not over.is_set():
            seen[len(await deployment.fetch(query))] += 1

    counting = asyncio.create_task(count())
    quick = await cluster.submit_many(({} for _ in range(20_000)), noop)
    held = [await cluster.submit(noop, {}, after=0.2) for _ in range(200)]
    late = [await cluster.submit(noop, {}, after=3600) for _ in range(20)]
    await asyncio.gather(*(cluster.cancel(receipt) for receipt in late))
    await cluster.wait_all([receipt.id for receipt in held], timeout=PATIENCE_SECONDS)
    await eventually(lambda: ended(deployment, quick.submitted + len(held)), PATIENCE_SECONDS, lambda: "all outcomes")
    over.set()
    await counting

    sessions: list[str] = []

    # The first use of a connection asks for types between its preparation and its execution: one look has to answer all.
    async def renewed() -> bool:
        sessions[:] = [row["query"] for row in await deployment.fetch(query)]
        return any("members/renew" in text for text in sessions)

    await eventually(renewed, PATIENCE_SECONDS, "the first renewal, which opens the connection of the lease")
    assert max(seen) <= CONNECTIONS, seen
    assert len(sessions) == CONNECTIONS, sessions
    assert len([text for text in sessions if "members/renew" in text]) == 1, sessions
