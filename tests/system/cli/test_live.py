"""Commands against a running cluster: one ``jobmaster dev`` for all of them, each command a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from jobmaster.cli.operator_log import operator_name
from jobmaster.clock import new_id
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import wait_until
from tests.system.cli.conftest import REPOSITORY, Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
WITHIN = "10m"
"""Limit of a command that waits for a job."""


def submitted(dev: Terminal, *words: str) -> dict[str, Any]:
    result = dev.call("job", "submit", *words, "-o", "json")
    assert result.code in (0, 1), result.err
    record: dict[str, Any] = result.json
    return record


def test_submit_and_wait(dev: Terminal) -> None:
    result = dev.call("job", "submit", "add", "one=2", "other=40", "--within", WITHIN, "-o", "json")
    assert result.code == 0, result.err
    assert result.err == ""
    record = result.json
    assert (record["state"], record["result"], record["args"]) == ("SUCCEEDED", 42, {"one": 2, "other": 40})
    assert record["level"] == "store"


def test_a_limit_is_set_listed_shown_and_reset(dev: Terminal) -> None:
    unknown = dev.call("limit", "set", "stripe", "5", "-o", "json")
    assert (unknown.code, unknown.error["code"]) == (3, "not_found")
    assert dev.call("limit", "set", "stripe", "5", "--rate", "10/s", "--reason", "test", "--force").code == 0
    (line,) = dev.call("limit", "list", "-o", "json").json
    assert (line["name"], line["running"], line["rate"], line["burst"]) == ("stripe", 5, 10.0, 10.0)
    assert (line["set_reason"], line["set_by"], line["taken"], line["declared"]) == ("test", operator_name(), 0, False)
    near = dev.call("limit", "show", "strip")
    assert near.code == 3
    assert "'stripe'" in near.err
    wrong = dev.call("limit", "set", "stripe", "0", "-o", "json")
    assert "is not a number of jobs that may run at once" in wrong.error["message"]
    (logged,) = [line for line in dev.call("log", "list", "-o", "json").json if line["action"] == "limit set"]
    assert (logged["subject"], logged["detail"]["reason"]) == ("stripe", "test")
    assert dev.call("limit", "reset", "stripe").code == 0
    assert dev.call("limit", "reset", "stripe").code == 4
    assert dev.call("limit", "list", "-o", "json").json == []


def test_signals(dev: Terminal) -> None:
    nothing: dict[str, list[Any]] = {"waiting": [], "kept": []}
    assert dev.call("signal", "list", "-o", "json").json == nothing
    job = submitted(dev, "add", "one=2", "other=40", "--wait-for", "order:17", "--wait-timeout", "1h")
    shown = dev.call("job", "show", job["id"], "-o", "json").json
    assert (job["level"], shown["state"], shown["waits_for"]) == ("master", "WAITING", "order:17")
    (waiting,) = dev.call("signal", "list", "order:17", "-o", "json").json["waiting"]
    assert (waiting["key"], waiting["jobs"]) == ("order:17", 1)
    sent = dev.call("signal", "send", "order:17", '{"paid": true}', "-o", "json").json
    assert (sent["delivered"], sent["kept_until"]) == (1, None)
    assert dev.call("job", "wait", job["id"], "--within", WITHIN).code == 0
    shown = dev.call("job", "show", job["id"], "-o", "json").json
    assert (shown["state"], shown["result"], shown["signal"]) == ("SUCCEEDED", 42, {"paid": True})
    kept = dev.call("signal", "send", "stock", "7", "--to", "one", "--keep-for", "10m", "-o", "json").json
    assert kept["kept_until"] is not None
    (row,) = dev.call("signal", "list", "-o", "json").json["kept"]
    assert (row["key"], row["payload"], row["actor"]) == ("stock", 7, operator_name())
    assert submitted(dev, "add", "one=1", "other=1", "--wait-for", "stock", "--within", WITHIN)["result"] == 2
    assert dev.call("signal", "list", "-o", "json").json == nothing
    assert dev.call("signal", "send", "order:17", "{paid}", "-o", "json").code == 2
    assert dev.call("job", "submit", "add", "--wait-timeout", "1h", "-o", "json").code == 2


def test_locks_and_actions_that_run_once(dev: Terminal) -> None:
    assert dev.call("lock", "list", "-o", "json").json == []
    assert dev.call("once", "list", "-o", "json").json == []
    free = dev.call("lock", "release", "import", "--force", "-o", "json")
    assert (free.code, free.error["code"]) == (3, "not_found")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK], env=dev.environment, cwd=dev.folder, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        fence = int(holder.stdout.readline())
        (held,) = dev.call("lock", "list", "-o", "json").json
        assert (held["name"], held["fence"], held["holder"].endswith(f"pid {holder.pid}: nightly")) == (
            "import",
            fence,
            True,
        )
        refused = dev.call("lock", "release", "import", "-o", "json")
        assert (refused.code, refused.error["code"]) == (4, "lock_held")
        assert held["holder"] in refused.error["message"]
        released = dev.call("lock", "release", "import", "--force", "-o", "json")
        assert (released.code, released.json["fence"]) == (0, fence)
        assert holder.stdout.readline() == b"lost\n"
    finally:
        holder.kill()
        holder.communicate()
    (line,) = [line for line in dev.call("log", "list", "-o", "json").json if line["action"] == "lock release"]
    assert (line["actor"], line["subject"], line["detail"]["fence"]) == (operator_name(), "import", fence)
    (done,) = dev.call("once", "list", "-o", "json").json
    assert (done["name"], done["version"]) == ("load", "3")


PUT_SCHEDULE = """
import asyncio, jobmaster

