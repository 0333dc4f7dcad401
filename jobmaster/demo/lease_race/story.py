"""What happens in a drill, line by line: its own steps and every event that the agents log, in one order."""

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


class Told(logging.Handler):
    """Passes on what is logged, formatted, and keeps who did what."""

    def __init__(self, tell: Callable[[str], None], *, as_json: bool) -> None:
        super().__init__(logging.INFO)
        self._tell = tell
        self.setFormatter(JsonLines() if as_json else TextLines())
        self.events: list[tuple[str, str]] = []
        """Name of the actor, event."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: Fields = getattr(record, "jobmaster_fields", {})
        self.events.append((str(fields.get("name", "")), record.getMessage()))
        self._tell(self.format(record))


class Story:
    """Listens to the agents of this process while it is open.

    Args:
        tell: is told each line.
    """

    def __init__(self, tell: Callable[[str], None], *, as_json: bool) -> None:
        self._logger = logging.getLogger(LOGGER_NAME)
        self._told = Told(tell, as_json=as_json)
        self._before = (self._logger.level, self._logger.propagate)

    @property
    def events(self) -> list[tuple[str, str]]:
        """Who did what, in order."""
        return self._told.events

    def step(self, name: str, step: Step, fields: Fields | None = None) -> None:
        """One step of the drill itself."""
        self._logger.info(step.value, extra={"jobmaster_fields": {"name": name, **(fields or {})}})

    def __enter__(self) -> Self:
        self._before = (self._logger.level, self._logger.propagate)
        self._logger.addHandler(self._told)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._logger.removeHandler(self._told)
        self._logger.setLevel(self._before[0])
        self._logger.propagate = self._before[1]
