"""Bulk operations by real agents: each job once, also when the leader is killed half-way, and the commands about them."""

from __future__ import annotations

import json
import os
import signal

import asyncpg
import pytest

from jobmaster.cli.tables import thousands
from jobmaster.client.cluster import Cluster
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

JOBS = 12_000
_FAILED = """
INSERT INTO job (id, state, priority, lane, handler, token, args, headers, error)
SELECT (substr(uuid_floor(clock_timestamp())::text, 1, 14) || '7' || substr(md5(n::text), 1, 3) || '-8'
        || substr(md5(n::text), 4, 3) || '-' || substr(md5(n::text), 7, 12))::uuid,
       'FAILED', 3, 'unserved', 'noop', 1, '{}', '{"tags":["bulk"]}', '{"type":"E","message":"m","reason":"error"}'
FROM generate_series(1, $1::integer) AS n
"""
"""In a lane that no agent serves, so that what runs again waits and can be counted."""


async def test_each_job_is_run_again_once_though_the_leader_is_killed_half_way(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    await deployment.start_agent()
    await deployment.fetch(_FAILED, JOBS)
    dry = deployment.run("bulk", "retry", "--tag", "bulk", "--dry-run", "-o", "json")
    assert json.loads(dry.stdout) == {
        "kind": "retry", "eligible": 10_000, "skipped": {}, "capped": True, "buckets_not_searched": 0
    }  # fmt: skip
    # The last page waits for the key of one of its jobs, so that the operation is under way however long this test takes.
    holder = await asyncpg.connect(deployment.dsn, server_settings={"search_path": deployment.settings.schema_name()})
    held = holder.transaction()
    await held.start()
    await holder.execute(
        "INSERT INTO idempotency (scope, key, job_id, digest)"
        " SELECT handler, 'retry of ' || id, gen_random_uuid(), '' FROM job ORDER BY id DESC LIMIT 1"
    )
    refused = deployment.run("bulk", "retry", "--tag", "bulk")
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    began = json.loads(
        deployment.run("bulk", "retry", "--tag", "bulk", "--yes", "--reason", "a test", "-o", "json").stdout
    )

    async def half_way() -> bool:
        return (await cluster.bulk.get(began["id"])).changed > 0

    await eventually(half_way, PATIENCE_SECONDS, "the first page")
    [leader] = await deployment.fetch(
        "SELECT a.pid, a.id FROM lease l JOIN agent a ON a.id = l.owner WHERE l.name = 'leader'"
    )
    os.kill(leader["pid"], signal.SIGKILL)
    view = await cluster.bulk.get(began["id"])
    assert view.state == "RUNNING"
    assert view.changed < JOBS
    await held.rollback()
    await holder.close()
    watched = deployment.run("bulk", "watch", began["id"])
    assert watched.returncode == 0, watched.stderr
    assert f"{thousands(JOBS)} jobs  DONE" in watched.stdout
    shown = json.loads(deployment.run("bulk", "show", began["id"], "-o", "json").stdout)
    assert (shown["state"], shown["changed"], shown["skipped"]) == ("DONE", JOBS, {})
    [new] = await deployment.fetch(
        "SELECT count(*) AS made, count(DISTINCT convert_from(headers, 'UTF8')::json -> 'metadata' ->> 'retry_of') AS old "
        "FROM job WHERE state = 'HELD'"
    )
    assert (new["made"], new["old"]) == (JOBS, JOBS)
    [next_leader] = await deployment.fetch("SELECT owner FROM lease WHERE name = 'leader'")
    assert next_leader["owner"] != leader["id"]
    stopped = json.loads(deployment.run("bulk", "stop", began["id"], "-o", "json").stdout)
    assert stopped["state"] == "DONE", "it had ended"
    listed = json.loads(deployment.run("bulk", "list", "-o", "json").stdout)
    assert [(each["id"], each["reason"]) for each in listed] == [(began["id"], "a test")]
    cancelled = deployment.run("bulk", "cancel", "--lane", "unserved", "--yes", "--watch")
    assert (cancelled.returncode, f"{thousands(JOBS)} jobs  DONE" in cancelled.stdout) == (0, True), cancelled.stderr