async def main():
    async with jobmaster.connect() as cluster:
        await cluster.schedules.put("rare", "1d", "add", {"one": 1, "other": 2})

asyncio.run(main())
"""


def test_a_command_that_changes_no_schedule_prints_its_state(dev: Terminal) -> None:
    def states(*words: str) -> list[str]:
        return [record["state"] for record in dev.call("schedule", *words, "-o", "json").json]

    subprocess.run([sys.executable, "-c", PUT_SCHEDULE], env=dev.environment, cwd=dev.folder, check=True)
    assert states("resume", "rare") == ["is active"]
    assert states("pause", "rare", "rare") == ["paused", "was paused before"]
    assert states("resume", "rare", "rare") == ["resumed", "is active"]
    assert states("remove", "rare", "rare") == ["removed", "was retired before"]
    assert states("pause", "rare") == states("resume", "rare") == [f"is retired: removed by {operator_name()}"]
    assert dev.call("schedule", "next", "rare").out == f"schedule 'rare' is retired: removed by {operator_name()}\n"
    assert dev.call("schedule", "show", "rare", "-o", "json").json["upcoming"] == []


HOLD_LOCK = """
import asyncio, jobmaster

async def main():
    async with jobmaster.connect() as cluster:
        await cluster.once("load", "3", lambda: None)
        try:
            async with cluster.lock("import", ttl=15, label="nightly") as lock:
                print(lock.fence, flush=True)
                await asyncio.Event().wait()
        except jobmaster.LockLost:
            print("lost", flush=True)

