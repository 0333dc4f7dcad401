"""A Valkey or Redis server on a private directory: append-only file on, no snapshots, no eviction."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from jobmaster.embedded.binaries import BinaryOrigin, Program, find_valkey
from jobmaster.embedded.directory import ServerDirectory
from jobmaster.embedded.errors import EmbeddedError
from jobmaster.embedded.postgres import refuse_taken_port
from jobmaster.embedded.server import Launch, Server

_SOCKET_NAME = "valkey.sock"
_STOP = [(int(signal.SIGTERM), 20.0), (int(signal.SIGKILL), 5.0)]
_PROBE_SECONDS = 0.5

_SETTINGS = {
    "unixsocket": _SOCKET_NAME,
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": '""',
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
    "logfile": '""',
    "bind": "127.0.0.1",
}


class ValkeyServer(Server):
    """Valkey >= 7.2 or Redis >= 7.0.

    Args:
        path: the server's own directory; made 0700.
        origin: restricts where the program is taken from; ``None`` is the normal search.
        port: also listen on 127.0.0.1 there; both ways in then need a password.
        settings: further server settings as in its configuration file; they win over ours.
    """

    def __init__(
        self,
        path: Path,
        *,
        origin: BinaryOrigin | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(ServerDirectory(path, "valkey.log"))
        self._origin = origin
        self._port = port
        self._settings = dict(settings or {})
        self._program: Program | None = None
        self._socket = Path()
        self._password = ""

    @property
    def program(self) -> Program:
        if self._program is None:
            raise EmbeddedError("the Valkey program was not chosen yet", hint="call start() first")
        return self._program

    @property
    def url(self) -> str:
        """``unix://`` URL for redis-py; the same as ``address``."""
        return self.address

    @property
    def tcp_url(self) -> str:
        """With host, port and password.

        Raises:
            EmbeddedError: no port was requested.
        """
        if self._port is None:
            raise EmbeddedError("this Valkey listens on no TCP port", hint="give one with port=")
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    def _launch(self) -> Launch:
        if self._port is not None:
            refuse_taken_port(self._port)
        self._program = find_valkey(self._origin)
        self.directory.data.mkdir(mode=0o700, exist_ok=True)
        self._socket = self._client_directory(self.directory.data, _SOCKET_NAME) / _SOCKET_NAME
        # A password on TCP only is not to be had: it belongs to the default user, whichever way he comes in.
        self._password = secrets.token_urlsafe(24) if self._port is not None else ""
        settings = {**_SETTINGS, "port": str(self._port or 0)}
        if self._password:
            settings["requirepass"] = self._password
        settings |= self._settings
        # A file, not arguments: everybody on the machine can read a process's arguments.
        configuration = self.directory.path / "valkey.conf"
        configuration.touch(mode=0o600)
        configuration.write_text("".join(f"{name} {value}\n" for name, value in settings.items()), encoding="utf-8")
        login = f":{self._password}@" if self._password else ""
        return Launch(
            argv=[str(self._program.path), str(configuration)],
            account=None,
            descriptors=[],
            stop=_STOP,
            address=f"unix://{login}{quote(str(self._socket), safe='/')}",
            cwd=str(self.directory.data),
        )

    def _is_ready(self) -> bool:
        """It is ready when a PING is answered by PONG, or by the demand for a password; LOADING means not yet."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.settimeout(_PROBE_SECONDS)
            probe.connect(str(self._socket))
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False
