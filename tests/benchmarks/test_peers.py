"""The comparison with other systems: what does not need them to be installed."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.peers import job_counter, killed_worker, start_latency, work_kinds
from benchmarks.peers.__main__ import compared, used_of_a_job
from benchmarks.peers.catalogue import PEERS, UNAVAILABLE
from benchmarks.peers.environments import Environment, Unusable, installed, interpreter
from benchmarks.peers.job_counter import Count, Start
from benchmarks.peers.rival import CpuSample, counts_from_here, used_since
from benchmarks.support.plain_work import text_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(PEERS))
def test_each_peer_has_an_adapter_and_declares_its_guarantees(name: str) -> None:
    peer = PEERS[name]
    suffix = {"node": "mjs", "ruby": "rb"}.get(peer.language, "py")
    assert (ROOT / "benchmarks" / "peers" / f"{peer.adapter}.{suffix}").is_file()
    assert peer.durable_at_acknowledgement
    assert peer.outcome_kept
    assert peer.after_kill
    assert set(peer.also) <= set(work_kinds.SPECIAL)
    assert peer.store in ("postgresql", "redis")


def test_counts_of_several_processes_add_up(tmp_path: Path) -> None:
    code = "from benchmarks.peers.job_counter import JobCounter; counter = JobCounter(); [counter.hit() for _ in range(1000)]"
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            cwd=ROOT,
            env={"BENCH_MARKS": str(tmp_path), "PYTHONPATH": str(ROOT)},
        )
    (tmp_path / "opened-this-moment.mark").write_bytes(b"")
    found = job_counter.read(tmp_path)
    assert (found.jobs, found.processes) == (2000, 2)
    assert 0 < found.first < found.last


def test_the_report_names_ratios_for_each_count_of_processes_and_our_share_of_the_floor() -> None:
    rival: Any = SimpleNamespace(peer=PEERS["saq"])
    one = {"jobmaster": [50.0, 60.0, 40.0], "floor": [100.0], "raw_copy": [200.0], "saq": [10.0]}
    two = {**one, "jobmaster": [80.0]}
    report = compared([rival], {1: one, 2: two}, {})
    assert report["ratio"] == {"saq": 8.0}, "ours with two processes; theirs is as fast with one"
    faster = compared([rival], {1: one, 2: {**two, "saq": [40.0]}}, {})
    assert faster["ratio"] == {"saq": 2.0}, "each at its fastest, and not where they are slowest beside us"
    assert report["rates"]["saq"]["1"] == {"ours": 50.0, "theirs": 10.0, "ratio": 5.0}
    assert report["share_of_floor"] == {"1": 0.5, "2": 0.8}
    assert report["raw_copy_rows_per_second"] == {"1": 200.0, "2": 200.0}


def test_processor_time_of_a_peer_is_counted_without_the_start_of_its_workers() -> None:
    def look(jobs: int, processes: int, seconds: float) -> CpuSample:
        return CpuSample(
            Count(jobs, 1.0, 2.0, processes), {"workers": seconds, "postgres": 1.0, "store": 5.0 + seconds}
        )

    looks = [look(0, 0, 0.7), look(100, 1, 1.0), look(200, 2, 1.6), look(300, 2, 1.7), look(1000, 2, 2.4)]

    def counted(processes: int) -> CpuSample | None:
        begun = None
        for one in looks[:-1]:
            if counts_from_here(begun, one.run, processes, 1000):
                begun = one
        return begun

    assert counted(1) == looks[1]
    assert counted(2) == looks[2], "the second worker was still starting before"
    assert counted(3) == looks[1], "there never was a third one"
    assert used_since(counted(2), looks[-1]) == {"workers": 1000.0, "postgres": 0.0, "store": 1000.0}
    late = look(600, 3, 2.0)
    assert not counts_from_here(looks[1], late.run, 3, 1000), "too few jobs are left"
    assert used_since(None, looks[-1]) == {}
    assert used_of_a_job([{}, {"workers": 2.0}, {"workers": 4.0}]) == {"workers": 3.0}


@pytest.mark.long
@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_named(tmp_path: Path) -> None:
    peer = PEERS["saq"]._replace(requirements=("./no-such-package-here",))
    with pytest.raises(Unusable, match="saq cannot be installed"):
        Environment(peer, tmp_path).install()
    with pytest.raises(Unusable, match="saq cannot be installed"):
        Environment(peer, tmp_path).install()  # half an environment is not taken for a whole one


def test_an_unknown_peer_is_one_clear_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "--with", "saq,hangfire"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "hangfire: there is no adapter; there are pgqueuer" in done.stderr


def test_an_unknown_kind_of_work_is_one_clear_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "--with", "saq", "--part", "kinds", "--kinds", "noop,gpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "gpu: not a kind; there are noop" in done.stderr


def test_a_system_that_cannot_be_had_is_named_with_its_reason(tmp_path: Path) -> None:
    assert installed(["river"], tmp_path) == ([], {"river": UNAVAILABLE["river"]})
    assert not UNAVAILABLE.keys() & PEERS.keys()


def test_a_peer_for_a_newer_python_takes_the_first_that_can_be_run(tmp_path: Path) -> None:
    newer = PEERS["saq"]._replace(name="newer", python=(99, 0))
    broken = tmp_path / "python-shim"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    with pytest.raises(Unusable, match=r"newer needs Python 99\.0 or newer"):
        interpreter(newer, (str(broken), sys.executable))
    working = tmp_path / "python99"
    working.write_text("#!/bin/sh\nexit 0\n")
    working.chmod(0o755)
    assert interpreter(newer, (str(broken), str(working))) == str(working)
    assert interpreter(PEERS["saq"]) == sys.executable


ADAPTED = """
import sys
from benchmarks.peers import adapter
for number in range(200):
    for attempt in (1, 2):
        try:
            adapter.run(adapter.text() if attempt == 1 else "00", attempt)
        except adapter.Again:
            continue
        except adapter.Failed:
            print("failed")
        break
