"""PgBouncer in front of a PostgreSQL: a real pooler, found on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from jobmaster.embedded.account import server_account
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import free_port

_SEARCHED = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"))


def find_pgbouncer() -> str | None:
    """Path of the program; ``None`` when this machine has none. No wheel brings it."""
    return shutil.which("pgbouncer", path=_SEARCHED)


class PgBouncer:
    """A pooler on a free port of 127.0.0.1.

    Args:
        program: path of ``pgbouncer``.
        dsn: of the PostgreSQL behind it, with host, port and password.
        mode: ``transaction``, ``session`` or ``statement``.
        size: server connections that all clients share.
        options: further lines of its section ``[pgbouncer]``.
    """

    def __init__(self, program: str, dsn: str, *, mode: str = "transaction", size: int = 2, options: str = "") -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="jobmaster-pgbouncer-"))
        self._port = free_port()
        behind = urlsplit(dsn)
        config = self._directory / "pgbouncer.ini"
        config.write_text(
            f"""[databases]
* = host={behind.hostname} port={behind.port} user={behind.username} password={behind.password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self._port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 100
server_login_retry = 1
{options}
""",
            encoding="utf-8",
        )
        account = server_account(self._directory / "none") if os.getuid() == 0 else None
        if account is not None:  # PgBouncer refuses root
            for path in (self._directory, config):
                os.chown(path, account.uid, account.gid)
        self.dsn = f"postgresql://producer@127.0.0.1:{self._port}{behind.path}"
        """Of the pooler, for the same database."""
        self._argv = [program, str(config)]
        self._account = account
        self.start()

    def start(self) -> None:
        """Start it, also after ``kill``; it accepts connections when this returns."""
        account = self._account
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                stdout=log,
                stderr=log,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                cwd=self._directory,
            )
        self._wait()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait(10)

    def _wait(self) -> None:
        ends = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < ends and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError((self._directory / "log").read_text(encoding="utf-8", errors="replace"))

    def close(self) -> None:
        """End it and remove its files."""
        self._process.send_signal(signal.SIGTERM)  # in PgBouncer: at once
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        shutil.rmtree(self._directory)
