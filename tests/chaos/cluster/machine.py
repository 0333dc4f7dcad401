"""Facilities of the machine for faults: small file systems, the cgroup freezer, time namespaces.

Each is tried once. What does not work returns a reason, which a run prints beside the fault.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_FREEZER = Path("/sys/fs/cgroup/freezer")
_BLOCK = 1024
_UNIFIED = Path("/sys/fs/cgroup")


def private_mounts() -> str | None:
    """Mounts made from now on belong to this process and its children alone, and go with them. The reason if not."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        return f"no mount namespace of our own: {os.strerror(ctypes.get_errno())}"
    return failure("mount", "--make-rprivate", "/")


def failure(*command: str) -> str | None:
    """Run a program of the system; the reason if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{command[0]}: {error}"
    return None if done.returncode == 0 else f"{command[0]}: {(done.stderr or done.stdout).strip()[:200]}"


class Disk:
    """An ext4 file system in a file, which can be filled, slowed and stopped."""

    def __init__(self, image: Path, mount: Path, megabytes: int) -> None:
        self.mount = mount
        self._image = image
        self._megabytes = megabytes
        self._script: subprocess.Popen[bytes] | None = None

    def make(self) -> str | None:
        """Make and mount it; the reason if that is not possible here."""
        self.mount.mkdir(parents=True)
        with self._image.open("wb") as file:
            file.truncate(self._megabytes << 20)
        return failure("mkfs.ext4", "-q", "-m", "0", str(self._image)) or failure(
            "mount", "-o", "loop", str(self._image), str(self.mount)
        )

    def stall(self, seconds: float) -> None:
        """No write and no fsync ends for so long. A script unfreezes it, also if this process dies."""
        self._run(f"fsfreeze -f {self.mount}; sleep {seconds:.2f}; fsfreeze -u {self.mount}")

    def slow(self, seconds: float) -> None:
        """Every fsync takes up to 0.3 s, for so long."""
        rounds = max(int(seconds / 0.4), 1)
        one = f"fsfreeze -f {self.mount}; sleep 0.3; fsfreeze -u {self.mount}; sleep 0.1"
        self._run(f"for i in $(seq {rounds}); do {one}; done")

    def wait(self) -> None:
        """Wait until it is not frozen."""
        if self._script is not None:
            self._script.wait()
            self._script = None

    def fill(self) -> None:
        """Take every free byte."""
        ballast = os.open(self.mount / "ballast", os.O_WRONLY | os.O_CREAT)
        try:
            # Blocks are taken, not written: gigabytes of zeros would stall the machine's own disk.
            taken, size = 0, 1 << 28
            while size >= _BLOCK:
                try:
                    os.posix_fallocate(ballast, taken, size)
                    taken += size
                except OSError:
                    size //= 4
        finally:
            os.close(ballast)

    def empty(self) -> None:
        """Remove the ballast."""
        (self.mount / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount."""
        self.wait()
        failure("umount", "-l", str(self.mount))

    def _run(self, text: str) -> None:
        self.wait()
        self._script = subprocess.Popen(["sh", "-c", text], start_new_session=True)


class Freezer:
    """A control group in which processes can be stopped without a signal, together with all they start."""

    def __init__(self, name: str) -> None:
        old = _FREEZER.is_dir()
        self._group = (_FREEZER if old else _UNIFIED) / name
        self._state = self._group / ("freezer.state" if old else "cgroup.freeze")
        self._words = ("FROZEN", "THAWED") if old else ("1", "0")

    def make(self) -> str | None:
        """Make the group; the reason if that is not possible here."""
        try:
            self._group.mkdir()
            if not self._state.exists():
                self._group.rmdir()
                return "the control groups of this machine have no freezer"
        except OSError as error:
            return f"no control group of our own: {error}"
        return None

    def add(self, pids: list[int]) -> None:
        for pid in pids:
            try:
                (self._group / "cgroup.procs").write_text(str(pid))
            except OSError:
                continue  # it ended

    def freeze(self) -> None:
        self._state.write_text(self._words[0])

    def unfreeze(self) -> None:
        self._state.write_text(self._words[1])

    def release(self) -> None:
        """Unfreeze, and put every process back into the parent group."""
        self.unfreeze()
        for pid in (self._group / "cgroup.procs").read_text().split():
            try:
                (self._group.parent / "cgroup.procs").write_text(pid)
            except OSError:
                continue

    def close(self) -> None:
        """Remove the group; its processes must have ended or left."""
        try:
            self.release()
            for _ in range(50):
                if not (self._group / "cgroup.procs").read_text():
                    break
                time.sleep(0.1)
            self._group.rmdir()
        except OSError:
            return


def time_namespaces() -> str | None:
    """The reason if processes cannot be given a shifted CLOCK_BOOTTIME here."""
    return failure("unshare", "-T", "--boottime", "3600", "true")
