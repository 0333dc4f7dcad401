"""Agents and producers of either version, and what they have written down."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.upgrade.versions import UpgradeFailed, Version

PROGRAM = Path(__file__).parent / "program"
LIMIT_SECONDS = 600.0
"""It ends a hang; every wait is a matter of seconds."""


class Run(NamedTuple):
    """A run of a handler, as the handler noted it."""

    version: str
    handler: str
    job: str


def until(what: str, condition: Callable[[], object]) -> None:
    """Wait for a condition.

    Raises:
        UpgradeFailed: it did not come true.
    """
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise UpgradeFailed(f"waited {LIMIT_SECONDS:g} s for {what}")
        time.sleep(0.1)


class Fleet:
    """The processes of one run, in a folder with the configuration of both versions."""

    def __init__(self, folder: Path, config: dict[str, Path]) -> None:
        self.folder = folder
        self._config = config
        """Version -> its configuration."""
        self.members: dict[str, subprocess.Popen[bytes]] = {}

    def environment(self, version: Version) -> dict[str, str]:
        """No setting and no module of this process."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("JOBMASTER_", "PYTHON"))}
        own = {"UPGRADE_FOLDER": str(self.folder), "UPGRADE_VERSION": version.name, "PYTHONPATH": str(PROGRAM)}
        return {**plain, **own, "PYTHONDONTWRITEBYTECODE": "1"}

    def command(self, version: Version, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One ``jobmaster`` command of a version."""
        return subprocess.run(
            [version.python, "-m", "jobmaster.cli.main", *arguments, "--config", str(self._config[version.name])],
            cwd=self.folder, env=self.environment(version), capture_output=True, text=True, timeout=LIMIT_SECONDS,
            check=False,
        )  # fmt: skip

    def succeeds(self, version: Version, *arguments: str) -> str:
        """Standard output of a command that has to succeed.

        Raises:
            UpgradeFailed: it did not.
        """
        done = self.command(version, *arguments)
        if done.returncode != 0:
            raise UpgradeFailed(
                f"jobmaster {' '.join(arguments)} of the {version.name} version: exit code {done.returncode}: "
                f"{(done.stderr or done.stdout)[-800:]}"
            )
        return done.stdout

    def _start(self, name: str, version: Version, *argv: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as out:
            self.members[name] = subprocess.Popen(
                [str(version.python), *argv], cwd=self.folder, env=self.environment(version), stdin=subprocess.PIPE,
                stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def agent(self, name: str, version: Version, kind: str) -> None:
        """``jobmaster agent run``, until it serves its buckets."""
        config = str(self._config[version.name])
        command = ("-m", "jobmaster.cli.main", "agent", "run", "--leave-with-stdin", "--name", kind, "--config", config)
        self._start(name, version, *command)
        until(f"agent {name}", lambda: self.alive(name) and '"agent_started"' in self.log(name))

    def producer(self, name: str, version: Version, *words: str) -> None:
        """A producer, until it has got its first receipts."""
        before = len(self.acknowledged())
        self._start(
            name, version, str(PROGRAM / "producer.py"), str(self._config[version.name]), str(self.folder), *words
        )
        until(f"receipts of {name}", lambda: self.alive(name) and len(self.acknowledged()) > before)

    def alive(self, name: str) -> bool:
        """True.

        Raises:
            UpgradeFailed: the process has ended.
        """
        code = self.members[name].poll()
        if code is not None:
            raise UpgradeFailed(f"{name} ended with {code}: {self.log(name)[-800:]}")
        return True

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def leave(self, name: str) -> None:
        """SIGTERM, and a clean end.

        Raises:
            UpgradeFailed: it ended with another code than 0.
        """
        self.alive(name)
        member = self.members.pop(name)
        member.send_signal(signal.SIGTERM)
        if code := member.wait(LIMIT_SECONDS):
            raise UpgradeFailed(f"{name} was asked to leave and ended with {code}: {self.log(name)[-800:]}")

    def kill(self, name: str) -> None:
        """SIGKILL to a supervisor and its agents at once."""
        self.alive(name)
        member = self.members.pop(name)
        children = Path(f"/proc/{member.pid}/task/{member.pid}/children").read_text().split()
        for pid in (member.pid, *map(int, children)):
            os.kill(pid, signal.SIGSTOP)
        for pid in (member.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        member.wait()

    def close(self) -> None:
        """End whatever is left; children notice the end of their standard input."""
        for member in self.members.values():
            member.kill()
            member.wait()

    def acknowledged(self) -> dict[str, str]:
        """Job -> the level of its receipt."""
        found: dict[str, str] = {}
        for path in self.folder.glob("acknowledged-*"):
            for line in path.read_text().splitlines():
                level, _, job = line.partition(" ")
                found[job] = level
        return found

    def runs(self) -> list[Run]:
        """What handlers have noted."""
        lines = [line for path in self.folder.glob("runs-*") for line in path.read_text().splitlines()]
        return [Run(*line.split()) for line in lines]

    def runs_by(self) -> Counter[tuple[str, str]]:
        """Version and handler -> runs."""
        return Counter((run.version, run.handler) for run in self.runs())
