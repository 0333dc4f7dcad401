"""Metrics and probes of real agents: they add up to the rows of the master, and are correct at start and exit."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import platform
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jobmaster import __version__
from jobmaster.client.cluster import Cluster
from jobmaster.client.receipts import JobReceipt
from jobmaster.embedded import PostgresServer
from jobmaster.model.job import JobState
from tests.repository.operation.test_monitoring import expressions, metrics_in
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import free_port
from tests.support.waiting import eventually
from tests.system.jobs import fails, noop, third_time, until_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


async def get(port: int, path: str) -> tuple[int, str]:
    """Status and body."""

    def ask() -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    return await asyncio.to_thread(ask)


async def scrape(port: int) -> dict[str, float]:
    """Sample name (with its label's value after a colon) -> value."""
    status, text = await get(port, "/metrics")
    assert status == 200
    return {
        ":".join([sample.name, *(value for name, value in sample.labels.items() if name != "le")]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def port_of(agent: AgentProcess, process: int = 1) -> int:
    return int((await agent.wait_event("metrics_served", process))["port"])


@pytest.fixture
async def served(deployment: Deployment, long_lease: None) -> tuple[AgentProcess, int]:
    """An agent and the port of its metrics."""
    deployment.document["observability"]["metrics_port"] = 0
    agent = await deployment.start_agent()
    return agent, await port_of(agent)


async def test_the_sums_of_a_scrape_equal_the_rows_of_the_master(
    deployment: Deployment, cluster: Cluster, served: tuple[AgentProcess, int]
) -> None:
    _, port = served
    before = await scrape(port)
    assert before["jobmaster_buckets_owned"] == 6
    assert before["jobmaster_jobs_claimed_total"] == before["jobmaster_job_run_seconds_count"] == 0
    assert not [name for name in before if name.startswith("jobmaster_jobs_ended")]

    receipts: list[JobReceipt[Any]] = [await cluster.submit(noop) for _ in range(150)]
    receipts += [await cluster.submit(noop, durability="master") for _ in range(40)]
    receipts += [await cluster.submit(fails, {"path": str(deployment.path("w"))}) for _ in range(12)]
    receipts += [await cluster.submit(third_time) for _ in range(8)]
    await cluster.wait_all(receipts, timeout=PATIENCE_SECONDS)

    rows = await deployment.fetch("SELECT state::text, count(*), sum(attempt)::int FROM job GROUP BY 1")
    ended = {row[0]: row[1] for row in rows}
    attempts = sum(row[2] for row in rows)
    again = (await deployment.fetch("SELECT count(*) FROM attempt WHERE outcome = 'failed'"))[0][0]
    assert ended == {"SUCCEEDED": 198, "FAILED": 12}
    assert (attempts, again) == (150 + 40 + 24 + 24, 12 + 16)

    async def counted() -> bool:
        found = await scrape(port)
        return sum(v for k, v in found.items() if k.startswith("jobmaster_jobs_ended_total")) == len(receipts)

    await eventually(counted, 10, "the last batch to be counted")
    after = await scrape(port)
    assert after["jobmaster_jobs_ended_total:SUCCEEDED"] == ended["SUCCEEDED"]
    assert after["jobmaster_jobs_ended_total:FAILED"] == ended["FAILED"]
    assert after["jobmaster_jobs_started_total"] == after["jobmaster_job_run_seconds_count"] == attempts
    assert sum(v for k, v in after.items() if k.startswith("jobmaster_job_wait_seconds_count")) == len(receipts)
    runs = {key: count for key, count in after.items() if key.startswith("jobmaster_handler_runs_total") and count}
    assert sum(runs.values()) == sum(v for k, v in after.items() if k.startswith("jobmaster_handler_run_seconds_count"))
    assert sum(runs.values()) == attempts
    assert runs["jobmaster_handler_runs_total:fails:failed"] == 12
    assert after["jobmaster_jobs_retried_total"] == again
    assert after["jobmaster_jobs_claimed_total"] == attempts
    assert after["jobmaster_outcome_write_seconds_count"] >= 2
    assert after["jobmaster_jobs_queued"] == after["jobmaster_jobs_running"] == after["jobmaster_outcomes_waiting"] == 0
    ran_us = (await deployment.fetch("SELECT (SELECT sum(ran_us) FROM job) + (SELECT sum(ran_us) FROM attempt)"))[0][0]
    assert after["jobmaster_job_run_seconds_sum"] == pytest.approx(float(ran_us) / 1e6)
    assert dict(cluster.telemetry.jobs_submitted) == {"store": 170, "master": 40}


@pytest.mark.usefixtures("long_lease")
async def test_waiting_jobs_are_shown_by_the_leader_and_told_to_an_autoscaler(
    deployment: Deployment, cluster: Cluster
) -> None:
    deployment.document["agents"]["default"] = {"slots": 1, "bucket_buffer": 1, "buckets": {"medium": 1, "high": 1}}
    deployment.document["observability"]["metrics_port"] = 0
    agent = await deployment.start_agent()
    port = await port_of(agent)
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    receipts = [await cluster.submit(until_file, {"path": path, "gate": gate}) for _ in range(30)]
    later = [await cluster.submit(noop, after=7200.0, priority="high") for _ in range(5)]

    async def shown() -> dict[str, float]:
        found = await scrape(port)
        waiting = found.get("jobmaster_backlog_jobs:default:medium:pending", 0.0)
        held = found.get("jobmaster_held_jobs:default:high", 0.0)
        return found if waiting and waiting + found["jobmaster_jobs_queued"] == 29 and held == 5 else {}

    found = await eventually(shown, PATIENCE_SECONDS, "the leader to look")
    assert found["jobmaster_backlog_jobs:default:high:held_due"] == 0
    assert found["jobmaster_oldest_due_seconds:default:medium"] > 0
    assert (found["jobmaster_slots:async"], found["jobmaster_slots:thread"]) == (5, 16)
    assert found[f"jobmaster_build_info:{platform.python_version()}:{__version__}"] == 1
    assert found["jobmaster_handler_runs_total:until_file:succeeded"] == 0
    whole = json.loads((await get(port, "/scale"))[1])
    waiting = found["jobmaster_backlog_jobs:default:medium:pending"]
    assert (whole["backlog_jobs"], whole["held_jobs"], whole["slots"], whole["agents"]) == (waiting, 5, 5, 1)
    assert whole["backlog_seconds"] > 0
    some = json.loads((await get(port, "/scale?lane=default&priority=high"))[1])
    assert (some["backlog_jobs"], some["held_jobs"], some["backlog_seconds"]) == (0, 5, 0)
    Path(gate).touch()
    await cluster.wait_all(receipts, timeout=PATIENCE_SECONDS)

    async def drained() -> bool:
        found = await scrape(port)
        answer = json.loads((await get(port, "/scale"))[1])
        counted = found["jobmaster_handler_runs_total:until_file:succeeded"] == len(receipts)
        counted = counted and found["jobmaster_job_wait_seconds_count:default:medium"] == len(receipts)
        return counted and answer["backlog_jobs"] == 0 and answer["jobs_per_second"] > 0

    await eventually(drained, PATIENCE_SECONDS, "the next look")
    assert len(later) == 5


async def test_every_metric_of_an_alert_and_of_a_dashboard_is_in_a_scrape(served: tuple[AgentProcess, int]) -> None:
    _, port = served
    _, text = await get(port, "/metrics")
    there = {name for kind, name in re.findall(r"^# (TYPE|HELP) (\w+) ", text, re.MULTILINE)}
    named = {name for expression in expressions() for name in metrics_in(expression)}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in named} - there == set()
    assert len(named) > 60


@pytest.mark.usefixtures("long_lease")
async def test_jobs_given_back_are_counted(deployment: Deployment, cluster: Cluster) -> None:
    deployment.document["agents"]["default"] = {"slots": 1, "bucket_buffer": 0, "buckets": {"medium": 1}}
    deployment.document["observability"]["metrics_port"] = 0
    agent = await deployment.start_agent()
    port = await port_of(agent)
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    receipts = [await cluster.submit(until_file, {"path": path, "gate": gate}) for _ in range(50)]

    async def runs() -> bool:
        return (await scrape(port))["jobmaster_jobs_running"] == 1

    await eventually(runs, 15, "the first job to run")
    assert (await scrape(port))["jobmaster_jobs_held_total"] == 0
    agent.process.send_signal(signal.SIGTERM)

    async def flushed() -> bool:
        return (await scrape(port))["jobmaster_jobs_held_total"] == len(receipts) - 1

    await eventually(flushed, 15, "what waits to be given back")
    assert (await deployment.states())["HELD"] == len(receipts) - 1
    Path(gate).touch()
    assert await agent.wait_exit() == 0
    assert await deployment.states() == {"HELD": len(receipts) - 1, "SUCCEEDED": 1}


async def test_ready_is_503_from_sigterm_on_while_a_job_still_runs(
    deployment: Deployment, cluster: Cluster, served: tuple[AgentProcess, int]
) -> None:
    agent, port = served
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    assert json.loads((await get(port, "/drain"))[1])["draining"] is False
    assert await get(port, "/ready") == (200, '{"ready": true}\n')
    receipt = await cluster.submit(until_file, {"path": path, "gate": gate})

    async def runs() -> bool:
        return bool(deployment.witnessed("w"))

    await eventually(runs, 15, "the job to run")
    agent.process.send_signal(signal.SIGTERM)

    async def says_no() -> bool:
        return (await get(port, "/ready"))[0] == 503

    await eventually(says_no, 10, "the probe to say no")
    status, body = await get(port, "/ready")
    assert (status, json.loads(body)) == (503, {"ready": False, "reason": "it is leaving: SIGTERM"})
    assert (await get(port, "/live"))[0] == (await get(port, "/startup"))[0] == 200

    async def counts_down() -> dict[str, Any]:
        drain = json.loads((await get(port, "/drain"))[1])
        return drain if drain["seconds_left"] is not None and drain["buckets"] == 1 else {}

    drain = await eventually(counts_down, PATIENCE_SECONDS, "the buckets that are done to be retired")
    assert 0.0 <= drain.pop("seconds_left") <= 300.0
    assert drain == {"draining": True, "in_flight": 1, "running": 1, "outcomes_waiting": 0, "buckets": 1}
    assert (await scrape(port))["jobmaster_jobs_running"] == 1
    assert [line[-1] for line in deployment.witnessed("w")] == ["began"]
    Path(gate).touch()
    assert await agent.wait_exit() == 0
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    with pytest.raises(OSError):
        await get(port, "/live")


async def test_live_answers_while_postgresql_is_stopped(
    tmp_path: Path, store_url: str, cluster_name: str, new_postgres: Callable[[], PostgresServer]
) -> None:
    server = new_postgres()
    deployment = Deployment(tmp_path, server.dsn, store_url, cluster_name)
    deployment.document["leases"] |= {"lease": "16s", "renew": "1s"}
    deployment.document["observability"]["metrics_port"] = 0
    assert deployment.run("db", "migrate").returncode == 0
    agent = await deployment.start_agent()
    try:
        port = await port_of(agent)
        assert (await get(port, "/ready"))[0] == 200
        await asyncio.to_thread(server.stop)
        assert (await get(port, "/live"))[0] == 200

        async def noticed() -> bool:
            """Not ready past half the lease; ready with a remark once its store stands for it. Either may be over soon."""
            assert (await get(port, "/live"))[0] == 200
            status, body = await get(port, "/ready")
            return "lease" in body if status == 503 else "the master does not answer" in body

        await eventually(noticed, PATIENCE_SECONDS, "the probe to notice that the lease is not renewed")
        assert (await get(port, "/live"))[0] == 200
        assert (await scrape(port))["jobmaster_lease_renewals_total:failed"] >= 1
    finally:
        await deployment.close()


async def test_a_death_and_its_certificate_are_shown_by_the_successor(
    deployment: Deployment, served: tuple[AgentProcess, int]
) -> None:
    agent, _ = served
    os.kill(agent.children()[0], signal.SIGKILL)
    await agent.wait_event("agent_started", 2)
    await agent.wait_event("certificate_written")
    port = await port_of(agent, 2)

    async def shown() -> bool:
        found = await scrape(port)
        names = ("deaths", "kills", "refusals", "certificates")
        return [found[f"jobmaster_supervisor_{name}_total"] for name in names] == [1, 0, 0, 1]

    await eventually(shown, PATIENCE_SECONDS, "the supervisor's figures")
    found = await scrape(port)
    assert found["jobmaster_lease_renewal_seconds_count"] >= 0
    assert found["process_resident_memory_bytes"] > 1e6


@pytest.mark.usefixtures("long_lease")
async def test_each_process_has_its_port_and_a_taken_one_is_one_clear_error(deployment: Deployment) -> None:
    first = free_port(2)
    deployment.document["observability"]["metrics_port"] = first
    deployment.document["agents"]["default"]["processes"] = 2
    agent = await deployment.start_agent(processes=2)
    assert {await port_of(agent, 1), await port_of(agent, 2)} == {first, first + 1}
    for port in (first, first + 1):
        assert (await get(port, "/ready"))[0] == 200
    second = deployment.run("agent", "run")
    assert second.returncode == 78
    (line,) = second.stderr.splitlines()
    assert line.startswith(
        f"error: metrics and probes cannot be served on 127.0.0.1 port {first}: address already in use"
    )
    assert "observability.metrics_port" in line
