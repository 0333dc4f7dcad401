"""How fast the tasks of a read take rows from a server that others use.

A COPY without a limit takes a whole processor of the server, and a submit beside it waits for its turn. A task that takes
its rows slowly makes the server wait: the COPY then costs others what its rows cost, spread over time. The buffers of a
connection hold a thousand rows and more, and the server fills them in one go; so a slow COPY also pauses in the server, after
a few rows each time. The task keeps the rate; the pauses divide what passes.

By default a read is slow only while others write. Each task has a second session, which looks at the number of the newest
transaction. What submits or runs a job takes a number; a read takes none. The counters of the statistics are a second late.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from jobmaster.clock import monotonic_us
from jobmaster.master.history.export import Pauses, load_beside, set_pauses
from jobmaster.model.errors import JobMasterError
from jobmaster.pipeline.datasource.cluster_ref import PACING_NAME, ClusterRef
from jobmaster.pipeline.datasource.copy_to_arrow import Output

BESIDE_WRITERS = 20_000
"""Rows a second of all tasks of all reads together, by default, while others write."""
_UNLIMITED = float("inf")
_WRITES_PER_SECOND = 10.0
"""From so many transactions a second on, others write. Agents without jobs make some, too: a large fleet reaches it."""
_LOOK_SECONDS = 0.5
_FIRST_LOOK_SECONDS = 0.1
"""A task takes its first rows slowly until it has looked twice."""
_PAUSE_SECONDS = 0.0021
"""What a pause of two milliseconds takes. The server rounds up to whole ones, and a longer pause would hold back the rows in
the buffer of its session, which is sent when it is full."""
_ROW_SECONDS = 5e-6
"""Of the server for one row, between 2.6 microseconds (measured) and 10 (beside others)."""
_TURN_SECONDS = 0.5
"""So often a task that waits asks its output whether there is still a reader."""


class Pace(NamedTuple):
    """The option ``rowsPerSecond`` of a read."""

    rows_per_second: int | None = None
    """Of all tasks together, always; ``None``: ``BESIDE_WRITERS`` while others write, otherwise as fast as they can."""
    unlimited: bool = False
    """As fast as they can, whatever others do."""
    tasks: int = 1
    """So many share the rate as long as a task does not know how many read."""


UNLIMITED = Pace(unlimited=True)


class Look(NamedTuple):
    """What a session has seen of its server."""

    at_us: int
    """Monotonic."""
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
    tasks = pace.tasks if now is None else max(now.looking, 1)
    if pace.rows_per_second is not None:
        return pace.rows_per_second / tasks
    if now is not None and before is not None:
        writes = (now.next_xid - before.next_xid) * 1e6 / max(now.at_us - before.at_us, 1)
        if now.standby or writes < _WRITES_PER_SECOND:
            return _UNLIMITED
    return BESIDE_WRITERS / tasks


def pauses_of(pace: Pace) -> Pauses | None:
    """The pauses that the server makes while a task reads; each task has a key of its own. ``None``: none, because there is
    no rate, or because it leaves no time for them.

    A few rows and a pause take as long as the rate gives them, 47 rows at ``BESIDE_WRITERS``. At low rates there is a pause
    after each row, and the task alone keeps the rate.
    """
    rate = pace.rows_per_second or BESIDE_WRITERS
    spare = 1 / rate - _ROW_SECONDS
    if pace.unlimited or spare <= 0:
        return None
    return Pauses(max(_PAUSE_SECONDS / spare, 1.0), 0.002, None if pace.rows_per_second else secrets.randbits(63))


class PacedOutput:
    """Passes rows on, no faster than ``rate``. The last ones of a task take their time, too, or tasks with few rows would
    exceed it. Time that went by without rows is not made up for: there is no burst.

    Args:
        output: gets an empty portion from time to time while rows wait.
        rate: rows a second.
    """

    def __init__(self, output: Output, rate: float) -> None:
        self._rate = rate
        self._output = output
        self._changed = asyncio.Event()

    @property
    def rate(self) -> float:
        """Rows a second. A change holds at once, also for rows that wait."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        if rate != self._rate:
            self._rate = rate
            self._changed.set()

    async def __call__(self, rows: bytes) -> None:
        """Pass rows on, and take the time for them. The server cannot send further ones meanwhile."""
        await self._output(rows)
        left = float(rows.count(b"\n"))  # a line break in a value counts as a row
        while left > 0 and self._rate < _UNLIMITED:
            began_us, rate = monotonic_us(), self._rate
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left / rate, _TURN_SECONDS)):
                    await self._changed.wait()
            left -= (monotonic_us() - began_us) / 1e6 * rate
            await self._output(b"")


@asynccontextmanager
async def paced(output: Output, pace: Pace, cluster: ClusterRef) -> AsyncIterator[tuple[Output, Pauses | None]]:
    """The output of a task, at the pace of a read, and the pauses of its COPY. While its server does not answer to the
    session that looks, it is slow."""
    if pace.unlimited:
        yield output, None
        return
    pauses = pauses_of(pace)
    slowed = PacedOutput(output, rate_of(pace, None, None))
    key = None if pauses is None else pauses.key
    looks = asyncio.create_task(_look(slowed, pace, key, cluster), name="jobmaster-pace")
    try:
        yield slowed, pauses
    finally:
        looks.cancel()
        await asyncio.gather(looks, return_exceptions=True)


async def _look(slowed: PacedOutput, pace: Pace, key: int | None, cluster: ClusterRef) -> None:
    """Set the rate of a task for as long as it reads; its COPY makes no pauses while there is no rate. After an error it is
    slow, until there is an answer again."""
    factory = cluster.pacing_factory()
    while True:
        before: Look | None = None
        pausing = True
        try:
            connection = await factory.open(plan_once=False)
            try:
                while True:
                    now = Look(monotonic_us(), *await load_beside(connection, PACING_NAME))
                    slowed.rate = rate_of(pace, before, now)
                    if key is not None and pausing == (slowed.rate == _UNLIMITED):
                        pausing ^= await set_pauses(connection, key, on=not pausing)
                    await asyncio.sleep(_FIRST_LOOK_SECONDS if before is None else _LOOK_SECONDS)
                    before = now
            finally:
                connection.terminate()
        except JobMasterError:
            pass
        finally:
            slowed.rate = rate_of(pace, None, None)
        await asyncio.sleep(_LOOK_SECONDS)
