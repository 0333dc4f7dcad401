"""The demo as a user runs it: real servers, real agents, a real kill; and nothing left of it afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from jobmaster.demo.indexing import FileIndex, add_up
from jobmaster.demo.results import DemoSummary, MasterResults, summarise
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import processes_with
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[3]
MARK = "JM_TEST_MARK"


class Run:
    """One run of the demo, with a temporary directory of its own."""

    def __init__(self, tmp: Path, *words: str) -> None:
        self.tmp, self.mark = tmp, uuid4().hex
        self.log = tmp.parent / f"{tmp.name}.log"
        path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "agents")])
        # A shell's background job, and what it starts, ignores SIGINT: these tests may be run so.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jobmaster.cli.main", "demo", *words],
                # A setting that the demo must not listen to.
                env={
                    **os.environ,
                    "TMPDIR": str(tmp),
                    MARK: self.mark,
                    "PYTHONPATH": path,
                    "JOBMASTER_CLUSTER": "other",
                },
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def processes(self) -> list[str]:
        return list(processes_with(MARK, self.mark, self.tmp).values())

    def said(self, sentence: str) -> bool:
        return sentence in self.log.read_text()

    def enter(self) -> None:
        """What somebody presses who watches."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def wait_until(self, condition: Callable[[], Any], seconds: float) -> None:
        wait_until(condition, seconds, self.log.read_text)


@pytest.fixture
def start(server_root: Path) -> Callable[..., Run]:
    def start(*words: str) -> Run:
        tmp = server_root / f"demo-{uuid4().hex[:6]}"
        tmp.mkdir(mode=0o755)
        return Run(tmp, *words)

    return start


@pytest.mark.cluster
@pytest.mark.slow
def test_the_books_balance(start: Callable[..., Run]) -> None:
    run = start("--json", "--jobs", "300", "--seconds", "4", "--limit", "500", "--watch")
    run.wait_until(lambda: run.said("press Enter: agent two is killed"), 60)
    assert not run.said("SIGKILL to agent two")
    run.enter()
    run.wait_until(lambda: run.said("press Enter: the pages and the cluster end"), 60)
    assert not run.said("the last agent leaves")
    run.enter()
    out, _ = run.process.communicate(timeout=PATIENCE_SECONDS)
    assert run.process.returncode == 0, run.log.read_text() + out
    summary = json.loads(out.splitlines()[-1])
    expected = {"files": 300, "submitted": 300, "succeeded": 300, "failed": 0, "lost": 0, "duplicate_outcomes": 0}
    assert {name: summary[name] for name in expected} == expected
    assert summary["results_match"] is True
    assert summary["rescued"] > 0
    assert summary["graceful_exits"] == 2
    assert set(summary["invariants"].values()) == {0}
    assert len(summary["invariants"]) == 15
    assert run.processes() == []
    assert list(run.tmp.iterdir()) == []


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.long
def test_the_pipeline_looks_back_on_every_job_and_leaves_a_report(start: Callable[..., Run], tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
    page = tmp_path / "report.html"
    run = start("--json", "--jobs", "120", "--seconds", "3", "--limit", "500", "--pipeline", "--report", str(page))
    out, _ = run.process.communicate(timeout=PATIENCE_SECONDS)
    assert run.process.returncode == 0, run.log.read_text() + out
    found = json.loads(out.splitlines()[-1])["pipeline"]
    assert (found["rolled_up_jobs"], found["audit_violations"]) == (120, 0)
    assert sorted(found["plan"]) == sorted(
        f"default/{name}" for name in ("critical", "high", "low", "medium", "very_low")
    )
    assert [one["group"] for one in found["waits"]] == list(found["plan"])
    assert not [one for one in found["waits"] if one["difference"] > 2 and one["status"] == "met"]
    assert found["report"] == str(page)
    assert page.read_text().count("<svg") >= 5
    assert run.processes() == []


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)], ids=lambda number: number.name
)
def test_an_interrupted_demo_leaves_nothing(start: Callable[..., Run], number: signal.Signals) -> None:
    run = start("--jobs", "300", "--seconds", "60")
    run.wait_until(lambda: run.said("jobs are in"), 60)
    assert len(run.processes()) >= 7  # the demo, two supervisors, two agents, two servers
    run.process.send_signal(number)
    run.process.communicate(timeout=PATIENCE_SECONDS)
    assert run.process.returncode == 130, run.log.read_text()
    run.wait_until(lambda: not run.processes(), 10)
    assert list(run.tmp.iterdir()) == []


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.slow
def test_a_killed_demo_leaves_no_process(start: Callable[..., Run]) -> None:
    run = start("--jobs", "300", "--seconds", "60")
    run.wait_until(lambda: run.said("jobs are in"), 60)
    run.process.kill()
    run.process.communicate()
    run.wait_until(lambda: not run.processes(), 40)


# ---------------------------------------------------------------- what counts as off

INDEX = FileIndex(sha256="a", lines=1, parses=True)


def balanced(lost: bool = False) -> DemoSummary:
    ids = {bytes([at]) * 16: str(at) for at in range(4)}
    states = dict.fromkeys(list(ids)[: 3 if lost else 4], "SUCCEEDED")
    results = [(ids[job_id], INDEX) for job_id in states]
    recorded = MasterResults(states=states, results=results, rescued=1, duplicate_ids=0)
    expected = add_up((path, INDEX) for path in ids.values())
    return summarise(list(ids.values()), ids, recorded, expected, {"I1": 0}, 2, 1.0)


def test_a_lost_job_is_seen_in_every_figure_that_it_touches() -> None:
    summary = balanced(lost=True)
    assert (summary.lost, summary.succeeded, summary.results_match, summary.ok) == (1, 3, False, False)


@pytest.mark.parametrize(
    "off",
    [
        {"failed": 1},
        {"lost": 1},
        {"duplicate_outcomes": 1},
        {"results_match": False},
        {"rescued": 0},
        {"graceful_exits": 0},
        {"invariants": {"I1": 0, "I7": 2}},
        {"succeeded": 3},
        {"submitted": 5},
    ],
    ids=str,
)
def test_anything_off_is_not_ok(off: dict[str, Any]) -> None:
    summary = balanced()
    assert summary.ok
    assert not msgspec.structs.replace(summary, **off).ok


def test_two_outcomes_of_one_file_are_counted() -> None:
    """Two jobs that did the same file, or two rows of one job, are outcomes beyond the first."""
    states = {b"a" * 16: "SUCCEEDED", b"b" * 16: "SUCCEEDED"}
    recorded = MasterResults(states=states, results=[("x", INDEX), ("x", INDEX)], rescued=0, duplicate_ids=1)
    assert recorded.duplicate_outcomes == 2
