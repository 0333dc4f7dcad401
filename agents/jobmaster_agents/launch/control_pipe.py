"""The child's end of the control pipe, read by a thread of its own so that a stalled loop cannot miss the end of it.

When the pipe ends, the supervisor is dead: nobody would kill this process at its deadline any more and nobody waits for
it. The loop is told to fence and leave; whoever is still here ``ORPHAN_SECONDS`` later goes with its whole process group.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable

from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.launch.order import ControlMessage

ORPHAN_SECONDS = 0.7


def kill_own_group() -> None:
    """End this process and everything it started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


class ControlPipe:
    """Words from the supervisor, and its death.

    Args:
        leave: ends the process when nothing else did ``orphan_seconds`` after the supervisor's death.
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
        self._on_word: Callable[[ControlMessage], None] | None = None
        self._on_orphaned: Callable[[], None] | None = None
        self._on_settings: Callable[[bytes], None] = _not_told
        self._kept: list[tuple[ControlMessage, bytes]] = []
        self._orphaned = False

    def start(self) -> None:
        """Begin to listen (a daemon thread)."""
        threading.Thread(target=self._listen, name="jobmaster-control", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Words that came before anybody was attached."""
        with self._lock:
            return len(self._kept)

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_word: Callable[[ControlMessage], None],
        on_orphaned: Callable[[], None],
        on_settings: Callable[[bytes], None] | None = None,
    ) -> None:
        """From now on call these on the loop; words that came earlier are delivered at once."""
        with self._lock:
            self._loop, self._on_word, self._on_orphaned = loop, on_word, on_orphaned
            self._on_settings = on_settings or _not_told
            kept, self._kept = self._kept, []
            orphaned = self._orphaned
        for word, more in kept:
            loop.call_soon_threadsafe(self._say, word, more)
        if orphaned:
            loop.call_soon_threadsafe(on_orphaned)

    def _listen(self) -> None:
        rest = b""
        while part := self._read():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                self._deliver(line)
        self._lost()

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, 4096)
        except OSError:
            return b""

    def _deliver(self, line: bytes) -> None:
        name, _, more = line.partition(b" ")
        try:
            word = ControlMessage(name.decode())
        except ValueError:
            return  # a newer supervisor's word
        with self._lock:
            if self._loop is None or self._on_word is None:
                self._kept.append((word, more))
                return
            loop = self._loop
        _call(loop, lambda: self._say(word, more))

    def _say(self, word: ControlMessage, more: bytes) -> None:
        if word is ControlMessage.SETTINGS:
            self._on_settings(more)
        elif self._on_word is not None:
            self._on_word(word)

    def _lost(self) -> None:
        with self._lock:
            self._orphaned = True
            loop, on_orphaned = self._loop, self._on_orphaned
        self._log.error(Event.SUPERVISOR_LOST, {"pid": os.getpid(), "leaving_within_seconds": self._orphan_seconds})
        if loop is not None and on_orphaned is not None:
            _call(loop, on_orphaned)
        threading.Event().wait(self._orphan_seconds)
        self._leave()


def _not_told(_: bytes) -> None:
    """Nobody wants to hear of new settings."""


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:
        pass  # the loop is closed: the process is on its way out
