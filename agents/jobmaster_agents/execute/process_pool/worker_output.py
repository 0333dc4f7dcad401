"""Output of worker processes: read at a bounded rate, passed on line by line up to a limit, the end of it kept.

The pipe is always read eventually, so a printing handler never blocks for ever. A flooding handler is read slowly: it waits
in its own ``write`` and does not use up the agent's time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from jobmaster.handlers.current import current_job
from jobmaster.handlers.secrets import hide_in_record
from jobmaster_agents.event_log import extra_of, plain, trace_fields

_MARK = "\x1e"
"""Begins a line of the worker's root logger. A handler may print it, too: then its own line has a false logger name."""
_EXTRA_END = "\x1f"
"""After the fields of such a line, which come first: the end of a long line is cut off."""
EXTRA_BYTES = 400
"""Fields of one line, as JSON. Those that do not fit are left out, and counted."""
_LEFT_OUT = "extra_left_out"
_READ_BYTES = 64 * 1024
_PAUSE_SECONDS = 0.05
_COUNTER_BYTES = 8
LINES = 100
"""Lines of one job that are passed on at most."""
LINES_PER_SECOND = 1000
"""Of all workers together. A line in the log costs the agent's loop about 20 microseconds."""
_LINE_BYTES = 1000


class LoggedLine(NamedTuple):
    """A line that a worker's root logger has written."""

    level: str
    logger: str
    message: str
    extra: Mapping[str, object] = MappingProxyType({})
    """What the caller of the logger gave as ``extra``."""


class WorkerLines(logging.Formatter):
    """Lines of a worker's root logger, as ``split_logged`` reads them. A traceback follows as plain output."""

    def format(self, record: logging.LogRecord) -> str:
        context = current_job()
        if context is not None and context.secret_texts is not None:
            hide_in_record(record, context.secret_texts)
        message = "\\n".join(record.getMessage().splitlines())
        line = f"{_MARK}{_encoded_extra(record)}{record.levelname} {record.name}: {message}"
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        return f"{line}\n{trace}" if trace else line


def split_logged(line: str) -> tuple[str, LoggedLine | None]:
    """A line of a worker's output: what was printed before, and what was logged."""
    printed, mark, logged = line.partition(_MARK)
    if not mark:
        return line, None
    extra: Mapping[str, object] = {}
    if logged.startswith("{"):
        encoded, _, logged = logged.partition(_EXTRA_END)
        extra = _decoded_extra(encoded)
    head, _, message = logged.partition(": ")
    level, _, logger = head.partition(" ")
    return printed, LoggedLine(level, logger, message, extra)


def _encoded_extra(record: logging.LogRecord) -> str:
    """The fields of a line, if it has any. All of it is ASCII without control characters."""
    extra = {**trace_fields(), **extra_of(record)}
    if not extra:
        return ""
    kept: list[str] = []
    room = EXTRA_BYTES - len(f'{{"{_LEFT_OUT}": {len(extra)}}}')
    for name, value in extra.items():
        field = f"{json.dumps(str(name))}: {json.dumps(plain(value))}"
        if len(field) + 2 <= room:
            room -= len(field) + 2
            kept.append(field)
    if len(kept) < len(extra):
        kept.append(f'"{_LEFT_OUT}": {len(extra) - len(kept)}')
    return f"{{{', '.join(kept)}}}{_EXTRA_END}"


def _decoded_extra(encoded: str) -> Mapping[str, object]:
    """A handler may print such a line itself, with anything in it."""
    try:
        extra = json.loads(encoded)
    except (ValueError, RecursionError):
        return {}
    return extra if isinstance(extra, dict) else {}


