"""How fast the tasks of a read take rows from a server that others use.

A COPY that nobody slows down takes a whole processor of the server, and a submit beside it waits for its turn. A task that takes
its rows slowly makes the server wait: the COPY then costs others what its rows cost, spread over time.

By default a read is slow only while others write. Each task has a second session, which looks at the number of the newest
transaction. What submits or runs a job takes a number; a read takes none. Counters of the statistics would come a second late.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from jobmaster.master.driver import errors
from jobmaster.master.driver.connection import Connection
from jobmaster.master.history.export import load_beside
from jobmaster.model.errors import JobMasterError
from jobmaster.pipeline.datasource.cluster_ref import PACING_NAME, ClusterRef
from jobmaster.pipeline.datasource.copy_to_arrow import Output

BESIDE_WRITERS = 20_000
"""Rows a second of all tasks of all reads together, by default, while others write."""
_UNLIMITED = float("inf")
_TURN_SECONDS = 0.05
"""After so long a task that waits looks at its rate again."""
_WRITES_PER_SECOND = 10.0
"""From so many transactions a second on, others write. An idle agent makes about one."""
_LOOK_SECONDS = 0.5
_FIRST_LOOK_SECONDS = 0.1
"""A task takes its first rows slowly until it has looked twice."""


class Pace(NamedTuple):
    """The option ``rowsPerSecond`` of a read."""

    rows_per_second: int | None = None
    """Of all tasks together, always; ``None``: ``BESIDE_WRITERS`` while others write, otherwise as fast as they can."""
    unlimited: bool = False
    """As fast as they can, whatever others do."""

    @property
    def sessions(self) -> int:
        """Sessions that a task has at once."""
        return 1 if self.unlimited else 2


UNLIMITED = Pace(unlimited=True)


class Look(NamedTuple):
    """What a session has seen of its server."""

    at: float
    """Monotonic seconds."""
    standby: bool
    next_xid: int
    looking: int
    """Sessions that look: one for each task that reads now."""


def rate_of(pace: Pace, before: Look | None, now: Look | None) -> float:
    """Rows a second that one task may take; infinite: as many as it can.

    Args:
        before: an earlier look; ``None``: there is none yet.
        now: the last look; ``None``: the server has not answered.
    """
    if pace.unlimited:
        return _UNLIMITED
    tasks = max(now.looking, 1) if now is not None else 1
    if pace.rows_per_second is not None:
        return pace.rows_per_second / tasks
    if now is not None and before is not None:
        writes = (now.next_xid - before.next_xid) / max(now.at - before.at, 1e-6)
        if now.standby or writes < _WRITES_PER_SECOND:
            return _UNLIMITED
    return BESIDE_WRITERS / tasks


class PacedOutput:
    """Passes rows on, no faster than ``rate``. Time that went by without rows is not made up for: there is no burst.

    Args:
        rate: rows a second; may change at any time.
    """

    def __init__(self, output: Output, rate: float) -> None:
        self.rate = rate
        self._output = output
        self._free_at = time.monotonic()

    async def __call__(self, rows: bytes) -> None:
        """Wait until the rows before have had their time, then pass these on."""
        while self.rate < _UNLIMITED and (wait := self._free_at - time.monotonic()) > 0:
            await asyncio.sleep(min(wait, _TURN_SECONDS))
        self._free_at = time.monotonic() + rows.count(b"\n") / self.rate
        await self._output(rows)


@asynccontextmanager
async def paced(output: Output, pace: Pace, cluster: ClusterRef) -> AsyncIterator[Output]:
    """The output of a task, at the pace of a read. While its server does not answer to the session that looks, it is slow."""
    if pace.unlimited:
        yield output
        return
    slowed = PacedOutput(output, rate_of(pace, None, None))
    looks = asyncio.create_task(_look(slowed, pace, cluster), name="jobmaster-pace")
    try:
        yield slowed
    finally:
        looks.cancel()
        await asyncio.gather(looks, return_exceptions=True)


async def _look(slowed: PacedOutput, pace: Pace, cluster: ClusterRef) -> None:
    factory = cluster.pacing_factory()
    before: Look | None = None
    pause = _FIRST_LOOK_SECONDS
    connection: Connection | None = None
    try:
        while True:
            try:
                if connection is None or connection.is_closed():
                    connection = await factory.open(plan_once=False)
                now = Look(time.monotonic(), *await load_beside(connection, PACING_NAME))
                slowed.rate = rate_of(pace, before, now)
                before, pause = now, _FIRST_LOOK_SECONDS if before is None else _LOOK_SECONDS
            except (JobMasterError, *errors.DRIVER_ERRORS):
                slowed.rate = rate_of(pace, None, before)
                before, pause = None, _LOOK_SECONDS
            await asyncio.sleep(pause)
    finally:
        if connection is not None:
            connection.terminate()
