"""Messages to the service manager (systemd) over the socket that it names in ``NOTIFY_SOCKET``: the protocol of sd_notify(3).

* ``READY=1`` after the first agent has opened its buckets, and again after each reload.
* ``RELOADING=1`` at SIGHUP, with the monotonic time that ``Type=notify-reload`` asks for.
* ``STOPPING=1`` at the first signal to stop.
* ``WATCHDOG=1`` three times in each ``WatchdogSec=``, by the loop of the supervisor, and only while no agent is overdue. An
  agent is overdue when its lease is nearly over and was not renewed; renewals need an event loop and tasks that make
  progress. The supervisor kills such an agent itself. The messages stop when that has no effect, or when the supervisor
  stands still; the service manager then ends them all and starts the service anew.

Without ``NOTIFY_SOCKET`` nothing is sent. A message that cannot be sent is dropped: a supervisor must not wait for it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

_PINGS_IN_A_WATCHDOG_TIME = 3
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class ServiceManager:
    """The service manager of this process, or none.

    Args:
        address: of its socket, as ``NOTIFY_SOCKET`` has it (``@`` in front: an abstract name); empty: there is none.
        watchdog_seconds: time without ``WATCHDOG=1`` after which it ends the service; 0: it has no watchdog.
    """

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._ping_seconds = watchdog_seconds / _PINGS_IN_A_WATCHDOG_TIME
        self._next_ping_at = 0.0
        self._ready = False
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> ServiceManager:
        """The manager that started this process. Its variables are removed, because handlers and their programs inherit the
        environment and must not report for the service."""
        address, watchdog_us, watchdog_pid = (environment.pop(name, "") for name in _VARIABLES)
        for_us = watchdog_us.isdecimal() and watchdog_pid in ("", str(os.getpid()))
        return cls(address, int(watchdog_us) / 1e6 if for_us else 0.0)

    def serving(self, agents: int, of: int) -> None:
        """Tell it once that the service is ready, when the first of its agents serves."""
        if not self._ready and agents:
            self._ready = True
            self._send("READY=1", f"STATUS={agents} of {of} agents serve")

    def reloading(self, monotonic_us: int) -> None:
        """Tell it that the configuration is read again."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={monotonic_us}", "STATUS=The configuration is read again")

    def reloaded(self, result: str) -> None:
        """Tell it that the reload is over; a service that was not ready before stays so."""
        self._send(*(["READY=1"] if self._ready else []), f"STATUS={result}")

    def stopping(self) -> None:
        """Tell it that the agents have been asked to leave."""
        self._send("STOPPING=1", "STATUS=The agents complete their jobs")

    def next_at(self) -> float:
        """Time of the next message of the watchdog, on the caller's clock; infinite without a watchdog."""
        return self._next_ping_at if self._pings else float("inf")

    def turn(self, now: float, progress: bool) -> None:
        """Send the message of the watchdog when it is due and the agents make progress."""
        if self._pings and now >= self._next_ping_at:
            self._next_ping_at = now + self._ping_seconds
            if progress:
                self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def _pings(self) -> bool:
        return self._socket is not None and self._ping_seconds > 0

    def _send(self, *lines: str) -> None:
        if self._socket is not None:
            try:
                self._socket.sendto("\n".join(lines).encode(), self._address)
            except OSError:
                pass  # it is gone, or reads too slowly