asyncio.run(main())
"""


def test_submit_with_everything(dev: Terminal) -> None:
    result = dev.call(
        *("job", "submit", "add", "--args", "-", "--priority", "high", "--durability", "master", "--tag", "blue"),
        *("--meta", "who=me=you", "--key", "only-once", "--timeout", "1m", "--max-attempts", "2", "-o", "json"),
        given='{"one": 1, "other": 1}',
    )
    assert result.code == 0, result.err
    job = result.json["id"]
    record = dev.call("job", "wait", job, "--within", WITHIN, "-o", "json").json
    assert (record["priority"], record["tags"], record["metadata"]) == ("high", ["blue"], {"who": "me=you"})
    assert record["key"] == "only-once"
    same = ("--key", "only-once", "--priority", "high", "--tag", "blue", "--meta", "who=me=you")
    again = submitted(dev, "add", "one=1", "other=1", *same, "--timeout", "1m", "--max-attempts", "2")
    assert (again["id"], again["duplicate"]) == (job, True)
    other = dev.call("job", "submit", "add", "one=5", "other=5", "--key", "only-once", "-o", "json")
    assert other.code == 4
    assert other.error["code"] == "conflict"
    listed = dev.call("job", "list", "--tag", "blue", "-o", "json").json
    assert [row["id"] for row in listed] == [job]
    assert dev.call("job", "list", "--tag", "green", "-o", "json").json == []


def test_jobs_that_wait_are_changed(dev: Terminal) -> None:
    job = submitted(dev, "add", "one=1", "other=2", "--after", "5h")["id"]
    changed = dev.call("job", "reschedule", job, "--after", "9h", "--priority", "low", "-o", "json")
    (record,) = changed.json
    assert (changed.code, record["effect"], record["state"], record["priority"]) == (0, "CHANGED", "HELD", "low")
    assert dev.call("job", "show", job, "-o", "json").json["due"] == record["due"]
    table = dev.call("job", "reprioritise", job, "--priority", "high").out.splitlines()
    assert table[0].split() == ["ID", "EFFECT", "STATE", "DUE", "PRIORITY", "LANE"]
    assert table[1].split()[:3] == [job, "CHANGED", "HELD"]
    for words, said in (
        (("reschedule", job), "the change sets nothing"),
        (("reschedule", job, "--at", "2030-01-01T00:00:00"), "has no time zone"),
        (("reschedule", job, "--at", "2030-01-31T12:00:00Z", "--after", "1h"), "both 'at' and 'after'"),
        (("move", job, "--lane", "nowhere"), "no agent serves lane 'nowhere'"),
        (("move", job), "Missing option '--lane'"),
    ):
        refused = dev.call("job", *words)
        assert refused.code == 2, (words, refused)
        assert said in refused.err
    assert dev.call("job", "run-now", job).code == 0
    assert dev.call("job", "wait", job, "--within", WITHIN, "-o", "json").json["result"] == 3
    second = submitted(dev, "add", "one=1", "other=2", "--after", "5h")["id"]
    late = dev.call("job", "run-now", second, job, "-o", "json")
    assert late.code == 4
    assert [record["effect"] for record in late.json] == ["CHANGED", "ALREADY_ENDED"]
    assert late.json[1]["error"]["code"] == "conflict"
    assert late.error["message"] == f"too late for {job} (SUCCEEDED): not changed"
    actions = {line["action"] for line in dev.call("log", "list", "--subject", job, "-o", "json").json}
    assert actions == {"job change", "job reprioritise", "job run-now"}


def test_a_changed_job_that_no_agent_serves_is_named_beside_the_table(dev: Terminal, tmp_path: Path) -> None:
    config = tmp_path / "more.yaml"
    config.write_text("agents: {default: {}, payroll: {lanes: {payroll: {high: 1}}}}\n")
    job = submitted(dev, "add", "one=1", "other=2", "--after", "5h")["id"]
    try:
        assert "note:" not in dev.call("job", "reprioritise", job, "--priority", "high").err
        moved = dev.call("job", "move", job, "--lane", "payroll", "--config", str(config))
        assert moved.code == 0, moved.err
        assert "note: 1 of 1 job(s) wait for an agent that serves payroll/high and has their handler" in moved.err
        (again,) = dev.call("job", "move", job, "--lane", "payroll", "--config", str(config), "-o", "json").json
        assert again["unserved"] is True
    finally:
        assert dev.call("job", "cancel", job).code == 0


def test_one_bad_id_of_several_does_not_keep_the_others_from_the_action(dev: Terminal) -> None:
    nowhere = str(UUID(bytes=new_id()))
    for words in (("cancel",), ("run-now",), ("reprioritise", "--priority", "low"), ("retry",)):
        jobs = [submitted(dev, "add", "one=1", "other=2", "--after", "5h")["id"] for _ in range(2)]
        if words == ("retry",):
            assert dev.call("job", "cancel", *jobs).code == 0
        before = [dev.call("job", "show", job, "-o", "json").json for job in jobs]
        malformed = dev.call("job", *words, *jobs, "no-id", "-o", "json")
        assert (malformed.code, malformed.out) == (2, ""), words
        assert [dev.call("job", "show", job, "-o", "json").json for job in jobs] == before, words
        done = dev.call("job", *words, jobs[0], nowhere, jobs[1], "-o", "json")
        assert (done.code, done.error["code"]) == (3, "not_found"), words
        errors = [row["error"] and row["error"]["code"] for row in done.json]
        assert errors == [None, "not_found", None], (words, done.json)
        assert done.json[1]["id"] == nowhere
    late = dev.call("job", "cancel", nowhere, submitted(dev, "noop", "--within", WITHIN)["id"])
    assert late.code == 4, "the worst of two errors"
    assert late.out.splitlines()[0].split() == ["ID", "STATE", "ERROR"]
    assert "2 of 2 jobs: " in late.err


def test_a_pause_that_is_not_confirmed_in_time_has_its_exit_code(dev: Terminal) -> None:
    (agent,) = dev.call("agent", "list", "-o", "json").json
    os.kill(agent["pid"], signal.SIGSTOP)  # its next renewal would confirm the pause
    try:
        now = dev.call("pause", "tag", "exit-codes", "--timeout", "0", "-o", "json")
    finally:
        os.kill(agent["pid"], signal.SIGCONT)
    assert (now.code, now.error["code"], now.json["obeying"]) == (6, "wait_timeout", 0)
    assert dev.call("resume", "tag", "exit-codes", "--no-wait").code == 0
    zoneless = dev.call("pause", "tag", "exit-codes", "--until", "2040-01-01")
    assert (zoneless.code, "such as 2040-01-01T00:00:00Z" in zoneless.err) == (2, True)
    assert "no action of an operator fits" in dev.call("log", "list", "--subject", "zzzz").err


def test_paused_schedules_are_named_where_pauses_are(dev: Terminal) -> None:
    program = """
