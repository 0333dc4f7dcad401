"""The log of a job: lines that its runs have written (``ctx.log``, and ``logging`` in a handler with ``keep_logs``)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Literal, Self

import msgspec

from jobmaster.model.errors import InputError

LINE_CHARS_MAX = 2000
"""Characters of a line; a longer one is cut."""
LINES_DEFAULT = 100
"""Lines that are kept of a run whose handler has no ``keep_logs``."""
LINES_MAX = 10_000
"""The most that ``keep_logs`` may ask for."""
RUN_BYTES_MAX = 1024 * 1024
"""Text that is kept of one run. Of a run with more, the oldest lines are dropped."""
RUNS_KEPT = 20
"""Lines of runs that are so many assignments older than the present one are dropped."""
RELAYED = "jobmaster_relayed"
"""Attribute of a line of ``logging`` that comes from a worker process, which has sent it for the log of its job itself."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

LogLevelName = Literal["debug", "info", "warning", "error", "critical"]


class LogLevel(IntEnum):
    """Level of a line, with the number that ``logging`` has for it."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50

    @property
    def label(self) -> str:
        """The level in lower case."""
        return self.name.lower()

    @classmethod
    def of(cls, number: int) -> Self:
        """The level of a number of ``logging``: the highest one that is not above it."""
        return cls(min(max(number // 10 * 10, cls.DEBUG), cls.CRITICAL))

    @classmethod
    def parse(cls, value: object) -> Self:
        """A level from its name, its number or itself.

        Raises:
            InputError: there is no such level.
        """
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        if isinstance(value, int) and not isinstance(value, bool):
            return cls.of(value)
        raise InputError(
            f"{value!r:.40} is no level of a log line", hint=f"they are {', '.join(level.label for level in cls)}"
        )


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    token: int
    """Of the run that has written it; it grows with every assignment of the job."""
    number: int
    """Of the line in its run, from 1. A gap: lines between were dropped, because there were too many."""
    at_us: int
    """When it was written, by the clock of the agent: microseconds since 1970."""
    level: LogLevel
    text: str

    @property
    def at(self) -> datetime:
        """``at_us`` as a time (aware, UTC)."""
        return _EPOCH + timedelta(microseconds=self.at_us)


def dropped_before(line: LogLine, previous: LogLine | None) -> int:
    """Number of lines of its run that were dropped between a line and the one that is kept before it."""
    first = 1 if previous is None or previous.token != line.token else previous.number + 1
    return line.number - first


def checked_keep_logs(value: object) -> int | None:
    """The option ``keep_logs`` of a handler.

    Raises:
        ValueError: it is no number of lines.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LINES_MAX:
        raise ValueError(f"keep_logs must be a number of lines from 0 to {LINES_MAX}, not {value!r}")
    return value