class LineRate:
    """Limits the lines of all workers together.

    Args:
        now: seconds on a clock that only goes forward.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = float("-inf")
        self._lines = 0
        self._left_out = 0

    def admit(self) -> int | None:
        """Number of lines left out before this one; ``None``: this one is left out, too."""
        now = self._now()
        if now - self._since >= 1.0:
            self._since, self._lines = now, 0
        if self._lines >= LINES_PER_SECOND:
            self._left_out += 1
            return None
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class OutputLines:
    """Splits the output of one worker into lines: the first ``LINES`` of each job, then the number of further lines.

    Args:
        emit: called with each line.
    """

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._begun = bytearray()
        self._lines = 0

    def feed(self, data: bytes) -> None:
        """Add output."""
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._add(part)
            self._end_line()
        self._add(rest)

    def end(self) -> None:
        """The job has ended: emit the rest."""
        if self._begun:
            self._end_line()
        if self._lines > LINES:
            self._emit(f"[... {self._lines - LINES} more lines]")
        self._lines = 0

    def _add(self, part: bytes) -> None:
        if self._lines < LINES and len(self._begun) <= _LINE_BYTES:
            self._begun += part[: _LINE_BYTES + 1]
        elif not self._begun and part:
            self._begun += b"."  # a line that is only counted

    def _end_line(self) -> None:
        line, self._begun = bytes(self._begun), bytearray()
        self._lines += 1
        if self._lines <= LINES and line.strip():
            cut = " [...]" if len(line) > _LINE_BYTES else ""
            self._emit(line[:_LINE_BYTES].decode("utf-8", "replace").rstrip("\r") + cut)


class OutputReads:
    """How often the agent has read output of a worker: one number in memory that both share.

    With what is still in the pipe it shows a worker whether a job has printed, also from C or from another program. A worker
    synchronises with its agent after a job that may have printed, and only then.

    Args:
        fd: file of the memory; closed here. ``None``: a new one, whose descriptor ``share`` returns.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = -1
        if fd is None:
            self.fd = fd = _anonymous_file()
            os.ftruncate(fd, _COUNTER_BYTES)
        self._memory = mmap.mmap(fd, _COUNTER_BYTES)
        self._count = memoryview(self._memory).cast("Q")
        if self.fd < 0:
            os.close(fd)

    @property
    def count(self) -> int:
        """Reads so far."""
        return self._count[0]

    def add(self) -> None:
        """A read begins."""
        self._count[0] += 1

    def close_file(self) -> None:
        """The worker has its own descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _anonymous_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class OutputTail:
    """Reads one pipe and keeps the end of its output.

    Args:
        fd: read end; owned and closed here.
        keep_bytes: size of the end that is kept.
        bytes_per_second: reading pauses when more comes.
        lines: receives all output that is read.
        reads: counts the reads.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        keep_bytes: int,
        bytes_per_second: int,
        lines: OutputLines | None = None,
        reads: OutputReads | None = None,
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._keep = keep_bytes
        self._allowance = max(int(bytes_per_second * _PAUSE_SECONDS), _READ_BYTES)
        self._left = self._allowance
        self._tail = bytearray()
        self._lines = lines
        self._reads = reads
        self._fresh = bytearray()
        """Read, and not yet passed on: the start of the job that has written it may not have been seen yet."""
        self._resume: asyncio.TimerHandle | None = None
        self.seen_bytes = 0
        """Bytes since ``begin``."""
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._readable)

    def begin(self) -> None:
        """A new job begins: drop the output of the previous one."""
        self._tail.clear()
        self.seen_bytes = 0

    def text(self) -> str:
        """The end of the output since ``begin``."""
        kept = self._tail[-self._keep :]
        text = kept.decode("utf-8", "replace").replace(_MARK, "")
        missing = self.seen_bytes - len(kept)
        return f"[... {missing} bytes before ...]\n{text}" if missing else text

    def read_available(self) -> None:
        """Read what is in the pipe now, at most one pipe full: a process that was left behind may go on printing."""
        for _ in range(32):
            if self._fd < 0 or not self._read():
                break
        self._pass_on()

    def close(self) -> None:
        """Stop reading and close the pipe."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._resume is not None:
            self._resume.cancel()

    def _read(self) -> int:
        if self._reads is not None:
            self._reads.add()  # before the read: see ``ProcessState.has_printed``
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return 0
        self._fresh += data
        return len(data)

    def _pass_on(self) -> None:
        data, self._fresh = bytes(self._fresh), bytearray()
        self.seen_bytes += len(data)
        self._tail += data
        if self._lines is not None and data:
            self._lines.feed(data)
        if len(self._tail) > 2 * self._keep:
            del self._tail[: -self._keep]

    def _readable(self) -> None:
        count = self._read()
        if not count:
            self._loop.remove_reader(self._fd)  # end of file would be readable for ever
            return
        # The start of the job was written to the socket before this output. Two turns later it has been read from there. (A
        # job that prints is the last one that begins until the agent has read its output: what is read belongs to it.)
        self._loop.call_soon(self._loop.call_soon, self._pass_on)
        self._left -= count
        if self._left <= 0:
            self._loop.remove_reader(self._fd)
            self._resume = self._loop.call_later(_PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        self._left = self._allowance
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._readable)
