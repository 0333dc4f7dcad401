"""``jobmaster dev``: one per directory, data that stays, and nothing left behind, however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import wait_until
from tests.system.cli.conftest import REPOSITORY, Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def terminal(server_root: Path) -> Iterator[Terminal]:
    terminal = Terminal(server_root / f"dev-{uuid4().hex[:6]}")
    yield terminal
    terminal.call("dev", "stop")
    for process in terminal.started:
        process.wait(PATIENCE_SECONDS)
    wait_until(lambda: not terminal.processes(), 20, f"the end of {terminal.processes()}")


def ready(terminal: Terminal, agents: int = 1) -> None:
    wait_until(lambda: f'"alive": {agents}' in terminal.call("status", "-o", "json").out, 60, f"{agents} agents")


def greeted(terminal: Terminal, words: int) -> None:
    """The `dev` of so many words has started. Its servers are up earlier; a signal before the greeting ends it at once."""
    log = terminal.data_dir.parent / f"{terminal.data_dir.name}-{words}.log"
    wait_until(lambda: "Stop with Ctrl-C" in log.read_text(), 30, "the greeting of dev")


def test_data_survives_and_stop_stops(terminal: Terminal) -> None:
    first = terminal.start("dev")
    ready(terminal)
    job = terminal.call("job", "submit", "demo.index_file", f"path={__file__}", "--within", "10m", "-o", "json").json
    assert (job["state"], job["result"]["parses"]) == ("SUCCEEDED", True)
    held = terminal.call("job", "submit", "demo.index_file", "path=x", "--after", "1h", "-o", "json").json["id"]
    assert terminal.call("dev", "stop").code == 0
    assert first.wait(PATIENCE_SECONDS) == 0
    wait_until(lambda: not terminal.processes(), 10, f"the end of {terminal.processes()}")
    status = terminal.call("dev", "status", "-o", "json")
    assert (status.code, status.json["running"], status.json["owner_pid"]) == (3, False, None)
    second = terminal.start("dev", "--agents", "0", "--no-pages")
    wait_until(lambda: terminal.call("dev", "status").code == 0, 30, "the servers")
    assert terminal.call("job", "show", held, "-o", "json").json["state"] == "HELD"
    assert terminal.call("job", "show", job["id"], "-o", "json").json["state"] == "SUCCEEDED"
    greeted(terminal, 4)
    second.send_signal(signal.SIGINT)
    assert second.wait(PATIENCE_SECONDS) == 0


def test_the_pages_are_served_beside_it_and_end_with_it(terminal: Terminal) -> None:
    log = terminal.data_dir.parent / f"{terminal.data_dir.name}-3.log"
    process = terminal.start("dev", "--agents", "0")
    wait_until(lambda: "pages       http://" in log.read_text(), 60, "the address of the pages")
    address = re.search(r"pages +(http://\S+)", log.read_text())
    assert address is not None
    assert "Lanes and priorities" in httpx.get(address[1], timeout=PATIENCE_SECONDS).text
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_SECONDS) == 0
    wait_until(lambda: not terminal.processes(), 20, f"the end of {terminal.processes()}")


@pytest.mark.long
def test_a_second_one_attaches_and_leaves_the_servers_alone(terminal: Terminal) -> None:
    owner = terminal.start("dev", "--no-pages")
    ready(terminal)
    guest = terminal.start("dev", "--agents", "2", "--no-pages")
    ready(terminal, 3)
    assert terminal.call("dev", "status", "-o", "json").json["owner_pid"] == owner.pid
    guest.send_signal(signal.SIGINT)
    assert guest.wait(PATIENCE_SECONDS) == 0
    ready(terminal, 1)
    assert owner.poll() is None
    report = terminal.call("doctor", "-o", "json").json
    assert report["ok"] is True, report


def test_nothing_is_left_after_sigkill(terminal: Terminal) -> None:
    """Servers end by their guardians, agents because the other end of their standard input is gone."""
    owner = terminal.start("dev")
    ready(terminal)
    assert len(terminal.processes()) >= 6  # dev, supervisor, agent, two servers, pages
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    wait_until(lambda: not terminal.processes(), 40, f"the end of {terminal.processes()}")
    again = terminal.start("dev", "--no-pages")
    ready(terminal)
    again.send_signal(signal.SIGTERM)
    assert again.wait(PATIENCE_SECONDS) == 0


def test_a_mistake_in_the_handlers_is_reported_before_anything_starts(terminal: Terminal) -> None:
    result = terminal.call("dev", "--handlers", "no_such_module_anywhere")
    assert result.code == 78
    assert "no_such_module_anywhere" in result.err
    assert not terminal.data_dir.exists()


def test_a_directory_that_cannot_be_used_is_one_sentence(terminal: Terminal) -> None:
    terminal.data_dir.write_text("a file")
    try:
        result = terminal.call("dev")
        assert result.code == 69
        assert result.err.count("\n") == 1
        assert str(terminal.data_dir) in result.err
    finally:
        terminal.data_dir.unlink()


def test_ctrl_c_completes_the_running_job(terminal: Terminal, tmp_path: Path) -> None:
    """A terminal sends SIGINT to the whole foreground group; the agents must complete before their servers go."""
    owner = subprocess.Popen(
        [sys.executable, "-m", "jobmaster.cli.main", "dev", "--handlers", "tests.system.jobs"],
        env=terminal.environment,
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    ready(terminal)
    witness, gate = tmp_path / "w", tmp_path / "gate"
    job = terminal.call("job", "submit", "until_file", f"path={witness}", f"gate={gate}", "-o", "json").json["id"]
    wait_until(witness.exists, 20, "the start of the job")
    os.killpg(owner.pid, signal.SIGINT)
    # Had the agents received the signal twice (from the terminal and from dev), they would stop now and give the job back.
    wait_until(lambda: "COMPLETING" in terminal.call("bucket", "list", "-o", "json").out, 20, "the agent to complete")
    gate.touch()
    assert owner.wait(PATIENCE_SECONDS) == 0
    assert witness.read_text().split()[-1] == "ended"
    again = terminal.start("dev", "--agents", "0", "--no-pages")
    wait_until(lambda: terminal.call("dev", "status").code == 0, 30, "the servers")
    assert terminal.call("job", "show", job, "-o", "json").json["state"] == "SUCCEEDED"
    greeted(terminal, 4)
    assert terminal.call("dev", "stop").code == 0
    assert again.wait(PATIENCE_SECONDS) == 0
