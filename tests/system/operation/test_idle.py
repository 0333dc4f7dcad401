"""Nothing polls: what an idle agent asks of the master, and that wake-ups are immediate all the same."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.embedded import PostgresServer
from jobmaster.master.master import Master
from jobmaster.model.job import JobState
from jobmaster.model.schedule import Schedule
from jobmaster.rules.recurrence import next_fire_us
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import noop

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def statements(log: Path, agent_id: str) -> Counter[str]:
    """Names of the statements that the server's log shows for one agent."""
    lines = log.read_text().splitlines()
    mine = (line for line in lines if line.startswith(f"{agent_id} ") and "jobmaster " in line)
    return Counter(line.split("/* jobmaster ", 1)[1].split(" ", 1)[0] for line in mine)


async def put_schedules(deployment: Deployment, count: int) -> None:
    """Schedules whose next fire is far ahead."""
    settings = deployment.settings
    master = await Master.connect(
        dsn=deployment.dsn, schema=settings.schema_name(), settings=settings.master, application_name="test"
    )
    far = [
        Schedule(name=f"far-{number}", handler="noop", expression="0 0 1 1 *", start_us=4_000_000_000_000_000)
        for number in range(count)
    ]
    assert await master.schedules.put(far, next_fire_us) == []
    await master.close()


@pytest.mark.long
async def test_an_idle_leader_asks_the_master_less_than_twice_a_second_beside_many_schedules(
    deployment: Deployment, new_postgres: Callable[..., PostgresServer]
) -> None:
    """Counted where they arrive: the server writes a line for each statement, with the name of who asked."""
    server = new_postgres(log_statement="all", log_line_prefix="%a ")
    deployment.document["leases"] = {}
    deployment.document["master"]["dsn"] = deployment.dsn = server.dsn
    assert deployment.run("db", "migrate").returncode == 0
    await put_schedules(deployment, 10_000)
    await deployment.start_agent()
    [[agent_id]] = await deployment.fetch("SELECT id::text FROM agent WHERE state = 'ACTIVE'")

    async def ticks(count: int) -> Counter[str]:
        """The statements up to so many looks of the leader, of which there is one in a second."""
        found: Counter[str] = Counter()

        async def come() -> bool:
            found.clear()
            found.update(statements(server.directory.log, agent_id))
            return found["leadership/tick"] >= count

        await eventually(come, what=lambda: f"{count} looks of the leader, not {found}", pause=1.0)
        return found

    before = await ticks(8)  # what an agent does once, at its start and in its first seconds as leader
    began = time.monotonic()
    found = await ticks(before["leadership/tick"] + 20) - before
    # What comes once is of the start, which a busy machine draws out, or of a task that runs every few minutes.
    per_second = sum(count for count in found.values() if count > 1) / (time.monotonic() - began)
    assert per_second < 2.0, found
    assert not [name for name in found if name.startswith("schedules/") and name != "schedules/retire_undeclared"], (
        found
    )


async def test_a_job_after_a_quiet_minute_starts_at_once(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    waits = []
    for _ in range(10):
        await asyncio.sleep(0.7)
        began = time.perf_counter()
        receipt = await cluster.submit(noop, {})
        assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
        waits.append(time.perf_counter() - began)
    # Alone it is some milliseconds; without a wake-up the seconds between two looks, of the agent or of the client.
    assert sorted(waits)[5] < 1.0, waits
