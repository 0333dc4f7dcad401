"""The comparison with other systems: what does not need them to be installed."""

from __future__ import annotations

import mmap
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.peers import job_counter
from benchmarks.peers.__main__ import compared
from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.environments import Environment, Unusable

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(PEERS))
def test_each_peer_has_an_adapter_and_declares_its_guarantees(name: str) -> None:
    peer = PEERS[name]
    suffix = "mjs" if peer.node else "py"
    assert (ROOT / "benchmarks" / "peers" / f"{name}.{suffix}").is_file()
    assert peer.durable_at_acknowledgement
    assert peer.outcome_kept
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
    assert found.jobs == 2000
    assert 0 < found.first < found.last


def test_the_report_names_ratios_for_each_count_of_processes_and_our_share_of_the_floor() -> None:
    rival: Any = SimpleNamespace(peer=PEERS["saq"])
    one = {"jobmaster": [50.0, 60.0, 40.0], "floor": [100.0], "raw_copy": [200.0], "saq": [10.0]}
    two = {**one, "jobmaster": [80.0]}
    report = compared([rival], {1: one, 2: two}, {})
    assert report["ratio"] == {"saq": 8.0}, "the better of the two"
    assert report["rates"]["saq"]["1"] == {"ours": 50.0, "theirs": 10.0, "ratio": 5.0}
    assert report["share_of_floor"] == {"1": 0.5, "2": 0.8}
    assert report["raw_copy_rows_per_second"] == {"1": 200.0, "2": 200.0}


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_named(tmp_path: Path) -> None:
    peer = PEERS["saq"]._replace(requirements=("./no-such-package-here",))
    with pytest.raises(Unusable, match="saq cannot be installed"):
        Environment(peer, tmp_path).install()
    with pytest.raises(Unusable, match="saq cannot be installed"):
        Environment(peer, tmp_path).install()  # half an environment is not taken for a whole one


def test_an_unknown_peer_is_one_clear_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "--with", "saq,sidekiq"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "sidekiq: there is no adapter; there are pgqueuer" in done.stderr


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
