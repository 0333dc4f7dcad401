"""The command line as a user meets it: as a process, or inside this one for what needs no server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from jobmaster.cli.main import run
from tests.support.forked_commands import run_command
from tests.support.patience import PATIENCE_SECONDS, patient
from tests.support.processes import free_port, processes_with
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[3]
MARK = "JM_TEST_MARK"


@dataclass(frozen=True)
class Result:
    """How one command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error of ``-o json``: the last line of standard error."""
        error: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        return error


@pytest.fixture
def inside(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Result]:
    """Run one command in this process, in an empty directory and without settings in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("JOBMASTER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("JOBMASTER_DATA_DIR", str(tmp_path / "nothing-here"))

    def call(*arguments: str) -> Result:
        code = run(arguments)
        return Result(code, *capsys.readouterr())

    return call


class Terminal:
    """A user's terminal: one data directory, commands as processes that can be found again.

    Args:
        folder: the working directory.
    """

    def __init__(self, data_dir: Path, folder: Path = REPOSITORY) -> None:
        self.data_dir = data_dir
        self.folder = folder
        self.mark = uuid4().hex
        self.web_port = free_port()
        self.started: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("JOBMASTER_")}
        own = {"JOBMASTER_DATA_DIR": str(self.data_dir), "JOBMASTER_WEB__PORT": str(self.web_port), MARK: self.mark}
        return {**clean, **own, "PYTHONPATH": _python_path()}

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A command that goes on; what it says goes to a file."""
        with (self.data_dir.parent / f"{self.data_dir.name}-{len(arguments)}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "jobmaster.cli.main", *arguments],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.started.append(process)
        return process

    def call(self, *arguments: str, given: str | None = None, seconds: float = 60) -> Result:
        """A command, to its end."""
        done = run_command(arguments, env=self.environment, cwd=self.folder, given=given, seconds=patient(seconds))
        return Result(done.returncode, done.stdout, done.stderr)

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A Python script of the working directory, to its end."""
        return subprocess.run(
            [sys.executable, script, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def processes(self) -> list[str]:
        """Command lines of every process that descends from a command of this terminal, servers included."""
        return list(processes_with(MARK, self.mark, self.data_dir).values())


def _python_path() -> str:
    return os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "agents")])


@contextmanager
def running_dev(terminal: Terminal, handlers: str) -> Iterator[Terminal]:
    """``jobmaster dev`` with these handlers runs in the terminal. At the end none of its processes is left."""
    process = terminal.start("dev", "--handlers", handlers)
    try:
        wait_until(lambda: '"alive": 1' in terminal.call("status", "-o", "json").out, 60, "the agent of jobmaster dev")
        yield terminal
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
        wait_until(lambda: not terminal.processes(), 20, lambda: f"the end of {terminal.processes()}")


@pytest.fixture(scope="module")
def dev(server_root: Path) -> Iterator[Terminal]:
    """A running ``jobmaster dev`` with the handlers of the cluster tests; the tests of a module share it."""
    with running_dev(Terminal(server_root / f"dev-{uuid4().hex[:6]}"), "tests.system.jobs") as terminal:
        yield terminal
