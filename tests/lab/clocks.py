"""Clocks of hosts: a wall clock that can be stepped, and boot clocks that differ, for all processes of a host.

A time namespace shifts CLOCK_BOOTTIME and CLOCK_MONOTONIC, never CLOCK_REALTIME. So the wall clock is shifted in each process
by a library that is loaded before all others (``host_clock.c``); the servers get it, too. The library libfaketime was not
taken: a clock that changes while programs run is for it a file, to be read again inside of ``clock_gettime``, which
PostgreSQL calls in signal handlers.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.processes.witness import TAI_AHEAD, tai_ahead_seconds

_SOURCE = Path(__file__).with_name("host_clock.c")
_LIBRARY = "host_clock.so"
_DAY_SECONDS, _BOOT_SECONDS = 86_400, 3_600


class HostClocks:
    """One wall clock for each host, and how its programs are started with it.

    Args:
        directory: of the library and of one file for each host.
    """

    def __init__(self, directory: Path, hosts: Sequence[str]) -> None:
        directory.mkdir()
        self._directory = directory
        self._hosts = list(hosts)
        self._boots = dict.fromkeys(hosts, 0)
        self._maps: dict[str, mmap.mmap] = {}
        self.unavailable = _compiled(directory / _LIBRARY)
        """The reason if wall clocks cannot be shifted here."""
        self._tai_ahead = tai_ahead_seconds()
        for host in hosts:
            path = self._file(host)
            path.write_bytes(bytes(8))
            descriptor = os.open(path, os.O_RDWR)
            self._maps[host] = mmap.mmap(descriptor, 8)
            os.close(descriptor)

    def step(self, host: str, seconds: float) -> None:
        """From now on the wall clock of the host is off by so many seconds; 0: it is right again."""
        self._maps[host][:] = struct.pack("<q", round(seconds * 1e9))

    def booted(self, host: str) -> None:
        """The host was started again: its boot clocks are others for what is started from now on."""
        self._boots[host] += 1

    def prefix(self, host: str) -> tuple[str, ...]:
        """The command to put before one that is to have the clocks of a host."""
        off = str(_DAY_SECONDS * (self._hosts.index(host) + 1) + _BOOT_SECONDS * self._boots[host])
        booted = ("unshare", "-T", "--boottime", off, "--monotonic", off)
        if self.unavailable:
            return booted
        return (*booted, "env", *self.variables(str(self._directory / _LIBRARY), str(self._file(host))))

    def variables(self, library: str, clock: str) -> tuple[str, ...]:
        """Arguments of ``env``."""
        return f"LD_PRELOAD={library}", f"LAB_CLOCK={clock}", f"{TAI_AHEAD}={self._tai_ahead}"

    def opened(self, host: str) -> tuple[int, int]:
        """Descriptors of the library and of the clock, for a program of an account that cannot reach their directory."""
        return os.open(self._directory / _LIBRARY, os.O_RDONLY), os.open(self._file(host), os.O_RDONLY)

    def _file(self, host: str) -> Path:
        return self._directory / f"{host}.clock"


def _compiled(library: Path) -> str | None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return "no C compiler (cc, gcc) for the library that shifts clocks"
    done = subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        return f"{compiler} {_SOURCE.name}: {done.stderr.strip()[:300]}"
    library.chmod(0o755)
    return None
