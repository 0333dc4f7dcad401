"""An environment for each peer: a virtual environment or a node_modules directory, made once and kept.

Nothing of a peer is ever installed beside JobMaster: their dependencies would pull at ours. Sidekiq is the package of the
system, which is looked for and not installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.catalogue import PEERS, UNAVAILABLE, Peer
from benchmarks.support.report import REPOSITORY, progress

DEFAULT = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "jobmaster-benchmarks"
_ADAPTERS = REPOSITORY / "benchmarks" / "peers"
_NEWER = ("python3.12", "python3.13", "python3.14", "python3.15", "python3")
_VERSIONS = (
    "import sys, json; from importlib.metadata import version;"
    " print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
)
_GEMS = "require 'json'; puts JSON.dump(ARGV.to_h { |name| gem(name); [name, Gem.loaded_specs[name].version.to_s] })"


class Unusable(Exception):
    """A peer cannot be installed here; the message has the reason."""


class Environment:
    """Where one peer is installed, and how its adapter is called."""

    def __init__(self, peer: Peer, cache: Path) -> None:
        self.peer = peer
        self.directory = cache / peer.adapter
        self._stamp = self.directory / ".installed"

    def install(self) -> None:
        """Install it unless that was done; ``Unusable`` when it cannot be."""
        if self.peer.language == "ruby":
            self._find_gems()
            return
        wanted = json.dumps([self.peer.requirements, sys.version_info[:2]])
        if self._stamp.is_file() and self._stamp.read_text() == wanted:
            return
        progress(f"installing {self.peer.name} into {self.directory}")
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.peer.language == "node":
            self._npm()
        else:
            # The pip of this environment installs into the other one, which needs none of its own.
            self._run([interpreter(self.peer), "-m", "venv", "--clear", "--without-pip", str(self.directory)])
            pip = [sys.executable, "-m", "pip", "--python", self._python, "--quiet", "--disable-pip-version-check"]
            self._run([*pip, "install", *self.peer.requirements])
        self._stamp.write_text(wanted)

    def _npm(self) -> None:
        if shutil.which("npm") is None or shutil.which("node") is None:
            raise Unusable(f"{self.peer.name} needs Node.js with npm, and there is none on PATH")
        (self.directory / "package.json").write_text('{"private": true}')
        self._run(["npm", "install", "--no-audit", "--no-fund", "--silent", *self.peer.requirements])

    def _find_gems(self) -> None:
        if shutil.which("ruby") is None or shutil.which(self.peer.name) is None:
            raise Unusable(
                f"{self.peer.name} needs Ruby and the system's package of it (Debian: ruby-{self.peer.name})"
            )

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
        match self.peer.language:
            case "node":
                return ["node", str(_ADAPTERS / f"{self.peer.adapter}.mjs"), *arguments]
            case "ruby":
                return ["ruby", str(_ADAPTERS / f"{self.peer.adapter}.rb"), *arguments]
        return [self._python, "-m", f"benchmarks.peers.{self.peer.adapter}", *arguments]

    @property
    def cwd(self) -> Path:
        """Where the adapter is run: node looks for its modules from there."""
        return self.directory if self.peer.language == "node" else REPOSITORY

    def versions(self) -> dict[str, str]:
        """Of the required packages, and of the interpreter."""
        names = [requirement.split("[")[0] for requirement in self.peer.requirements]
        if self.peer.language == "node":
            found = {
                name: json.loads((self.directory / "node_modules" / name / "package.json").read_text())["version"]
                for name in names
            }
            return {**found, "node": _output("node", "--version")}
        if self.peer.language == "ruby":
            gems: dict[str, str] = json.loads(_output("ruby", "-e", _GEMS, *names))
            return {**gems, "ruby": _output("ruby", "-e", "puts RUBY_VERSION")}
        versions: dict[str, str] = json.loads(_output(self._python, "-c", _VERSIONS, *names))
        if self.peer.python > sys.version_info[:2]:
            versions["python"] = _output(self._python, "--version").removeprefix("Python ")
        return versions


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def interpreter(peer: Peer, candidates: Sequence[str] = _NEWER) -> str:
    """This interpreter, or for a peer that needs a newer one the first on PATH that is new enough and can be run."""
    if sys.version_info[:2] >= peer.python:
        return sys.executable
    check = f"import sys, venv; sys.exit(sys.version_info[:2] < {peer.python})"
    for name in candidates:
        # Version managers put names on PATH that end with an error.
        if shutil.which(name) and not subprocess.run([name, "-c", check], capture_output=True, check=False).returncode:
            return name
    wanted = ".".join(map(str, peer.python))
    raise Unusable(f"{peer.name} needs Python {wanted} or newer, and there is none on PATH")


def installed(names: Sequence[str], cache: Path) -> tuple[list[Environment], dict[str, str]]:
    """The environments of these peers, and why each of the others cannot be used."""
    usable, reasons = [], {}
    for name in names:
        try:
            if name in UNAVAILABLE:
                raise Unusable(UNAVAILABLE[name])
            environment = Environment(PEERS[name], cache)
            environment.install()
            usable.append(environment)
        except Unusable as error:
            reasons[name] = str(error)
            progress(str(error))
    return usable, reasons
