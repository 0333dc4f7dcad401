"""A forked command is the command that a new process runs (``tests/support/forked_commands.py``)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deployment import Deployment
from tests.support.forked_commands import ForkedProcess, run_command
from tests.support.forked_programs import NEW_PROGRAMS
from tests.support.waiting import wait_until
from tests.system.cli.conftest import _python_path


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where other tests start new programs."""
    monkeypatch.delenv(NEW_PROGRAMS, raising=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("version", "-o", "json"),
        ("no-such-command",),
        ("job", "submit", "add", "--args", "-"),
        ("status", "--config", "near.yaml"),
        ("job", "show", "0123", "-o", "json"),
        ("dev", "--handlers", "of_this_folder"),
    ],
)
def test_it_prints_the_same_and_has_the_same_exit_code(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "near.yaml").write_text("cluster: 'of this folder'\n")
    (tmp_path / "of_this_folder.py").write_text("import os\nraise SystemExit(os.environ['ONLY_HERE'])\n")
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("JOBMASTER_")},
        "PYTHONPATH": _python_path(),
        "JOBMASTER_DATA_DIR": str(tmp_path / "data"),
        "ONLY_HERE": "a text of this environment",
    }
    new = subprocess.run(
        [sys.executable, "-m", "jobmaster.cli.main", *arguments],
        env=env,
        cwd=tmp_path,
        input="[1",
        capture_output=True,
        text=True,
        check=False,
    )
    forked = run_command(arguments, env=env, cwd=tmp_path, given="[1", seconds=60)
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)
    assert forked.stdout + forked.stderr


def working_in(folder: Path) -> list[str]:
    """Ids of the processes that work in a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry / "cwd") == str(folder):
                found.append(entry.name)
    return found


@pytest.mark.slow
def test_a_command_that_does_not_end_is_killed(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    env = {**os.environ, "PYTHONPATH": _python_path(), "JOBMASTER_DATA_DIR": str(tmp_path / "data")}
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(["dev", "--handlers", "slow"], env=env, cwd=tmp_path, seconds=3)
    assert working_in(tmp_path) == [], "however far it came"


def test_a_command_that_stays_has_a_session_and_ends_with_its_code_or_its_signal(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import pathlib, sys, time\npathlib.Path('here').touch()\nsys.stdin.read()\n1 / 0\n"
    )
    env = {**os.environ, "PYTHONPATH": _python_path(), "JOBMASTER_DATA_DIR": str(tmp_path / "data")}

    def started() -> ForkedProcess:
        with (tmp_path / "log").open("wb") as out:
            process = ForkedProcess(["dev", "--handlers", "slow"], env=env, cwd=tmp_path, out=out)
        wait_until((tmp_path / "here").exists, 20, (tmp_path / "log").read_text)
        (tmp_path / "here").unlink()
        return process

    process = started()
    assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid != os.getsid(0)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.stdin.close()
    assert process.wait(60) == process.poll() == process.returncode == 78
    assert "division by zero" in (tmp_path / "log").read_text()
    process.send_signal(signal.SIGTERM)  # it has ended
    other = started()
    other.kill()
    assert other.wait(60) == -signal.SIGKILL
    other.stdin.close()
    wait_until(lambda: not working_in(tmp_path), 20, lambda: "the end of the command below it")


def facts(pid: int, parent: int) -> dict[str, object]:
    """What a process has from the one that started it."""
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    opened = sorted(re.sub(r"\d+", "n", os.readlink(fd)) for fd in Path(f"/proc/{pid}/fd").iterdir())
    return {
        "leads its session and its group": os.getsid(pid) == os.getpgid(pid) == pid,
        "child of": int(status["PPid"]) == parent,
        "works in": os.readlink(f"/proc/{pid}/cwd"),
        "signals": {name: status[name] for name in ("SigBlk", "SigIgn", "SigCgt")},
        "threads": status["Threads"],
        "open": opened,
    }


@pytest.mark.slow
@pytest.mark.cluster
async def test_a_forked_agent_and_its_supervisor_have_what_new_programs_have(deployment: Deployment) -> None:
    found = []
    for new_programs in (False, True):
        agent = await deployment.start_agent(new_programs=new_programs)
        [child] = agent.children()
        supervisor = agent.process.pid
        found.append([facts(supervisor, -1) | {"child of": None}, facts(child, supervisor)])
        assert await agent.terminate() == 0
        log = agent.log.read_text()
        assert agent.count("supervisor_stopped") == 1, log
        assert all(line.startswith("{") for line in log.splitlines()), log
    assert found[0] == found[1]
