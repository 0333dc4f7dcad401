"""One server under one guardian: what PostgreSQL and Valkey have in common when they are started and stopped.

The owner may die at any instruction: the guardian then stops the server, and the next start finds either a free directory
or one that will be free in a moment.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Self

import msgspec

from jobmaster.embedded.account import Account
from jobmaster.embedded.binaries import Program
from jobmaster.embedded.directory import RunningNote, ServerDirectory, fits_socket, make_scratch, remove_scratch
from jobmaster.embedded.errors import EmbeddedError, ServerStartFailed, StopFailed
from jobmaster.embedded.identity import ProcessIdentity, identify

_GUARDIAN = Path(__file__).with_name("guardian.py")
_PROBE_SECONDS = 0.005
_PAUSE_SECONDS = 0.02
_LEFTOVER_SECONDS = 10.0
_PREDECESSOR_SECONDS = 45.0
"""Longer than the sum of every server's stop steps."""


class Launch(msgspec.Struct, frozen=True):
    """What the guardian is to run.

    Attributes:
        descriptors: inheritable handles that the server needs under the same numbers.
        stop: (signal, seconds to wait after it), gentlest first.
        address: what clients connect to once it is ready.
    """

    argv: list[str]
    account: Account | None
    descriptors: list[int]
    stop: list[tuple[int, float]]
    address: str
    cwd: str = "/"


