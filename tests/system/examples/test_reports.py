"""``examples/reports``: schedules that agents declare fire, and are listed, run, paused and resumed."""

from __future__ import annotations

import subprocess
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from tests.support.waiting import wait_until
from tests.system.cli.conftest import Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def report(example: Terminal, *arguments: str) -> subprocess.CompletedProcess[str]:
    return example.run("report.py", *arguments)


def fired(example: Terminal) -> list[str]:
    """Nominal times of the samples that have a job."""
    shown = example.call("schedule", "show", "disk.sample", "-o", "json").json
    return [fire["nominal_at"] for fire in shown["fires"] if fire["outcome"] == "fired"]


@pytest.mark.long
def test_the_samples_are_taken_every_two_seconds(example: Terminal) -> None:
    wait_until(lambda: len(fired(example)) >= 4, 60, "four samples")
    moments = sorted(datetime.fromisoformat(at) for at in fired(example))
    assert all(moment.second % 2 == 0 for moment in moments)
    assert len(set(moments)) == len(moments)
    jobs = example.call("job", "list", "--tag", "disk", "--state", "succeeded", "-o", "json").json
    assert jobs, "no sample has ended"


def test_schedules_are_listed_with_their_next_fire(example: Terminal) -> None:
    sample, nightly = example.call("schedule", "list", "-o", "json").json
    assert (sample["name"], sample["every"], sample["state"], sample["source"]) == (
        "disk.sample",
        "2s",
        "active",
        "code",
    )
    assert (nightly["name"], nightly["every"], nightly["zone"]) == ("reports.nightly", "0 3 * * *", "Europe/Berlin")
    assert (nightly["misfire"], nightly["overlap"], nightly["tags"]) == ("last", "queue", ["reports"])
    upcoming = example.call("schedule", "next", "reports.nightly", "--count", "3", "-o", "json").json
    assert upcoming[0]["at"] == nightly["next_at"]
    local = [datetime.fromisoformat(one["at"]).astimezone(ZoneInfo("Europe/Berlin")) for one in upcoming]
    assert [(at.hour, at.minute) for at in local] == [(3, 0)] * 3
    table = example.call("schedule", "list")
    assert table.out.splitlines()[0].startswith("NAME")
    assert [row["name"] for row in example.call("schedule", "list", "--tag", "reports", "-o", "json").json] == [
        "reports.nightly"
    ]


def test_a_report_is_made_on_request_and_printed_again(example: Terminal) -> None:
    before = report(example)
    assert before.returncode == 1
    assert before.stderr.startswith("there is no report yet; the first is due at ")
    made = report(example, "--now")
    assert made.returncode == 0, made.stderr
    assert "GB are free on /" in made.stdout
    again = report(example)
    assert (again.returncode, again.stdout) == (0, made.stdout)
    ran = example.call("schedule", "run", "reports.nightly", "-o", "json")
    assert ran.code == 0, ran.err
    assert example.call("job", "wait", ran.json["id"], "--within", "10m").code == 0
    fires = example.call("schedule", "show", "reports.nightly", "-o", "json").json["fires"]
    assert ran.json["id"] in [fire["job_id"] for fire in fires if fire["manual"]]


def test_a_pause_holds_until_it_is_resumed(example: Terminal) -> None:
    paused = example.call("schedule", "pause", "--tag", "disk", "--reason", "replaced", "-o", "json")
    assert paused.json == [{"name": "disk.sample", "state": "paused"}]
    shown = example.call("schedule", "show", "disk.sample", "-o", "json").json
    assert (shown["state"], shown["paused_reason"], shown["next_at"]) == ("paused", "replaced", None)
    assert example.call("schedule", "pause", "disk.sample").out.split()[-3:] == ["was", "paused", "before"]
    held = fired(example)
    assert all(datetime.fromisoformat(at) <= datetime.fromisoformat(shown["paused_at"]) for at in held)
    assert example.call("schedule", "resume", "disk.sample", "-o", "json").json[0]["state"] == "resumed"
    wait_until(lambda: bool(set(fired(example)) - set(held)), 30, "a sample after the pause")
    acts = example.call("log", "list", "--subject", "disk.sample", "-o", "json").json
    assert [act["action"] for act in acts] == ["schedule resume", "schedule pause"]


def test_doctor_looks_at_the_schedules(example: Terminal) -> None:
    findings = {one["name"]: one for one in example.call("doctor", "-o", "json").json["checks"]}
    assert findings["schedules"]["status"] == "ok", findings["schedules"]


def test_mistakes_are_one_sentence(example: Terminal) -> None:
    unknown = example.call("schedule", "show", "reports.nigthly")
    assert unknown.code == 3
    assert "did you mean 'reports.nightly'" in unknown.err
    neither = example.call("schedule", "pause")
    assert neither.code == 2
    assert "name schedules, or give --tag" in neither.err


def test_a_schedule_that_is_removed_stays_removed(example: Terminal) -> None:
    removed = example.call("schedule", "remove", "reports.nightly", "-o", "json")
    assert removed.json == [{"name": "reports.nightly", "state": "removed"}]
    assert [row["name"] for row in example.call("schedule", "list", "-o", "json").json] == ["disk.sample"]
    retired = [row for row in example.call("schedule", "list", "--all", "-o", "json").json if row["state"] == "retired"]
    assert [row["name"] for row in retired] == ["reports.nightly"]
    assert example.call("schedule", "run", "reports.nightly").code == 4
