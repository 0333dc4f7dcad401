"""Producers on systems without POSIX: what Windows does not have is not imported, neither by the library nor on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from jobmaster.model.job import JobState
from tests.integration.client.fixture import ClientFixture
from tests.support.patience import PATIENCE_SECONDS

WITHOUT_POSIX = """
import os, signal, sys

ABSENT = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "uvloop"}

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in ABSENT:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Refuses())
for module, names in (
    (os, ("fork", "getuid", "geteuid", "getgid", "getpgid", "killpg", "setsid", "O_CLOEXEC", "O_NOFOLLOW")),
    (signal, ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD")),
):
    for name in names:
        delattr(module, name)
"""

SUBMITS = """
import asyncio
import jobmaster

handlers = jobmaster.Handlers()

@handlers.job(name="images.resize")
async def resize(path: str, width: int = 800) -> dict[str, int]: ...

for name in jobmaster.__all__:
    getattr(jobmaster, name)

async def main():
    async with jobmaster.connect(handlers=handlers) as cluster:
        print(await cluster.submit(jobmaster.call(resize, "a.png")))

asyncio.run(main())
with jobmaster.connect_sync(handlers=handlers) as cluster:
    print(cluster.submit(jobmaster.call(resize, "a.png"), durability="master"))
"""

OPENS_EMBEDDED = """
import asyncio
import jobmaster

async def main():
    await jobmaster.connect(env={})

try:
    asyncio.run(main())
except jobmaster.Unavailable as error:
    print(error)
"""


def run(code: str, folder: Path, **env: str) -> list[str]:
    """Lines that a program printed which ran without POSIX."""
    root = str(Path(__file__).parents[3])
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX + code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root}/agents", **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


async def test_a_producer_without_posix_opens_and_submits(client: ClientFixture, tmp_path: Path) -> None:
    first, second = run(
        SUBMITS,
        tmp_path,
        JOBMASTER_CLUSTER=client.settings.cluster,
        JOBMASTER_MASTER__DSN=client.dsn,
        JOBMASTER_MASTER__SCHEMA=client.settings.schema_name(),
        JOBMASTER_STORES__DEFAULT__URL=client.settings.stores["default"].url or "",
    )
    assert await client.cluster.state(first) is JobState.SAVE_PENDING
    assert await client.cluster.state(second) is JobState.ASSIGNED


def test_the_embedded_servers_are_refused_by_name_where_they_cannot_run(tmp_path: Path) -> None:
    (said,) = run(OPENS_EMBEDDED, tmp_path)
    assert said.startswith("the embedded servers do not run on this system (there is no module 'fcntl')")
    assert said.endswith("(give master.dsn, and the url of each of the stores)")
