"""The private directory of one server: its lock, its note about what runs, its log, and a path short enough for sockets.

The lock is an flock that the server's guardian inherits, so it is held exactly as long as a server may be alive, whatever
became of the process that started it. The lock file names the owner; the note (`running.json`) names the server.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from threading import Event

import msgspec

from jobmaster.embedded.errors import DirectoryInUse, DirectoryUnusable
from jobmaster.embedded.identity import ProcessIdentity, identify

SOCKET_PATH_BYTES_MAX = 107 if sys.platform.startswith("linux") else 103
"""Longest path of a unix socket: ``sun_path`` less its closing NUL."""

SCRATCH_PREFIX = "jobmaster-"
_PAUSE_SECONDS = 0.05
_OWNER_SECONDS = 0.5
_LOG_BYTES_MAX = 10 * 1024 * 1024
_TAIL_LINES = 12


class RunningNote(msgspec.Struct, frozen=True):
    """What runs on the directory. ``address`` is what clients connect to; ``program`` is for messages."""

    server: ProcessIdentity
    guardian: ProcessIdentity
    address: str
    program: str
    scratch: str | None


class ServerDirectory:
    """``path`` is created as 0700; ``data`` inside it belongs to the server's account."""

    def __init__(self, path: Path, log_name: str) -> None:
        self.path = Path(os.path.abspath(path))
        self.data = self.path / "data"
        self.log = self.path / log_name
        self._lock_file = self.path / "lock"
        self._note_file = self.path / "running.json"

    def prepare(self) -> None:
        """Create what is missing, and close the directory to others.

        Raises:
            DirectoryUnusable: it cannot be created or written, or belongs to another user.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = self.path.stat().st_uid
            if owner != os.geteuid():
                raise DirectoryUnusable(
                    f"the data directory {self.path} belongs to uid {owner}, not to this process's uid {os.geteuid()}",
                    hint="run as its owner, or choose another directory",
                )
            # Local connections need no password because no other user can enter this directory: make sure of it.
            self.path.chmod(0o700)
            if self.log.exists() and self.log.stat().st_size > _LOG_BYTES_MAX:
                self.log.replace(self.log.with_suffix(".log.1"))
            with self.log.open("ab"):
                pass
        except OSError as error:
            raise self.unusable(error) from error

    def unusable(self, error: OSError) -> DirectoryUnusable:
        return DirectoryUnusable(
            f"the data directory {self.path} cannot be written: {error.strerror or error}",
            hint="choose a directory that this user may write, on a disk that has room",
        )

    def lock(self, wait_seconds: float) -> int:
        """Take the directory; returns the open descriptor that holds the lock.

        Waits up to ``wait_seconds`` for a guardian that is stopping its server after its owner died, and half a second
        for an owner that lives: it may be ending at this moment, and a SIGKILL takes time to arrive.

        Raises:
            DirectoryInUse: a live process owns it, or a dead one's server does not end.
        """
        held = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            patience = round(_OWNER_SECONDS / _PAUSE_SECONDS)
            for _ in range(round(wait_seconds / _PAUSE_SECONDS)):
                if self._try_lock(held):
                    me = identify(os.getpid())
                    os.ftruncate(held, 0)
                    os.pwrite(held, msgspec.json.encode(me), 0)
                    return held
                owner = self.owner()
                if owner is not None and owner.is_alive():
                    patience -= 1
                if patience <= 0:
                    break
                Event().wait(_PAUSE_SECONDS)
            owner = self.owner()
            pid = owner.pid if owner is not None else 0
            raise DirectoryInUse(
                f"the directory {self.path} is in use by process {pid}",
                owner_pid=pid,
                hint="stop that process first, or choose another directory",
            )
        except BaseException:
            os.close(held)
            raise

    def owner(self) -> ProcessIdentity | None:
        """The process that took the lock last; the lock may be free by now."""
        try:
            return msgspec.json.decode(self._lock_file.read_bytes(), type=ProcessIdentity)
        except (OSError, msgspec.DecodeError):
            return None

    def note(self) -> RunningNote | None:
        """The note about what runs here; the reader checks that it is alive."""
        try:
            return msgspec.json.decode(self._note_file.read_bytes(), type=RunningNote)
        except (OSError, msgspec.DecodeError):
            return None

    def write_note(self, note: RunningNote) -> None:
        fresh = self._note_file.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_bytes(msgspec.json.encode(note))
        fresh.replace(self._note_file)

    def clear_note(self) -> None:
        """Forget what ran, and remove the scratch directory that a killed guardian may have left."""
        note = self.note()
        if note is not None and note.scratch is not None:
            remove_scratch(Path(note.scratch))
        with contextlib.suppress(FileNotFoundError):
            self._note_file.unlink()

    def log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def log_tail(self, start: int = 0) -> str:
        """The last lines of the log that were written from byte ``start`` on."""
        with self.log.open("rb") as log:
            log.seek(start)
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:]) or "(its log is empty)"

    def _try_lock(self, held: int) -> bool:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise self.unusable(error) from error
        return True


def fits_socket(directory: Path, socket_name: str) -> bool:
    return len(os.fsencode(directory / socket_name)) <= SOCKET_PATH_BYTES_MAX


def make_scratch() -> Path:
    """A fresh private directory with a short path, removed when the server ends."""
    for place in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):  # noqa: S108 - mkdtemp makes it private
        if fits_socket(Path(place), f"{SCRATCH_PREFIX}12345678/s/.s.PGSQL.65535"):
            with contextlib.suppress(OSError):
                return Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=place))
    raise DirectoryUnusable(
        f"no temporary directory with a path short enough for sockets ({SOCKET_PATH_BYTES_MAX} bytes) can be written",
        hint="set TMPDIR to a short path that this user may write",
    )


def remove_scratch(path: Path) -> None:
    """Only what `make_scratch` made for this user is removed; anything else that a note names is left alone."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if ours and path.name.startswith(SCRATCH_PREFIX):
            shutil.rmtree(path, ignore_errors=True)
