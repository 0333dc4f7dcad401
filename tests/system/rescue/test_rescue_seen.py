"""What people see of a rescue: the list of what was lost, and the timeline of a job with its tokens and refused writes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.model.ids import text
from jobmaster.model.job import FinalRow, JobState
from jobmaster.wiring import open_master
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import until_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def told(deployment: Deployment, *command: str) -> list[dict[str, Any]]:
    answer = deployment.run(*command, "-o", "json")
    assert answer.returncode == 0, answer.stderr
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


async def refused_write(deployment: Deployment, job_id: bytes, token: int, bucket_id: bytes) -> None:
    """What the dead agent would still have liked to record."""
    master = await open_master(deployment.settings, application_name="zombie")
    late = FinalRow(
        job_id,
        JobState.SUCCEEDED,
        3,
        "default",
        "until_file",
        token,
        bucket_id,
        1,
        1,
        0,
        0,
        0,
        0,
        b"{}",
        b"",
        None,
        None,
    )
    try:
        for _ in range(2):
            assert (await master.outcomes.record_final([late])).refused == {job_id}
    finally:
        await master.close()


async def test_a_rescue_is_listed_and_stands_in_the_timeline_of_its_job(
    deployment: Deployment, cluster: Cluster
) -> None:
    assert told(deployment, "rescue", "list") == []
    deployment.document["agents"]["default"]["buckets"] = dict.fromkeys(("critical", "high", "low", "very_low"), 0) | {
        "medium": 1
    }
    # A lease that outlasts any delay of its supervisor: the reason of the rescue is then the signal that it saw.
    deployment.document["leases"] = {"lease": "60s", "renew": "0.8s", "grace": "10s"}
    victim = await deployment.start_agent("--name", "default")
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    receipt = await cluster.submit(until_file, {"path": path, "gate": gate}, durability="master")

    async def processing() -> bool:
        return (await deployment.states()).get("PROCESSING") == 1

    await eventually(processing, 15, "the job to run")
    before = await receipt.get()
    assert before.bucket_id is not None
    helper = await deployment.start_agent()
    os.kill(victim.children()[0], signal.SIGKILL)
    Path(gate).touch()
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    await refused_write(deployment, receipt.id_bytes, before.token, before.bucket_id)
    after = await receipt.get()

    async def drained() -> bool:
        return await deployment.bucket_events("READY_TO_DELETE") == 1

    await eventually(drained, 15, "the bucket to be closed")
    (line,) = told(deployment, "rescue", "list")
    assert (line["bucket_id"], line["lane"], line["priority"]) == (text(before.bucket_id), "default", "medium")
    assert (line["jobs_moved"], line["jobs_rescued"], line["epoch"], line["state"]) == (1, 1, 2, "drained")
    assert "SIGKILL" in line["reason"]
    assert (line["owner_name"], line["rescuer_name"]) == ("default", "default")
    assert line["owner"] != line["rescuer"]
    assert line["waited_us"] >= 0
    assert line["took_us"] > 0
    assert line["lost"] < line["taken"] <= line["over"]
    assert told(deployment, "rescue", "list", "--open") == []
    assert told(deployment, "rescue", "list", "--since", "1h") == [line]
    table = deployment.run("rescue", "list").stdout.splitlines()
    assert table[0].split()[:3] == ["LOST", "(UTC)", "BUCKET"]
    assert "drained" in table[1]

    timeline = told(deployment, "job", "timeline", str(receipt))
    first = {"token": before.token, "bucket_id": text(before.bucket_id), "bucket_epoch": 1}
    events = [(entry["event"], entry["token"]) for entry in timeline]
    assert events[:2] == [("submitted", None), ("lost", before.token)]
    assert sorted(events[2:]) == sorted(
        [("REFUSED", before.token), ("started", after.token), ("SUCCEEDED", after.token)]
    )
    assert after.token > before.token
    for entry in timeline:
        if entry["event"] in ("lost", "REFUSED"):
            assert entry.items() >= first.items()
    (refused,) = [entry for entry in timeline if entry["event"] == "REFUSED"]
    assert refused["detail"].startswith("2 late write(s)")
    assert helper.process.poll() is None
