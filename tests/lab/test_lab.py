"""A short run of the laboratory is clean, and an interrupted one leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.cluster.fleet import REPOSITORY, environment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]
COMMAND = (sys.executable, "-m", "tests.lab", "--json", "--rate", "200", "--bound", "800")


def lab(temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=environment({"TMPDIR": str(temporary)}),
    )


def test_nothing_is_lost_and_nothing_counts_twice_when_links_fall_silent_and_hosts_vanish(server_root: Path) -> None:
    kinds = ("way_silent", "link_down", "agents_vanish", "primary_vanishes")
    run = lab(server_root, "--minutes", "1", "--seed", "2", *(word for kind in kinds for word in ("--fault", kind)))
    out, progress = run.communicate(timeout=PATIENCE_SECONDS)
    if run.returncode == 2:
        pytest.skip(progress)
    assert run.returncode == 0, f"{out}\n{progress}"
    report = json.loads(out.splitlines()[-1])
    assert report["violations"] == {}
    assert report["acknowledged"] > 500
    assert set(report["invariants"].values()) == {0}
    assert sum(report["faults"].values()) >= 3


def test_a_loss_of_power_on_disks_that_lie_is_found(server_root: Path) -> None:
    run = lab(server_root, "--minutes", "0.5", "--seed", "1", "--fault", "power_cut", "--mutant", "disks_lie")
    out, progress = run.communicate(timeout=PATIENCE_SECONDS)
    if run.returncode == 2 or '"power_cut": "' in out:
        pytest.skip(progress)
    assert run.returncode == 1
    assert "could not be healed" in progress or json.loads(out.splitlines()[-1])["violations"]["lost"]


def test_an_interrupt_leaves_no_process_no_file_and_no_link(server_root: Path) -> None:
    directory = server_root / "interrupted"
    directory.mkdir()
    before = Path("/proc/net/dev").read_text().count("\n")
    run = lab(directory, "--minutes", "5")
    assert run.stderr is not None
    said = ""
    while "logs in" not in said and run.poll() is None:
        said = run.stderr.readline()
    if run.poll() == 2:
        pytest.skip(said)
    assert named(directory)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=PATIENCE_SECONDS)
    wait_until(lambda: not named(directory), PATIENCE_SECONDS, "all processes to end")
    assert list(directory.iterdir()) == []
    assert Path("/proc/net/dev").read_text().count("\n") == before


def named(directory: Path) -> list[int]:
    """Processes whose command names the directory of the run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if bytes(directory) in path.read_bytes():
                found.append(int(path.parts[2]))
        except OSError:
            continue
    return found
