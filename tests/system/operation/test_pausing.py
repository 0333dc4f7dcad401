"""Pause and resume as an operator uses them, over real agents that are killed and started while something is paused."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.model.job import JobState
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import note, stamped, until_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


async def test_a_pause_holds_through_a_kill_a_rescue_and_a_restart(deployment: Deployment, cluster: Cluster) -> None:
    deployment.shorten_lease()
    agent = await deployment.start_agent()
    other = await deployment.start_agent()
    path, gate, noted = (str(deployment.path(name)) for name in ("w", "gate", "n"))
    running = [await cluster.submit(until_file, {"path": path, "gate": gate}) for _ in range(4)]

    async def began() -> bool:
        return len(deployment.witnessed("w")) == 4

    await eventually(began, 20, "the jobs to begin")
    paused = deployment.run("pause", "handler", "note", "--reason", "charges twice")
    assert paused.returncode == 0, paused.stderr
    assert re.fullmatch(r"handler 'note' paused; 2 of 2 agents obey after \d\.\d s\n", paused.stdout), paused.stdout
    waiting = [await cluster.submit(note, {"path": noted}) for _ in range(20)]
    waiting += [await cluster.submit(note, {"path": noted}, durability="master") for _ in range(5)]
    other.kill_all()  # its supervisor with it: only its lease shows its death

    async def rescued() -> bool:
        return await deployment.bucket_events("DRAINING") > 0 and not await deployment.fetch(
            "SELECT FROM bucket WHERE state IN ('LOST', 'DRAINING')"
        )

    await eventually(rescued, 30, "the rescue")
    late = await deployment.start_agent()
    assert await agent.terminate() == 0, "with paused jobs in its buckets it leaves in order"
    waiting.append(await cluster.submit(note, {"path": noted}))
    stamps = str(deployment.path("s"))
    free = [await cluster.submit(stamped, {"path": stamps}) for _ in range(10)]
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in free} == {JobState.SUCCEEDED}
    assert deployment.witnessed("n") == [], "nothing of the handler has started in an agent old or new"
    Path(gate).touch()
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in running} == {JobState.SUCCEEDED}

    shown = deployment.run("job", "show", str(waiting[0].id), "-o", "json")
    assert json.loads(shown.stdout)["paused"][0].startswith("handler 'note', by ")
    assert "handler 'note' is paused by" in deployment.run("status").stdout
    findings = json.loads(deployment.run("doctor", "-o", "json").stdout)
    assert "resume handler note" in json.dumps(findings)
    (listed,) = json.loads(deployment.run("pauses", "-o", "json").stdout)
    assert (listed["kind"], listed["value"], listed["reason"], listed["until"]) == (
        "handler", "note", "charges twice", None,
    )  # fmt: skip

    resumed = deployment.run("resume", "handler", "note", "-o", "json")
    assert resumed.returncode == 0, resumed.stderr
    answer = json.loads(resumed.stdout)
    assert (answer["changed"], answer["agents"], answer["obeying"]) == (True, 1, 1)
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in waiting} == {JobState.SUCCEEDED}
    assert len(deployment.witnessed("n")) == len(waiting), "each ran once"
    rows = await deployment.fetch("SELECT DISTINCT attempt FROM job WHERE handler = 'note'")
    assert [row["attempt"] for row in rows] == [1], "waiting used up no attempt"
    assert await late.terminate() == 0


async def test_a_pause_waits_for_every_agent_and_names_those_that_do_not_answer(
    deployment: Deployment, agent: AgentProcess
) -> None:
    for pid in (agent.process.pid, *agent.children()):  # the supervisor first, or it would replace its child
        os.kill(pid, signal.SIGSTOP)
    late = deployment.run("pause", "lane", "default", "--timeout", "0.5s")
    assert late.returncode == 6, late.stderr
    assert re.search(r"1 of 1 agents have not confirmed it within 0.5 s: \S+ \(pid \d+ on \S+\)", late.stderr)
    assert deployment.run("pauses", "-o", "json").stdout.count('"lane"') == 1, "it is stored"


async def test_jobs_of_a_pause_are_out_of_the_way_in_the_master_and_start_when_it_ends(
    deployment: Deployment, cluster: Cluster
) -> None:
    deployment.document["thresholds"] = {"fallback_after": "3s"}  # the leader looks every second for jobs that wait
    agent = await deployment.start_agent()
    noted = str(deployment.path("n"))
    assert deployment.run("pause", "handler", "note").returncode == 0
    receipts = [await cluster.submit(note, {"path": noted}, durability="master") for _ in range(30)]

    async def put_off() -> bool:
        return len(await deployment.fetch("SELECT FROM put_off")) == 30

    await eventually(put_off, 20, lambda: f"the jobs to be put off: {agent.log.read_text()}")
    shown = json.loads(deployment.run("job", "show", str(receipts[0].id), "-o", "json").stdout)
    assert (shown["state"], shown["unserved"]) == ("HELD", None)
    assert deployment.run("resume", "handler", "note").returncode == 0
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in receipts} == {JobState.SUCCEEDED}
    assert len(deployment.witnessed("n")) == 30


async def test_bad_input_is_one_sentence(deployment: Deployment, agent: AgentProcess) -> None:
    for words, code, said in (
        (("handler", "notes"), 2, "did you mean 'note'"),
        (("lane", "defualt"), 2, "did you mean 'default'"),
        (("priority", "urgent"), 2, "'priority'"),
        (("bucket", "x"), 2, "is not one of"),
        (("tag", "x", "--until", "yesterday"), 2, "2030-01-31T12:00:00Z"),
        (("tag", "x", "--until", "2020-01-31T12:00:00Z"), 2, "not in the future"),
    ):
        result = deployment.run("pause", *words)
        assert result.returncode == code, result.stderr
        assert said in result.stderr
    nothing = deployment.run("resume", "tag", "x")
    assert (nothing.returncode, nothing.stderr) == (4, "tag 'x' is not paused\n")
    assert deployment.run("pauses").stderr == "nothing is paused\n"