import asyncio, jobmaster

async def main():
    async with await jobmaster.connect() as cluster:
        await cluster.schedules.put("resting", "1d", "add", {"one": 1, "other": 2})
        try:
            await cluster.schedules.put("nowhere", "1d", "add", {"one": 1, "other": 2}, lane="no-such-lane")
        except jobmaster.UnknownLane as error:
            print(error)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=dev.environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no agent serves lane 'no-such-lane'" in done.stdout
    assert dev.call("pause", "schedule", "resting", "--reason", "audit").code == 0
    (row,) = [row for row in dev.call("pauses", "-o", "json").json if row["kind"] == "schedule"]
    assert (row["value"], row["reason"], row["until"]) == ("resting", "audit", None)
    assert "! 1 schedule is paused (jobmaster pauses)" in dev.call("status").out
    checks = {check["name"]: check for check in dev.call("doctor", "-o", "json").json["checks"]}
    assert "1 schedule is paused" in checks["pauses"]["detail"]
    assert checks["schedules"]["status"] == "ok"
    assert dev.call("schedule", "remove", "resting").code == 0
    assert "schedule" not in {row["kind"] for row in dev.call("pauses", "-o", "json").json}


def test_changes_are_lines_of_the_timeline_and_a_pause_is_named(dev: Terminal) -> None:
    job = submitted(dev, "add", "one=1", "other=2", "--after", "5h", "--tag", "kept-back")["id"]
    assert dev.call("job", "reprioritise", job, "--priority", "low").err == ""
    assert dev.call("job", "reschedule", job, "--at", "2031-01-31T12:00:00Z").code == 0
    assert dev.call("pause", "tag", "kept-back", "--reason", "audit").code == 0
    now = dev.call("job", "run-now", job, "-o", "json")
    assert now.code == 0, now.err
    assert now.json[0]["paused"] == [f"tag 'kept-back', by {operator_name()}: audit"]
    assert f"{job} does not start before the end of its pause: tag 'kept-back'" in now.err
    lines = dev.call("job", "timeline", job, "-o", "json").json
    assert [line["event"] for line in lines] == ["submitted", "reprioritise", "reschedule", "run-now", "HELD"]
    assert lines[0]["detail"] == "handler=add lane=default", "its first priority is not known any more"
    assert lines[1]["detail"] == f"by {operator_name()}, priority low"
    assert "due 2031-01-31T12:00:00" in lines[2]["detail"]
    assert dev.call("job", "cancel", job).code == 0
    assert dev.call("resume", "tag", "kept-back").code == 0


def test_bad_input_is_refused_with_a_sentence(dev: Terminal) -> None:
    for words, said in (
        (("ad", "one=1"), "did you mean 'add'"),
        (("nobody", "one=1"), "use --allow-unregistered"),
        (("add", "one=1"), "missing argument 'other'"),
        (("add", "one=1", "other=2", "third=3"), "unknown argument 'third'"),
        (("add", "one=x", "other=2"), "one"),
        (("add", "one=1", "other=2", "--lane", "nowhere"), "nowhere"),
        (("add", "one=1", "other=2", "--after", "9000d"), "days ahead"),
    ):
        result = dev.call("job", "submit", *words)
        assert result.code == 2, (words, result)
        assert said in result.err
        assert result.err.count("\n") == 1


