"""A rolling upgrade: a newer program has migrated, and agents and producers of this one live on, or are refused unharmed.

The newer program is this process with one more migration; every other process knows only what is in the tree.
"""

from __future__ import annotations

import os
import signal

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.master.schema import migrate as migrate_module
from jobmaster.master.schema.migrations import migration_of, migrations
from jobmaster.model.errors import SchemaMismatch
from jobmaster.model.job import JobState
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.system.jobs import handlers, note

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
JOBS = 40
ADDITIVE = """-- programs: >= {last:04d}
CREATE TABLE later (id uuid PRIMARY KEY, what text NOT NULL);
ALTER TABLE job ADD COLUMN later_note text;
ALTER TABLE attempt ADD COLUMN later_note text;
ALTER TABLE agent ADD COLUMN later_note text NOT NULL DEFAULT '';
ALTER TABLE bucket ADD COLUMN later_count integer NOT NULL DEFAULT 0;
CREATE INDEX later_agents ON agent (later_note);
"""
BREAKING = "CREATE TABLE later (id uuid PRIMARY KEY);"
"""It breaks nothing that is there; it only does not say so. So the cluster can still be looked at."""


async def upgrade(deployment: Deployment, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    """``jobmaster db migrate`` by a newer program."""
    ours, settings = migrations(), deployment.settings
    newer = migration_of(len(ours) + 1, "later", content.format(last=len(ours)).encode())
    with monkeypatch.context() as patched:
        patched.setattr(migrate_module, "migrations", lambda: (*ours, newer))
        applied = await migrate_module.migrate(
            dsn=deployment.dsn, schema=settings.schema_name(), cluster=settings.cluster, settings=settings.master
        )
    assert applied == [newer]


async def some_jobs(deployment: Deployment, cluster: Cluster) -> None:
    """Through stores and master, at once and later: all of them end."""
    path = str(deployment.path("n"))
    receipts = [await cluster.submit(note, {"path": path}) for _ in range(JOBS)]
    receipts += [await cluster.submit(note, {"path": path}, durability="master", after=0.01) for _ in range(JOBS)]
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in receipts} == {JobState.SUCCEEDED}


@pytest.mark.usefixtures("long_lease")
async def test_an_additive_migration_lets_older_agents_and_producers_start_and_work(
    deployment: Deployment, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await deployment.start_agent("--processes", "2", processes=2)
    await some_jobs(deployment, cluster)
    await upgrade(deployment, monkeypatch, ADDITIVE)
    await some_jobs(deployment, cluster)
    os.kill(agent.children()[0], signal.SIGKILL)
    await agent.wait_event("agent_started", 3, PATIENCE_SECONDS)
    async with await open_cluster(deployment.settings, handlers) as late:
        await some_jobs(deployment, late)
    status = deployment.run("db", "status")
    assert status.returncode == 0, status.stderr
    assert "newer" in status.stdout
    another = await deployment.start_agent()
    assert await agent.terminate(PATIENCE_SECONDS) == 0
    await some_jobs(deployment, cluster)
    assert await another.terminate(PATIENCE_SECONDS) == 0
    assert agent.count("child_refused") == 0


@pytest.mark.usefixtures("long_lease")
async def test_a_breaking_migration_refuses_older_starts_and_stops_no_running_agent(
    deployment: Deployment, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await deployment.start_agent("--processes", "2", processes=2)
    first, second = agent.children()
    await upgrade(deployment, monkeypatch, BREAKING)
    os.kill(first, signal.SIGKILL)
    await agent.wait_event("child_refused", 2, PATIENCE_SECONDS)
    await agent.wait_event("certificate_written", 1, PATIENCE_SECONDS)
    assert agent.count("certificate_failed") == 0, "its jobs need not wait for the end of its lease"
    assert "was made by a newer program (migration" in agent.log.read_text()
    await some_jobs(deployment, cluster)
    assert second in agent.children(), "the sibling is the one that ran them"
    with pytest.raises(SchemaMismatch, match="newer program"):
        await open_cluster(deployment.settings, handlers)
    refused = deployment.run("agent", "run")
    assert refused.returncode == 77
    assert refused.stderr.count("newer program") == 1, refused.stderr
    assert await agent.terminate(PATIENCE_SECONDS) in (0, 1), "1 if the other one had just been refused again"
