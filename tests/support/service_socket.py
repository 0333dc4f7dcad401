"""The socket on which systemd hears from a service, in its place."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import TracebackType

from tests.support.patience import PATIENCE_SECONDS


class ServiceSocket:
    """A datagram socket at ``path`` that reads messages of sd_notify(3)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def __enter__(self) -> ServiceSocket:
        self._socket.bind(str(self._path))
        self._socket.settimeout(PATIENCE_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def environment(self, watchdog_seconds: float) -> dict[str, str]:
        """What systemd puts into the environment of a service with ``Type=notify`` and ``WatchdogSec=``."""
        return {"NOTIFY_SOCKET": str(self._path), "WATCHDOG_USEC": str(int(watchdog_seconds * 1e6))}

    def until_any(self) -> list[str]:
        """Lines of the next message."""
        return self._socket.recv(65536).decode().splitlines()

    def until(self, wanted: str) -> dict[str, str]:
        """Variables of the next message with the line ``wanted``; others are dropped."""
        while wanted not in (lines := self.until_any()):
            pass
        return dict(line.split("=", 1) for line in lines)

    def drain(self) -> int:
        """Drop what has come; the number of messages."""
        count = 0
        self._socket.setblocking(False)
        try:
            while True:
                self.until_any()
                count += 1
        except BlockingIOError:
            return count
        finally:
            self._socket.settimeout(PATIENCE_SECONDS)

    def quiet_for(self, seconds: float) -> bool:
        """True when no message comes in this time."""
        time.sleep(seconds)
        return self.drain() == 0
