"""A disk that forgets what was not synced, and its power: ext4 on a loop device on a drive with a volatile cache.

Two things forget at a cut: the kernel's page cache (what no fsync and no write-back has sent to the drive) and the cache of
the drive (what no flush has sent to its image). File names, sizes and renames are ext4's own: they are in its journal, and
come back as far as its journal was written, as after a loss of power.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.chaos.cluster.machine import failure

_PROGRAM = Path(__file__).with_name("disk_program.py")
_SHUTDOWN, _WITHOUT_LOG = 0x8004587D, struct.pack("I", 2)
"""EXT4_IOC_SHUTDOWN and EXT4_GOING_FLAGS_NOLOGFLUSH: from now on the file system sends nothing to its disk."""
_FROM_START = _TO_END = ctypes.c_int64(0)
_WRITE_AND_WAIT = 2 | 4
"""SYNC_FILE_RANGE_WRITE and SYNC_FILE_RANGE_WAIT_AFTER."""
_BUSY_SECONDS = 30.0
_OPTIONS = "loop,noatime,noinit_itable"


class DiskUnavailable(Exception):
    """This machine, or this account, cannot make such a disk."""


class VolatileDisk:
    """One disk with its file system. Mounts belong to the mount namespace of the caller.

    Args:
        directory: holds the image and the mount point of the drive.
        mount: where the file system appears.
        megabytes: size; the image takes only what was written.

    Raises:
        DiskUnavailable: the reason.
    """

    def __init__(self, directory: Path, mount: Path, megabytes: int) -> None:
        self.mount = mount
        self._drive = directory / "drive"
        self._image = directory / "image"
        self._lock = threading.Lock()
        self._drive.mkdir(parents=True)
        mount.mkdir(parents=True, exist_ok=True)
        with self._image.open("wb") as file:
            file.truncate(megabytes << 20)
        _must(failure("mkfs.ext4", "-q", "-m", "0", "-b", "4096", "-E", "nodiscard", str(self._image)))
        pipe: Any = subprocess.PIPE
        self._program = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROGRAM), str(self._image), str(self._drive)],
            stdin=pipe,
            stdout=pipe,
            start_new_session=True,
        )
        try:
            _must(self._answer().get("error"))
            self._attach()
        except DiskUnavailable:
            self.close()
            raise

    def sync(self) -> None:
        """Everything that was written so far outlives a cut."""
        descriptor = os.open(self.mount, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
                raise OSError(ctypes.get_errno(), f"syncfs of {self.mount}")
        finally:
            os.close(descriptor)

    def lie(self) -> None:
        """From now on the drive answers each flush and keeps nothing: the mutant of the checker."""
        self._order(order="lie")

    def cut(self, seed: int, share: float) -> dict[str, int]:
        """The power goes: from now on every access fails, also those of processes that still run.

        Args:
            share: of the pages in the drive's cache, of those that reach the image; the others are gone. With a share, the
                kernel has just begun to write back what no program has synced.

        Returns:
            ``unsynced``: pages that were in the drive's cache; ``kept``: of these, those that reached the image.
        """
        if share:
            self._write_back()
        answer: dict[str, int] = self._order(order="cut", seed=seed, share=share)
        descriptor = os.open(self.mount, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _WITHOUT_LOG)
        finally:
            os.close(descriptor)
        return answer

    def restore(self) -> None:
        """The power is back: the file system is mounted anew, which replays its journal. No process may have a file open."""
        self._detach()
        self._order(order="on")
        self._attach()

    def syncs(self) -> int:
        """Flushes that have reached the drive so far."""
        return int(self._order(order="state")["syncs"])

    def close(self) -> None:
        """Unmount, and end the program."""
        failure("umount", "-l", str(self.mount))
        failure("umount", "-l", str(self._drive))
        with self._program:  # closes its pipes, with which it ends
            pass
        self._image.unlink(missing_ok=True)

    def _write_back(self) -> None:
        """From the page cache into the cache of the drive, without a flush."""
        libc = ctypes.CDLL(None, use_errno=True)
        for folder, _, names in os.walk(self.mount):
            for name in names:
                with contextlib.suppress(OSError):  # it is gone, or a socket
                    descriptor = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK)
                    libc.sync_file_range(descriptor, _FROM_START, _TO_END, _WRITE_AND_WAIT)
                    os.close(descriptor)

    def _detach(self) -> None:
        """A process that this one starts meanwhile holds the descriptors of this one for a moment."""
        end = time.monotonic() + _BUSY_SECONDS
        while (why := failure("umount", str(self.mount))) is not None:
            if time.monotonic() > end:
                raise DiskUnavailable(why)
            time.sleep(0.02)

    def _attach(self) -> None:
        _must(failure("mount", "-o", _OPTIONS, str(self._drive / "disk"), str(self.mount)))

    def _order(self, **order: object) -> dict[str, Any]:
        with self._lock:
            assert self._program.stdin is not None
            self._program.stdin.write(json.dumps(order).encode() + b"\n")
            self._program.stdin.flush()
            return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._program.stdout is not None
        line = self._program.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": "the program of the disk has ended"}
        return found


def _must(reason: str | None) -> None:
    if reason is not None:
        raise DiskUnavailable(reason)
