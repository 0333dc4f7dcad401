"""The trace of a drill: its own steps and every event that the agents log, in one order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Self

from jobmaster_agents.event_log import LOGGER_NAME, Fields, JsonLines, TextLines


class Step(StrEnum):
    """Steps of a drill that no agent logs."""

    SUBMITTED = "drill_submitted"
    RUNNING = "drill_running"
    ROW_WRITTEN = "drill_row_written"
    ASLEEP = "drill_asleep"
    RESCUED_AND_FINISHED = "drill_rescued_and_finished"
    AWAKE = "drill_awake"
    RECORD_REFUSED = "drill_record_refused"
    LEFT = "drill_left"


class TraceHandler(logging.Handler):
    """Writes formatted log lines, and collects the agent and the event of each."""

    def __init__(self, write_line: Callable[[str], None], *, as_json: bool) -> None:
        super().__init__(logging.INFO)
        self._write_line = write_line
        self.setFormatter(JsonLines() if as_json else TextLines())
        self.events: list[tuple[str, str]] = []
        """Name of the agent, event."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: Fields = getattr(record, "jobmaster_fields", {})
        self.events.append((str(fields.get("name", "")), record.getMessage()))
        self._write_line(self.format(record))


class EventTrace:
    """Collects the log of this process's agents while it is open.

    Args:
        write_line: called with each formatted line.
        as_json: format the lines as JSON.
    """

    def __init__(self, write_line: Callable[[str], None], *, as_json: bool) -> None:
        self._logger = logging.getLogger(LOGGER_NAME)
        self._handler = TraceHandler(write_line, as_json=as_json)
        self._before = (self._logger.level, self._logger.propagate)

    @property
    def events(self) -> list[tuple[str, str]]:
        """Pairs of agent name and event, in order."""
        return self._handler.events

    def step(self, name: str, step: Step, fields: Fields | None = None) -> None:
        """Log one step of the drill itself."""
        self._logger.info(step.value, extra={"jobmaster_fields": {"name": name, **(fields or {})}})

    def __enter__(self) -> Self:
        self._before = (self._logger.level, self._logger.propagate)
        self._logger.addHandler(self._handler)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._logger.removeHandler(self._handler)
        self._logger.setLevel(self._before[0])
        self._logger.propagate = self._before[1]