def test_a_failed_job_exits_with_1_and_can_be_retried_once(dev: Terminal, tmp_path: Path) -> None:
    path = str(tmp_path / "w")
    result = dev.call("job", "submit", "fails", f"path={path}", "--within", WITHIN, "--tag", "red", "-o", "json")
    assert result.code == 1
    record = result.json
    assert (record["state"], record["attempt"]) == ("FAILED", 2)
    assert record["error"]["message"] == "as asked"
    events = [line["event"] for line in dev.call("job", "timeline", record["id"], "-o", "json").json]
    assert events == ["submitted", "failed", "started", "FAILED"]
    first = dev.call("job", "retry", record["id"], "-o", "json")
    assert first.code == 0, first.err
    new = dev.call("job", "wait", first.json[0]["id"], "--within", WITHIN, "-o", "json")
    assert new.code == 1
    assert new.json["metadata"] == {"retry_of": record["id"]}
    (act,) = dev.call("log", "list", "--subject", record["id"], "-o", "json").json
    assert (act["action"], act["detail"]) == ("job retry", {"job": first.json[0]["id"]})
    assert act["actor"] == operator_name()
    assert dev.call("log", "list", "--actor", "nobody", "-o", "json").json == []
    assert "job retry" in dev.call("log", "list", "--since", "1h").out
    assert new.json["tags"] == ["red"]
    logs = dev.call("job", "logs", record["id"], "--follow", "-o", "json")
    lines = [json.loads(line) for line in logs.out.splitlines()]
    assert [(line["level"], line["text"], line["number"]) for line in lines] == [
        ("warning", "attempt 1", 1), ("warning", "attempt 2", 1),
    ]  # fmt: skip
    shown = dev.call("job", "logs", first.json[0]["id"]).out.splitlines()
    assert [line.split()[1:] for line in shown if "attempt" in line] == [
        ["warning", "attempt", "1"], ["warning", "attempt", "2"],
    ]  # fmt: skip
    red = ("events", "--kind", "job_failed", "--tag", "red", "-o", "json")
    found = dev.call(*red, "--limit", "1")
    assert found.code == 0, found.err
    (failed,) = [json.loads(line) for line in found.out.splitlines()]
    assert (failed["job"], failed["kind"], failed["error"]["message"]) == (record["id"], "job_failed", "as asked")
    (later,) = [json.loads(line) for line in dev.call(*red, "--after", failed["cursor"]).out.splitlines()]
    assert later["job"] == first.json[0]["id"]
    assert len(Path(path).read_text().splitlines()) == 4
    assert dev.call("job", "show", record["id"], "-o", "json").json["state"] == "FAILED"


def test_a_wait_that_ends_before_the_job_names_it(dev: Terminal, tmp_path: Path) -> None:
    words = ("job", "submit", "until_file", f"path={tmp_path / 'w'}", f"gate={tmp_path / 'gate'}")
    late = dev.call(*words, "--within", "0.2s", "-o", "json")
    assert (late.code, late.error["code"]) == (6, "wait_timeout")
    assert dev.call("job", "show", late.error["job_id"], "-o", "json").json["handler"] == "until_file"
    # (The first one may have no row yet, and get it later.)
    listed = dev.call("job", "list", "--handler", "until_file", "-o", "json").json
    before = {late.error["job_id"], *(row["id"] for row in listed)}
    process = subprocess.Popen(
        [sys.executable, "-m", "jobmaster.cli.main", *words, "--wait"],
        env=dev.environment, cwd=REPOSITORY, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def new() -> set[str]:
        return {row["id"] for row in dev.call("job", "list", "--handler", "until_file", "-o", "json").json} - before

    (job,) = wait_until(new, 20, "the job")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, said.strip()) == (130, f"interrupted; the job is {job}: jobmaster job show {job}")
    (tmp_path / "gate").touch()
    assert dev.call("job", "wait", job, "--within", WITHIN).code == 0


def test_an_id_that_names_several_jobs_is_a_wrong_command_line(dev: Terminal) -> None:
    jobs = [submitted(dev, "noop", "--after", "1h")["id"] for _ in range(2)]
    result = dev.call("job", "show", jobs[0][:6])
    assert (result.code, "several jobs begin with" in result.err) == (2, True)


def test_what_succeeded_is_neither_retried_nor_cancelled(dev: Terminal) -> None:
    job = submitted(dev, "noop", "--within", WITHIN)["id"]
    assert dev.call("job", "retry", job).code == 4
    late = dev.call("job", "cancel", job, "-o", "json")
    assert late.code == 4
    assert late.error["code"] == "conflict"


def test_cancel_what_waits_and_what_runs(dev: Terminal, tmp_path: Path) -> None:
    held = submitted(dev, "noop", "--after", "1h")["id"]
    assert dev.call("job", "show", held, "-o", "json").json["state"] == "HELD"
    assert dev.call("job", "cancel", held, "-o", "json").json == [{"id": held, "state": "CANCELLED", "error": None}]
    path = tmp_path / "w"
    running = submitted(dev, "until_file", f"path={path}", f"gate={tmp_path / 'gate'}")["id"]
    wait_until(path.exists, 20, "the start of the job")
    assert dev.call("job", "wait", running, "--within", "0.2s").code == 6
    assert dev.call("job", "cancel", running).code == 0
    ended = dev.call("job", "wait", running, "--within", WITHIN, "-o", "json")
    assert (ended.code, ended.json["state"]) == (1, "CANCELLED")


