"""The child's end of the control pipe. A thread of its own reads it, so that a stalled event loop cannot miss its end.

When the pipe ends, the supervisor is dead: nothing enforces the lease deadline from outside any more. The event loop is asked
to fence and exit; a process that still runs ``ORPHAN_SECONDS`` later is killed with its whole process group.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable

from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.launch.launch_order import ControlMessage

ORPHAN_SECONDS = 0.7


def kill_own_group() -> None:
    """End this process and everything it started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


class ControlPipe:
    """Receives the supervisor's messages, and notices its death.

    Args:
        fd: read end of the pipe.
        orphan_seconds: time for an ordered exit after the supervisor's death.
        leave: ends the process after that time.
    """

    def __init__(
        self,
        fd: int,
        log: EventLog,
        *,
        orphan_seconds: float = ORPHAN_SECONDS,
        leave: Callable[[], None] = kill_own_group,
    ) -> None:
        self._orphan_seconds = orphan_seconds
        self._leave = leave
        self._fd = fd
        self._log = log
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_message: Callable[[ControlMessage], None] | None = None
        self._on_orphaned: Callable[[], None] | None = None
        self._on_settings: Callable[[bytes], None] = _ignore_settings
        self._early: list[tuple[ControlMessage, bytes]] = []
        self._orphaned = False

    def start(self) -> None:
        """Start the reading thread (a daemon)."""
        threading.Thread(target=self._listen, name="jobmaster-control", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Number of messages that came before ``attach``."""
        with self._lock:
            return len(self._early)

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[ControlMessage], None],
        on_orphaned: Callable[[], None],
        on_settings: Callable[[bytes], None] | None = None,
    ) -> None:
        """Deliver messages on this event loop from now on; earlier messages are delivered at once."""
        with self._lock:
            self._loop, self._on_message, self._on_orphaned = loop, on_message, on_orphaned
            self._on_settings = on_settings or _ignore_settings
            kept, self._early = self._early, []
            orphaned = self._orphaned
        for message, more in kept:
            loop.call_soon_threadsafe(self._dispatch, message, more)
        if orphaned:
            loop.call_soon_threadsafe(on_orphaned)

    def _listen(self) -> None:
        rest = b""
        while part := self._read():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                self._deliver(line)
        self._on_closed()

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, 4096)
        except OSError:
            return b""

    def _deliver(self, line: bytes) -> None:
        name, _, more = line.partition(b" ")
        try:
            message = ControlMessage(name.decode())
        except ValueError:
            return  # a message of a newer supervisor
        with self._lock:
            if self._loop is None or self._on_message is None:
                self._early.append((message, more))
                return
            loop = self._loop
        _call(loop, lambda: self._dispatch(message, more))

    def _dispatch(self, message: ControlMessage, more: bytes) -> None:
        if message is ControlMessage.SETTINGS:
            self._on_settings(more)
        elif self._on_message is not None:
            self._on_message(message)

    def _on_closed(self) -> None:
        with self._lock:
            self._orphaned = True
            loop, on_orphaned = self._loop, self._on_orphaned
        self._log.error(Event.SUPERVISOR_LOST, {"pid": os.getpid(), "leaving_within_seconds": self._orphan_seconds})
        if loop is not None and on_orphaned is not None:
            _call(loop, on_orphaned)
        threading.Event().wait(self._orphan_seconds)
        self._leave()


def _ignore_settings(_: bytes) -> None:
    """Handler of new settings when none was attached."""


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:
        pass  # the loop is closed: the process is on its way out
