"""How far a write is: read from the master every few seconds, with an estimate of its end, as text or as JSON lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, NamedTuple

from jobmaster.master.driver.connection import ConnectionPool, StatementRunner
from jobmaster.model.errors import JobMasterError
from jobmaster.model.job import Priority
from jobmaster.pipeline.context import PipelineContext
from jobmaster.units import rounded_duration

_LOOK_SECONDS = 0.5
REPORT_SECONDS = 3.0
"""Between two reports, and between two signs of life of the driver."""
_SPAN_SECONDS = 120.0
"""The rate is that of this time: longer than the cycle of a write that is held back and goes on."""


class WriteState(StrEnum):
    """What a backfill does."""

    WRITING = "writing"
    HELD_BACK = "held back"
    """The cluster's backlog is above the limit of the write."""
    PAUSED = "paused"
    STOPPED = "stopped"
    """It has not ended, and no driver lives."""
    UNFINISHED = "unfinished"
    """It has not ended. A program of the user writes it, and whether that lives is unknown."""
    ENDED = "ended"


def write_state(*, paused: bool, held_back: bool, lives: bool | None = True, ended: bool = False) -> WriteState:
    """The state of a backfill; the first that fits.

    Args:
        lives: its driver; ``None``: unknown.
    """
    if ended:
        return WriteState.ENDED
    if paused:
        return WriteState.PAUSED
    if lives is False:
        return WriteState.STOPPED
    if held_back:
        return WriteState.HELD_BACK
    return WriteState.WRITING if lives else WriteState.UNFINISHED


class Estimate(NamedTuple):
    """What the progress of a write promises."""

    rows_per_second: float
    seconds_left: float | None
    """``None``: the number of rows is unknown, or nothing moves."""


def estimate(handled: deque[tuple[float, int]], total: int | None) -> Estimate:
    """The rate over the samples ``(seconds, rows handled)``, the oldest first, and the time that is left."""
    if len(handled) < 2 or handled[-1][0] <= handled[0][0]:
        return Estimate(0.0, None)
    (first_at, first), (last_at, last) = handled[0], handled[-1]
    rate = max(last - first, 0) / (last_at - first_at)
    if total is None or rate == 0:
        return Estimate(rate, None)
    return Estimate(rate, max(total - last, 0) / rate)


@dataclass(frozen=True)
class WriteWatch:
    """What the progress of a write is reported as."""

    backfill: str
    total: int | None = None
    """Rows that are expected; ``None``: unknown."""
    as_json: bool = False
    """JSON lines instead of text."""


class ProgressReporter:
    """Reports how far a run of writing is, on a connection of its own, and tells the master that the driver lives."""

    def __init__(self, context: PipelineContext, run_id: str, watch: WriteWatch) -> None:
        self._context = context
        self._run_id = run_id
        self._watch = watch
        self._connection_factory = context.connection.connection_factory
        self._samples: deque[tuple[float, int]] = deque()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobmaster-progress", daemon=True)

    def __enter__(self) -> ProgressReporter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        driver = self._run_id, socket.gethostname(), os.getpid(), self._watch.total
        with asyncio.Runner() as runner:
            connections = ConnectionPool(self._connection_factory, 1)
            statements = StatementRunner(connections)
            pause = _LOOK_SECONDS
            while not self._done.wait(pause):
                try:
                    if not runner.run(statements.write("pipeline/report_driver", *driver)):
                        continue  # Spark has not begun
                    pause = REPORT_SECONDS
                    (row,) = runner.run(statements.read("pipeline/run_progress", self._run_id))
                except JobMasterError:
                    continue  # the tasks report the error
                self._report(row)
            # A short run has ended before the first look; its books name the driver and the expected rows, too.
            with contextlib.suppress(JobMasterError):
                runner.run(statements.write("pipeline/report_driver", *driver))
            runner.run(connections.close())

    def _report(self, row: Any) -> None:
        now = self._context.clock.boottime()
        self._samples.append((now, row["handled"]))
        while now - self._samples[0][0] > _SPAN_SECONDS:
            self._samples.popleft()
        state = write_state(paused=row["paused"], held_back=row["lane"] is not None)
        found = estimate(self._samples, self._watch.total)
        if state is WriteState.PAUSED:
            found = found._replace(seconds_left=None)
        if self._watch.as_json:
            self._context.progress(self._json(row, state, found))
        elif row["handled"] or state is not WriteState.WRITING:
            self._context.progress(self._text(row, state, found))

    def _json(self, row: Any, state: WriteState, found: Estimate) -> str:
        left = found.seconds_left
        ends = None if left is None else datetime.fromtimestamp(self._context.clock.wall_us() / 1e6 + left, UTC)
        group = None if row["lane"] is None else f"{row['lane']}/{Priority(row['priority']).label}"
        return json.dumps(
            {
                "backfill": self._watch.backfill,
                "run_id": self._run_id,
                "state": state.value,
                "handled": row["handled"],
                "inserted": row["inserted"],
                "total": self._watch.total,
                "rows_per_second": round(found.rows_per_second),
                "seconds_left": None if left is None else round(left),
                "ends_at": None if ends is None else ends.isoformat(timespec="seconds"),
                "held_back_by": group,
                "backlog": row["backlog"],
            }
        )

    def _text(self, row: Any, state: WriteState, found: Estimate) -> str:
        parts = [f"{_number(row['handled'])} rows"]
        if self._watch.total:
            share = min(row["handled"] / self._watch.total, 1.0)
            parts = [f"{_number(row['handled'])} of {_number(self._watch.total)} rows ({share:.1%})"]
        parts.append(f"{_number(row['inserted'])} jobs are in")
        if found.rows_per_second:
            parts.append(f"{_number(round(found.rows_per_second))} a second")
        if found.seconds_left is not None:
            parts.append(f"{rounded_duration(found.seconds_left)} left")
        if state is WriteState.HELD_BACK:
            group = f"{row['lane']}/{Priority(row['priority']).label}"
            parts.append(f"held back: {group} has a backlog of {_number(row['backlog'])}")
        elif state is WriteState.PAUSED:
            parts.append("paused")
        return ", ".join(parts)


def _number(value: int) -> str:
    return f"{value:,}".replace(",", " ")