def test_a_job_is_found_by_the_beginning_of_its_id(dev: Terminal) -> None:
    job = submitted(dev, "add", "one=1", "other=1", "--within", WITHIN)["id"]
    assert dev.call("job", "show", job[:-2], "-o", "json").json["id"] == job
    assert dev.call("job", "show", job.replace("-", "").upper(), "-o", "json").json["id"] == job
    nobody = dev.call("job", "show", "0199" + "0" * 28, "-o", "json")
    assert (nobody.code, nobody.error["code"]) == (3, "not_found")
    assert dev.call("job", "show", "0000000001").code == 3
    for wrong in ("xyz", "01a"):
        assert dev.call("job", "show", wrong).code == 2


def test_a_wait_for_a_job_that_exists_nowhere_ends(dev: Terminal) -> None:
    nowhere = str(UUID(bytes=new_id()))
    result = dev.call("job", "wait", nowhere, "-o", "json")
    assert (result.code, result.error["code"], nowhere in result.error["message"]) == (3, "not_found", True)


def test_lists_filter_and_tables_have_titles(dev: Terminal) -> None:
    job = submitted(dev, "add", "one=1", "other=1", "--within", WITHIN, "--priority", "low")["id"]
    rows = dev.call(
        "job", "list", "--state", "succeeded", "--handler", "add", "--priority", "low", "--since", "1h", "-o", "json"
    ).json
    assert job in [row["id"] for row in rows]
    assert {row["handler"] for row in rows} == {"add"}
    assert len(dev.call("job", "list", "--limit", "1", "-o", "json").json) == 1
    table = dev.call("job", "list").out
    assert table.startswith("ID ")
    assert job in table
    created = dev.call("job", "show", job, "-o", "json").json["created"]
    newest = dev.call("job", "list", "--since", created, "--until", "2100-01-01T00:00:00Z", "-o", "json").json
    assert job in [row["id"] for row in newest]
    older = dev.call("job", "list", "--after", job, "--limit", "1000", "-o", "json").json
    assert job not in [row["id"] for row in older]
    assert all(row["id"] < job for row in older)
    assert job not in [row["id"] for row in dev.call("job", "list", "--until", "1h", "-o", "json").json]
    for wrong in (("--since", "2030-01-01T00:00:00"), ("--until", "soon"), ("--after", "xyz")):
        refused = dev.call("job", "list", *wrong)
        assert (refused.code, wrong[1] in refused.err) == (2, True), refused.err
    labelled = ("--meta", f"row={job}", "--tenant", "acme")
    other = submitted(dev, "add", "one=1", "other=1", "--within", WITHIN, *labelled)["id"]
    assert [row["id"] for row in dev.call("job", "list", *labelled, "-o", "json").json] == [other]
    assert dev.call("job", "count", *labelled).out == "1\n"
    assert dev.call("job", "count", *labelled, "--due-before", "1h", "-o", "json").json == {"jobs": 0, "exact": True}
    assert dev.call("job", "count", "--at-most", "1").out == "1+\n"
    assert dev.call("job", "count", "--meta", "row").code == 2
    empty = dev.call("job", "list", "--handler", "nobody")
    assert (empty.code, empty.out, empty.err) == (0, "", "no jobs\n")


def test_a_job_that_waits_is_explained_and_failed_jobs_are_grouped(dev: Terminal, tmp_path: Path) -> None:
    held = submitted(dev, "add", "one=1", "other=1", "--after", "1h", "--priority", "high")["id"]
    table = dev.call("job", "explain", held[:13]).out
    assert table.startswith(f"job {held} is HELD:\n  it is held until its due time, in ")
    assert f"    -> jobmaster job run-now {held}\n" in table
    (cause,) = dev.call("job", "explain", held, "-o", "json").json["causes"]
    assert cause["cause"] == "due_later"
    assert cause["until"].endswith("Z")
    assert dev.call("job", "explain", str(UUID(bytes=new_id()))).code == 3
    failed = submitted(dev, "fails", f"path={tmp_path / 'w'}", "--within", WITHIN)["id"]
    groups = dev.call("job", "failures", "--handler", "fails", "-o", "json").json
    assert failed in [group["sample"] for group in groups]
    (group,) = [group for group in groups if group["sample"] == failed]
    listed = dev.call("job", "list", "--error", group["fingerprint"], "-o", "json").json
    assert listed[0]["id"] == failed
    assert len(listed) == group["jobs"]
    assert dev.call("job", "failures", "--handler", "nobody").err == "no job has failed\n"


