"""The lines of one run on their way to the log of its job."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.model.job_log import LINE_CHARS_MAX, RUN_BYTES_MAX, LogLevel, LogLine
from jobmaster.model.stored_text import stored_text


class LogSink(Protocol):
    """Takes over the lines of runs; it may be called on any thread."""

    def keep(self, job_id: bytes, line: LogLine, lowest: int) -> None:
        """A line, and the lowest number of the lines of its run that are still kept."""
        ...


class RunLog:
    """Numbers the lines of one run, and drops the oldest beyond its bounds. It may be used on any thread.

    Args:
        lines: number of lines that are kept.
    """

    __slots__ = ("_bytes", "_clock", "_job_id", "_lines", "_lock", "_number", "_sink", "_sizes", "_token")

    def __init__(self, sink: LogSink, job_id: bytes, token: int, lines: int, clock: Clock) -> None:
        self._sink = sink
        self._job_id = job_id
        self._token = token
        self._lines = lines
        self._clock = clock
        self._lock = Lock()
        self._number = 0
        self._sizes: deque[int] = deque()
        """Bytes of the lines that are kept."""
        self._bytes = 0

    def add(self, level: LogLevel, text: str) -> None:
        """Keep a line."""
        shown = stored_text(text, LINE_CHARS_MAX)
        size = len(shown.encode())
        at_us = self._clock.wall_us()
        with self._lock:  # so that lines are numbered and handed on in one order
            self._number += 1
            self._sizes.append(size)
            self._bytes += size
            while len(self._sizes) > self._lines or self._bytes > RUN_BYTES_MAX:
                self._bytes -= self._sizes.popleft()
            line = LogLine(token=self._token, number=self._number, at_us=at_us, level=level, text=shown)
            self._sink.keep(self._job_id, line, self._number + 1 - len(self._sizes))