class Server(abc.ABC):
    """A server on a private directory, alive at most as long as the process that called `start`.

    Synchronous and not thread-safe: one thread at a time. Use it as a context manager, or call `stop`.
    """

    start_seconds = 60.0

    def __init__(self, directory: ServerDirectory) -> None:
        self.directory = directory
        self._guardian: subprocess.Popen[bytes] | None = None
        self._server: ProcessIdentity | None = None
        self._scratch: Path | None = None
        self._address = ""
        self._log_start = 0

    @property
    @abc.abstractmethod
    def program(self) -> Program:
        """The program that was chosen; known after `start`."""

    @property
    def address(self) -> str:
        """What clients connect to: a DSN or URL over the unix socket.

        Raises:
            EmbeddedError: the server was not started.
        """
        if not self._address:
            raise EmbeddedError(f"the server on {self.directory.path} was not started", hint="call start() first")
        return self._address

    @property
    def pid(self) -> int | None:
        """Process id of the server itself (PostgreSQL: the postmaster) while it runs."""
        return self._server.pid if self._server is not None and self.is_running() else None

    def is_running(self) -> bool:
        return self._guardian is not None and self._guardian.poll() is None

    def start(self) -> Self:
        """Start and wait until the server answers. Does nothing when it runs already.

        Raises:
            BinariesMissing, DirectoryInUse, DirectoryUnusable, AccountUnusable, PortTaken, StartFailed.
        """
        if not self.is_running():
            self.spawn()
            self.wait_ready()
        return self

    def spawn(self) -> None:
        """The first half of `start`: take the directory and start the process, without waiting for an answer."""
        self._forget()
        self.directory.prepare()
        lock = self.directory.lock(_PREDECESSOR_SECONDS)
        launch: Launch | None = None
        try:
            self._end_leftover()
            self.directory.clear_note()
            launch = self._launch()
            self._log_start = self.directory.log_size()
            self._run_guardian(launch, lock)
        except OSError as error:
            self._discard_scratch()
            raise self.directory.unusable(error) from error
        except BaseException:
            self._discard_scratch()
            raise
        finally:
            # From here on the guardian alone holds the lock: it is free exactly when no server can be alive.
            for descriptor in (lock, *(launch.descriptors if launch is not None else ())):
                os.close(descriptor)

    def wait_ready(self) -> None:
        """The second half of `start`.

        Raises:
            StartFailed: the server ended, or did not answer within `start_seconds`; it has been stopped.
        """
        guardian = self._guardian
        if guardian is None:
            raise EmbeddedError(f"the server on {self.directory.path} was not spawned", hint="call spawn() first")
        for _ in range(round(self.start_seconds / _PROBE_SECONDS)):
            if self._is_ready():
                return
            try:
                guardian.wait(_PROBE_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            raise self._failed("ended while it was starting")
        raise self._failed(f"did not answer within {self.start_seconds:g} s")

    def stop(self) -> None:
        """Stop the server and wait until it is gone. Does nothing when it does not run."""
        guardian = self._guardian
        if guardian is None:
            return
        if guardian.stdin is not None:
            guardian.stdin.close()
        try:
            guardian.wait(_PREDECESSOR_SECONDS)
        except subprocess.TimeoutExpired:
            raise StopFailed(
                f"the server on {self.directory.path} (process {self._server and self._server.pid}) does not end",
                hint="look at its log, then kill it by its process id",
            ) from None
        self._forget()
        self.directory.clear_note()

    def kill(self) -> None:
        """SIGKILL the server, as a crash would, and wait until its guardian has noticed. `start` brings it back."""
        guardian, server = self._guardian, self._server
        if guardian is None or server is None:
            raise EmbeddedError(f"the server on {self.directory.path} is not running", hint="call start() first")
        if server.is_alive():
            os.kill(server.pid, signal.SIGKILL)
        guardian.wait(_PREDECESSOR_SECONDS)
        self._forget()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abc.abstractmethod
    def _launch(self) -> Launch:
        """Choose the program, create the data if there is none, and return what to run. Called under the lock."""

    @abc.abstractmethod
    def _is_ready(self) -> bool:
        """Whether the server answers now; must not block."""

    def _scratch_directory(self) -> Path:
        if self._scratch is None:
            self._scratch = make_scratch()
        return self._scratch

    def _client_directory(self, directory: Path, socket_name: str) -> Path:
        """A path to ``directory`` by which clients can reach a socket in it: itself, or a short symbolic link to it.

        Servers bind relative to their own directory, so only the clients' path has to fit into ``sun_path``.
        """
        if fits_socket(directory, socket_name):
            return directory
        link = self._scratch_directory() / "s"
        link.symlink_to(directory)
        return link

    def _run_guardian(self, launch: Launch, lock: int) -> None:
        account = launch.account
        job = {
            "argv": launch.argv,
            "uid": account.uid if account else None,
            "gid": account.gid if account else None,
            "env": server_environment(),
            "cwd": launch.cwd,
            "log": str(self.directory.log),
            "fds": launch.descriptors,
            "owner_pid": os.getpid(),
            "stop": launch.stop,
            "scratch": str(self._scratch) if self._scratch else None,
        }
        # Closing the pipe stops the server, so no other process may hold it: subprocess opens it close-on-exec. A
        # session of its own keeps the terminal's Ctrl-C away: the owner decides when its servers stop.
        guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARDIAN), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            pass_fds=[lock, *launch.descriptors],
            start_new_session=True,
        )
        assert guardian.stdout is not None
        with guardian.stdout:
            reply = guardian.stdout.readline()
        answer: dict[str, Any] = json.loads(reply) if reply else {"error": "its guardian process did not start"}
        if "error" in answer:
            _end_guardian(guardian)
            raise ServerStartFailed(
                f"{self.program} cannot be started on {self.directory.path}: {answer['error']}",
                hint=f"as {account.name}" if account else None,
            )
        self._guardian, self._address = guardian, launch.address
        self._server = identify(answer["pid"])
        watcher = identify(guardian.pid)
        if self._server is None or watcher is None:
            return  # it ended already; `wait_ready` reports why
        scratch = str(self._scratch) if self._scratch else None
        self.directory.write_note(RunningNote(self._server, watcher, self._address, str(self.program), scratch))

    def _end_leftover(self) -> None:
        """A server whose guardian was killed: the kernel signals it to stop on Linux; elsewhere nothing does."""
        note = self.directory.note()
        if note is None:
            return
        for step in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if note.server.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(note.server.pid, step)
            if wait_gone([note.server], _LEFTOVER_SECONDS):
                return

    def _failed(self, what: str) -> ServerStartFailed:
        if self._guardian is not None:
            _end_guardian(self._guardian)
        tail = self.directory.log_tail(self._log_start)
        self._forget()
        self.directory.clear_note()
        return ServerStartFailed(
            f"{self.program} on {self.directory.path} {what}; the end of its log:\n{tail}",
            hint=f"the whole log is {self.directory.log}",
        )

    def _forget(self) -> None:
        if self._guardian is not None:
            _end_guardian(self._guardian)
        self._guardian = self._server = None
        self._scratch = None
        self._address = ""

    def _discard_scratch(self) -> None:
        if self._scratch is not None:
            remove_scratch(self._scratch)
            self._scratch = None


def wait_gone(processes: Sequence[ProcessIdentity], seconds: float) -> bool:
    """Whether all of the processes ended within the time."""
    for _ in range(max(1, round(seconds / _PAUSE_SECONDS))):
        if not any(process.is_alive() for process in processes):
            return True
        Event().wait(_PAUSE_SECONDS)
    return False


def server_environment() -> dict[str, str]:
    """The environment of every server program: no variable of this process, messages in English, times in UTC."""
    return {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}


def _end_guardian(guardian: subprocess.Popen[bytes]) -> None:
    """Have a guardian stop its server, and collect it."""
    if guardian.stdin is not None and not guardian.stdin.closed:
        guardian.stdin.close()
    guardian.wait()