def test_agents_buckets_and_status(dev: Terminal) -> None:
    agents = dev.call("agent", "list", "-o", "json").json
    assert [agent["state"] for agent in agents] == ["ACTIVE"]
    assert 0 < agents[0]["lease_left_seconds"] <= 10
    assert "add" in agents[0]["handlers"]
    assert dev.call("agent", "show", agents[0]["id"][:13], "-o", "json").json["id"] == agents[0]["id"]
    assert dev.call("agent", "show", "default", "-o", "json").json["id"] == agents[0]["id"]
    assert dev.call("agent", "show", "nobody").code == 3
    wait_until(lambda: dev.call("agent", "list", "-o", "json").json[0]["statistics"], 60, "the statistics of the agent")
    published = dev.call("agent", "list", "-o", "json").json[0]["statistics"]
    assert published["slots"] > 0
    assert published["memory_bytes"] > 1 << 20
    assert published["threads"] > 1
    buckets = dev.call("bucket", "list", "-o", "json").json
    assert [bucket["priority"] for bucket in buckets] == ["critical", "high", "medium", "low", "very_low"]
    assert {bucket["owner"] for bucket in buckets} == {agents[0]["id"]}
    assert {bucket["pending"] for bucket in buckets} == {0}
    assert dev.call("bucket", "list", "--lane", "payroll", "-o", "json").json == []
    shown = dev.call("bucket", "show", buckets[0]["id"], "-o", "json").json
    assert [(event["from_state"], event["to_state"]) for event in shown["events"]] == [(None, "ACTIVE")]

    def led() -> Any:
        """The status, when there is a leader: it is elected again after a delay of some seconds."""
        status = dev.call("status", "-o", "json").json
        return status if status["leader"] else None

    status = wait_until(led, 20, "a leader")
    assert status["agents"] == {"alive": 1, "known": 1}
    assert status["leader"] == "default"
    assert len(status["groups"]) == 5
    table = dev.call("status").out
    assert table.startswith("CLUSTER default")
    assert re.search(r"^default +critical +1 ", table, re.MULTILINE)


def test_doctor_finds_a_running_cluster_well(dev: Terminal) -> None:
    submitted(dev, "noop", "--within", WITHIN)
    reports: list[Any] = []

    def well() -> bool:
        """No remark. A process that was stopped for a second takes its clock for wrong, or another process for late."""
        result = dev.call("doctor", "-o", "json", "--audit-days", "0")
        assert result.code == 0, result.out
        reports.append(result.json)
        return {check["status"] for check in reports[-1]["checks"]} == {"ok"}

    wait_until(well, 20, lambda: f"a cluster that is well: {reports[-1]}")
    report = reports[-1]
    assert report["ok"] is True
    assert report["invariants"] == dict.fromkeys(
        ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12", "I13", "I14", "I15"), 0
    )
    assert {check["name"] for check in report["checks"]} >= {
        "master.schema",
        "store.default",
        "agents.alive",
        "invariants",
    }
    assert "no violation" in dev.call("doctor").out


def test_doctor_names_jobs_that_no_agent_serves(dev: Terminal, tmp_path: Path) -> None:
    """A configuration with a lane that no agent has: the job is held, status warns, doctor fails with 5."""
    config = tmp_path / "more.yaml"
    config.write_text("agents: {default: {}, payroll: {lanes: {payroll: {high: 1}}}}\n")
    job = dev.call("job", "submit", "noop", "--lane", "payroll", "--config", str(config), "-o", "json")
    assert job.code == 0, job.err
    assert job.json["level"] == "master"
    try:
        result = dev.call("doctor", "-o", "json")
        assert result.code == 5
        assert result.json["ok"] is False
        served = next(check for check in result.json["checks"] if check["name"] == "jobs.served")
        assert served["status"] == "FAIL"
        assert "payroll/medium (1 held)" in served["detail"]
        assert any("payroll/medium" in warning for warning in dev.call("status", "-o", "json").json["warnings"])
        assert "-> jobs.served:" in dev.call("doctor").out
    finally:
        assert dev.call("job", "cancel", job.json["id"]).code == 0


def test_db_and_store(dev: Terminal) -> None:
    assert dev.call("db", "migrate", "-o", "json").json == {"schema": "jobmaster_default", "applied": []}
    assert {line["state"] for line in dev.call("db", "status", "-o", "json").json} == {"applied"}
    other = dev.call("db", "status", "--set", "cluster=other", "-o", "json")
    assert other.code == 77
    assert {line["state"] for line in other.json} == {"pending"}
    refused = dev.call("job", "list", "--set", "cluster=other")
    assert refused.code == 77
    assert "jobmaster db migrate" in refused.err
    assert [row["state"] for row in dev.call("store", "check", "-o", "json").json] == ["ok"]
    assert [row["state"] for row in dev.call("store", "init", "-o", "json").json] == ["ok"]
    assert dev.call("store", "check", "nowhere").code == 3


