"""PostgreSQL and Valkey together in one data directory: what `jobmaster dev`, the demo and the tests run on."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from jobmaster.embedded.binaries import BinaryOrigin
from jobmaster.embedded.directory import ServerDirectory
from jobmaster.embedded.errors import StopFailed
from jobmaster.embedded.identity import ProcessIdentity
from jobmaster.embedded.postgres import PostgresServer
from jobmaster.embedded.server import Server, wait_gone
from jobmaster.embedded.valkey import ValkeyServer

_POSTGRES_FOLDER, _VALKEY_FOLDER = "postgres", "valkey"


class EmbeddedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes:
    origin: take programs only from the wheels, or only from the system; ``None`` is the normal search.
    durable: ``False`` turns PostgreSQL's fsync off; for tests and throw-away demos only.
    postgres_port, valkey_port: also listen on 127.0.0.1, with a password.
    postgres_settings, valkey_settings: further settings of the servers; they win over ours.
    """

    origin: BinaryOrigin | None = None
    durable: bool = True
    postgres_port: int | None = None
    valkey_port: int | None = None
    postgres_settings: dict[str, str] = {}
    valkey_settings: dict[str, str] = {}


class ServerStatus(msgspec.Struct, frozen=True):
    """One server as seen from any process. ``address`` and ``program`` are empty when it does not run."""

    name: str
    running: bool
    pid: int | None
    address: str
    program: str
    log: Path


class ClusterStatus(msgspec.Struct, frozen=True):
    """``owner_pid`` is the process that started the servers, while it lives."""

    directory: Path
    owner_pid: int | None
    postgres: ServerStatus
    valkey: ServerStatus

    @property
    def running(self) -> bool:
        return self.postgres.running and self.valkey.running


class EmbeddedCluster:
    """Both servers, alive at most as long as this process; the data stays in ``directory``.

    Use it as a context manager, or call `stop` in a ``finally``. Should neither happen, not even by SIGKILL, the servers
    stop by themselves. Synchronous; from async code call it in a worker thread.
    """

    def __init__(self, directory: Path | str, options: EmbeddedOptions | None = None) -> None:
        self.directory = Path(os.path.abspath(directory))
        chosen = options or EmbeddedOptions()
        self.postgres = PostgresServer(
            self.directory / _POSTGRES_FOLDER,
            origin=chosen.origin,
            durable=chosen.durable,
            port=chosen.postgres_port,
            settings=chosen.postgres_settings,
        )
        self.valkey = ValkeyServer(
            self.directory / _VALKEY_FOLDER,
            origin=chosen.origin,
            port=chosen.valkey_port,
            settings=chosen.valkey_settings,
        )

    @property
    def dsn(self) -> str:
        """DSN of the master database."""
        return self.postgres.dsn

    @property
    def url(self) -> str:
        """URL of the agent store."""
        return self.valkey.url

    def start(self) -> Self:
        """Start both and wait until both answer; after a failure neither runs.

        Raises:
            EmbeddedError: one of its subclasses, with a sentence and a hint.
        """
        servers: tuple[Server, ...] = (self.postgres, self.valkey)
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self.postgres.directory.unusable(error) from error
        try:
            for server in servers:
                if not server.is_running():
                    server.spawn()
            for server in servers:
                server.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop both and wait until they are gone."""
        try:
            self.valkey.stop()
        finally:
            self.postgres.stop()

    def status(self) -> ClusterStatus:
        return read_status(self.directory)

    def describe(self) -> list[str]:
        """One line per server with its program, and the addresses of the servers."""
        lines = [f"{server.program} at {server.address}" for server in (self.postgres, self.valkey)]
        return [*lines, f"data and logs in {self.directory}"]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def read_status(directory: Path | str) -> ClusterStatus:
    """What runs on a directory, as seen from any process that may read it; nothing is started or created."""
    root = Path(os.path.abspath(directory))
    postgres, valkey = _server_directories(root)
    owner = _owner(root)
    return ClusterStatus(
        directory=root,
        owner_pid=owner.pid if owner is not None else None,
        postgres=_server_status("PostgreSQL", postgres),
        valkey=_server_status("Valkey", valkey),
    )


def stop_owner(directory: Path | str, timeout_seconds: float = 60.0) -> bool:
    """Send SIGTERM to the process that runs the servers of a directory, and wait until its servers are gone.

    Returns:
        Whether anything was running.

    Raises:
        StopFailed: it did not end in time, or may not be signalled by this user.
    """
    root = Path(os.path.abspath(directory))
    notes = [note for server_directory in _server_directories(root) if (note := server_directory.note()) is not None]
    alive = [process for note in notes for process in (note.server, note.guardian) if process.is_alive()]
    if not alive:
        return False
    owner = _owner(root)
    # An owner that was killed leaves guardians that are stopping already; a second signal does no harm.
    signalled = [owner] if owner is not None else [note.guardian for note in notes]
    try:
        for process in signalled:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
    except PermissionError as error:
        raise StopFailed(
            f"process {signalled[0].pid}, which runs the servers of {root}, belongs to another user",
            hint="stop it as that user",
        ) from error
    if not wait_gone(alive, timeout_seconds):
        raise StopFailed(
            f"process {signalled[0].pid}, which runs the servers of {root}, did not end within {timeout_seconds:g} s",
            hint=f"see what it does, or end it with: kill -9 {signalled[0].pid}",
        )
    return True


def _server_directories(root: Path) -> tuple[ServerDirectory, ServerDirectory]:
    return (
        ServerDirectory(root / _POSTGRES_FOLDER, "postgres.log"),
        ServerDirectory(root / _VALKEY_FOLDER, "valkey.log"),
    )


def _owner(root: Path) -> ProcessIdentity | None:
    """The process whose servers run on the directory; its lock file outlives it, so a server must run too."""
    for server_directory in _server_directories(root):
        note, owner = server_directory.note(), server_directory.owner()
        if note is not None and note.guardian.is_alive() and owner is not None and owner.is_alive():
            return owner
    return None


def _server_status(name: str, server_directory: ServerDirectory) -> ServerStatus:
    note = server_directory.note()
    if note is None or not note.server.is_alive():
        return ServerStatus(name, False, None, "", "", server_directory.log)
    return ServerStatus(name, True, note.server.pid, note.address, note.program, server_directory.log)
