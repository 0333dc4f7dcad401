"""An environment for each peer: a virtual environment or a node_modules directory, made once and kept.

Nothing of a peer is ever installed beside JobMaster: their dependencies would pull at ours.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.peers.catalogue import Peer
from benchmarks.support.report import REPOSITORY, progress

DEFAULT = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "jobmaster-benchmarks"


_VERSIONS = (
    "import sys, json; from importlib.metadata import version;"
    " print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
)


class Unusable(Exception):
    """A peer cannot be installed here; the message has the reason."""


class Environment:
    """Where one peer is installed, and how its adapter is called."""

    def __init__(self, peer: Peer, cache: Path) -> None:
        self.peer = peer
        self.directory = cache / peer.name
        self._stamp = self.directory / ".installed"

    def install(self) -> None:
        """Install it unless that was done; ``Unusable`` when it cannot be."""
        wanted = json.dumps([self.peer.requirements, sys.version_info[:2]])
        if self._stamp.is_file() and self._stamp.read_text() == wanted:
            return
        progress(f"installing {self.peer.name} into {self.directory}")
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.peer.node:
            self._npm()
        else:
            # The pip of this environment installs into the other one, which needs none of its own.
            venv.create(self.directory, clear=True, with_pip=False)
            pip = [sys.executable, "-m", "pip", "--python", self._python, "--quiet", "--disable-pip-version-check"]
            self._run([*pip, "install", *self.peer.requirements])
        self._stamp.write_text(wanted)

    def _npm(self) -> None:
        if shutil.which("npm") is None or shutil.which("node") is None:
            raise Unusable(f"{self.peer.name} needs Node.js with npm, and there is none on PATH")
        (self.directory / "package.json").write_text('{"private": true}')
        self._run(["npm", "install", "--no-audit", "--no-fund", "--silent", *self.peer.requirements])

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
            raise Unusable(f"{self.peer.name} cannot be installed (is the package registry reachable?): {last[0]}")

    @property
    def _python(self) -> str:
        return str(self.directory / "bin" / "python")

    def command(self, *arguments: str) -> list[str]:
        """The adapter's command line."""
        if self.peer.node:
            return ["node", str(REPOSITORY / "benchmarks" / "peers" / f"{self.peer.name}.mjs"), *arguments]
        return [self._python, "-m", f"benchmarks.peers.{self.peer.name}", *arguments]

    @property
    def cwd(self) -> Path:
        """Where the adapter is run: node looks for its modules from there."""
        return self.directory if self.peer.node else REPOSITORY

    def versions(self) -> dict[str, str]:
        """Of the required packages, and of the interpreter."""
        names = [requirement.split("[")[0] for requirement in self.peer.requirements]
        if self.peer.node:
            found = {
                name: json.loads((self.directory / "node_modules" / name / "package.json").read_text())["version"]
                for name in names
            }
            node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
            return {**found, "node": node}
        done = subprocess.run([self._python, "-c", _VERSIONS, *names], capture_output=True, text=True, check=True)
        versions: dict[str, str] = json.loads(done.stdout)
        return versions