def test_unreachable_and_unwilling_servers(dev: Terminal) -> None:
    dsn = next(line for line in dev.call("dev", "status").out.splitlines() if line.startswith("PostgreSQL")).split()[-1]
    gone = dev.call("status", "--set", "master.dsn=postgresql://nobody@127.0.0.1:1/x", "-o", "json")
    assert (gone.code, gone.error["code"]) == (69, "unavailable")
    absent = dev.call("status", "--set", f"master.dsn={dsn.replace('/jobmaster?', '/nodb?')}")
    assert absent.code == 77
    assert "does not exist" in absent.err
    dead = "stores.default.url=redis://127.0.0.1:1/0"
    checked = dev.call("store", "check", "--set", dead, "-o", "json")
    assert checked.code == 5
    assert "cannot be reached" in checked.json[0]["state"]
    assert dev.call("store", "init", "--set", dead).code == 69
    doctor = dev.call("doctor", "--set", dead, "-o", "json")
    assert doctor.code == 5
    assert [c["name"] for c in doctor.json["checks"] if c["status"] == "FAIL"] == ["store.default"]


def test_a_drained_agent_leaves_and_is_not_started_again(dev: Terminal) -> None:
    """Last in this file: it adds an agent of its own and sends it home."""
    extra = dev.start("agent", "run", "--name", "extra", "--handlers", "tests.system.jobs")
    try:
        wait_until(lambda: dev.call("agent", "show", "extra").code == 0, 30, "the second agent")
        asked = dev.call("agent", "drain", "extra", "-o", "json")
        assert asked.json["drain_requested"] is True
        assert extra.wait(PATIENCE_SECONDS) == 0
    finally:
        if extra.poll() is None:
            extra.kill()
    ended = [row for row in dev.call("agent", "list", "--all", "-o", "json").json if row["name"] == "extra"]
    assert [(row["state"], row["lease_left_seconds"]) for row in ended] == [("RETIRED", None)]
    # Its buckets were completed, and no rescue was needed.
    report = json.loads(dev.call("doctor", "-o", "json").out)
    assert report["invariants"]["I14"] == 0
    assert report["ok"] is True


def test_a_handler_that_no_agent_has_is_named_wherever_its_job_is_looked_at(dev: Terminal) -> None:
    job = dev.call("job", "submit", "images.unknown", "--allow-unregistered", "-o", "json")
    assert job.code == 0, job.err
    job_id = job.json["id"]
    said = "no living agent has the handler 'images.unknown'"
    try:
        waited = dev.call("job", "wait", job_id, "--within", "100ms")
        while said not in waited.err:  # until the agent that got it has given it back
            assert waited.code == 6, waited.err
            waited = dev.call("job", "wait", job_id, "--within", "1s")
        assert "start an agent with the module that declares it" in waited.err
        assert dev.call("job", "show", job_id, "-o", "json").json["unserved"] == said
        assert said in dev.call("job", "timeline", job_id, "-o", "json").json[-1]["detail"]
        checks = {check["name"]: check for check in dev.call("doctor", "-o", "json").json["checks"]}
        assert checks["jobs.handlers"]["status"] == "FAIL"
        assert f"{said} (1 job(s) wait in default/medium" in checks["jobs.handlers"]["detail"]
        assert checks["jobs.served"]["status"] == checks["jobs.overdue"]["status"] == "ok"
    finally:
        assert dev.call("job", "cancel", job_id).code == 0


def test_doctor_does_not_advise_new_buckets_where_all_are_frozen(dev: Terminal) -> None:
    assert dev.call("bucket", "freeze", "--all").code == 0
    job = dev.call("job", "submit", "noop", "-o", "json")
    try:
        checks = {check["name"]: check for check in dev.call("doctor", "-o", "json").json["checks"]}
        # Of tests before this one other jobs may be held there, too.
        assert re.search(r"every bucket of .*default/medium \(\d+ held\).* is frozen", checks["jobs.served"]["detail"])
        assert "unfreeze" in checks["jobs.served"]["fix"]
        assert "configure" not in checks["jobs.served"]["fix"]
        assert any("every bucket is frozen" in each for each in dev.call("status", "-o", "json").json["warnings"])
        assert dev.call("job", "show", job.json["id"], "-o", "json").json["unserved"] == (
            "every bucket of default/medium is frozen"
        )
    finally:
        assert dev.call("bucket", "unfreeze", "--all").code == 0
    assert dev.call("job", "wait", job.json["id"], "--within", WITHIN).code == 0