"""


@pytest.mark.parametrize(("kind", "failed"), [("retry_5", 0), ("fail_1", 2), ("results_1k", 0), ("arguments_16k", 0)])
def test_a_job_of_every_kind_is_counted_once_however_it_ends(kind: str, failed: int, tmp_path: Path) -> None:
    variables = {"BENCH_MARKS": str(tmp_path), "PYTHONPATH": str(ROOT), "BENCH_KIND": kind}
    done = subprocess.run(
        [sys.executable, "-c", ADAPTED], check=True, cwd=ROOT, env=variables, capture_output=True, text=True
    )
    assert job_counter.read(tmp_path).jobs == 200
    assert done.stdout.count("failed") == failed


@pytest.mark.parametrize(("kind", "kib"), [("arguments_1k", 1), ("results_16k", 16), ("arguments_128k", 128)])
def test_arguments_have_the_size_that_the_kind_names_and_do_not_compress(kind: str, kib: int) -> None:
    text = text_of(kind)
    assert len(json.dumps({"text": text}, separators=(",", ":"))) == kib * 1024
    assert len(zlib.compress(text.encode())) > len(text) * 0.7


def test_the_report_of_kinds_has_ratios_within_a_turn_and_leaves_out_who_failed() -> None:
    def one(rate: float) -> dict[str, Any]:
        return {"jobs_per_second": rate, "cpu_us_per_job": {}}

    turns = [
        {"jobmaster": one(100), "saq": one(10), "rq": one(1)},
        {"jobmaster": one(60), "saq": one(20)},
        {"jobmaster": one(90), "saq": one(30)},
    ]
    found = work_kinds.compared(turns, "loop")
    assert found["ratio"] == {"saq": 3.0}, "of 10, 3 and 3"
    assert found["jobs_per_second"] == {"jobmaster": 90.0, "saq": 20.0}


def test_waits_are_those_of_the_first_starts_in_the_order_of_the_submits() -> None:
    starts = [Start("2000", 7, 2500), Start("1000", 7, 4000), Start("1000", 8, 9000), Start("10", 7, 11)]
    assert start_latency.waits(starts, {"10"}) == [3.0, 0.5]


def test_a_rescue_is_over_when_every_interrupted_job_has_started_again() -> None:
    before = [Start("a", 1, 100), Start("b", 1, 200), Start("c", 2, 300)]
    assert killed_worker.again(before, {"a", "b"}, 1_000_000) is None
    one = [*before, Start("a", 2, 2_000_000)]
    assert killed_worker.again(one, {"a", "b"}, 1_000_000) is None
    assert killed_worker.again([*one, Start("b", 2, 4_500_000)], {"a", "b"}, 1_000_000) == 3.5
    assert killed_worker.summed_up([3.5, None, 1.0]) == {
        "kills": 3, "came_again": 2, "p50_seconds": 2.25, "max_seconds": 3.5,
    }  # fmt: skip
    assert killed_worker.summed_up([None]) == {"kills": 1, "came_again": 0}
    assert killed_worker.summed_up(["same"]) == {"kills": 0}


def test_starts_of_several_processes_are_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(job_counter.DIRECTORY, str(tmp_path))
    assert job_counter.starts(tmp_path) == []
    job_counter.record_start("123")
    (found,) = job_counter.starts(tmp_path)
    assert (found.text, found.pid) == ("123", os.getpid())


def test_threads_whose_first_jobs_come_at_once_are_all_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(job_counter.DIRECTORY, str(tmp_path))
    counter, opening, go_on, both = job_counter.JobCounter(), threading.Event(), threading.Event(), threading.Barrier(2)
    mapped = mmap.mmap

    class Noted:
        """The guard, and a word that the second thread has come to it."""

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __enter__(self) -> None:
            if opening.is_set():
                both.wait(10)
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    def slow(*arguments: int) -> object:
        opening.set()
        assert go_on.wait(10)
        return mapped(*arguments)

    monkeypatch.setattr(mmap, "mmap", slow)
    monkeypatch.setattr(job_counter, "_OPENING", Noted())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(counter.hit)
        assert opening.wait(10)
        second = pool.submit(counter.hit)  # before there is anything to count in
        both.wait(10)
        go_on.set()
        first.result(10)
        second.result(10)
    assert job_counter.read(tmp_path).jobs == 2
