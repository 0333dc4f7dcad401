"""How jobs move from the master of one cluster to that of another, page by page.

A page is noted in the source before any of its jobs is in the target. Then its rows are locked, inserted into the target
where they are absent (some megabytes at a time), marked ``MOVED`` and taken off the note in one transaction of the source. A
process that dies in the middle leaves the note: the next one begins with these jobs. The source runs nothing meanwhile (mode
``migrating``), and does not become active again while a page is noted, so no job runs in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from jobmaster.master.driver import errors
from jobmaster.master.driver.connection import (
    ConnectionFactory,
    ConnectionPool,
    DatabaseConnector,
    StatementRunner,
    password_of,
)
from jobmaster.master.driver.statements import quoted, sql
from jobmaster.master.history.moving_keys import MovingKeys
from jobmaster.master.schema.migrate import check_schema, status
from jobmaster.model.cluster import ClusterMode, ClusterRow
from jobmaster.model.errors import Conflict
from jobmaster.settings.model import MasterSettings

_APPLICATION_NAME = "jobmaster-migrate"
_STATEMENT_SECONDS = 600.0
_LOCK_SECONDS = 60.0
_ROWS = 1000
"""Rows of a small table in one statement."""
_CHOSEN = 100_000
"""Jobs that are looked up at once, for many pages."""
_SLICE_BYTES = 16 * 2**20
"""What one statement takes of a page of jobs, in bytes of their rows; JSON has twice as many. A larger row goes alone."""
_SIGNAL_JOBS = 1000
"""Most jobs that one portion of a signal starts."""
_SIGNALS = 2**31 - 1
"""Most signals that the target keeps while those of the source come."""
_SMALL_TABLES = ("job_limit", "pause", "once_action")
"""Whole tables that go along first: limits, pauses, actions that ran once."""
ACTOR = "jobmaster migrate"


class MasterPlace(NamedTuple):
    """Where a master is."""

    dsn: str
    schema: str
    settings: MasterSettings


class Left(NamedTuple):
    """What keeps the source from being empty."""

    buckets: int
    """Open buckets: their jobs come back to the master."""
    overdue: int
    """Agents whose lease has run out and that have no death certificate: one may still come back and open a bucket."""
    in_flight: bool
    waiting: bool
    """Jobs that can be moved."""
    workflows: int
    batches: int


class Preview(NamedTuple):
    """What a move would take from the source, and what would stay."""

    held: int
    waiting: int
    """Jobs that move: those that are due now or later, and those that wait for a signal or a confirmation."""
    buckets: int
    """Open buckets. Jobs that have no row yet lie in them alone, and come to the master when they complete."""
    in_flight: int
    """Jobs with a row that lie in these buckets."""
    signals: int
    """Signals that are kept."""
    schedules: int
    workflows: int
    batches: int
    """That have not ended. They stay, and the move does not begin before they have ended."""
    stay: int
    """Unfinished jobs of these."""


class ClusterMove:
    """The two masters. Belongs to the event loop it was made in; one at a time for a source (a lock of its session).

    Every method raises ``Unavailable`` or ``OutcomeUnknown`` when a master does not answer: begin again with ``begin``.
    """

    def __init__(self, source: asyncpg.Connection[Any], target: asyncpg.Connection[Any]) -> None:
        self._source = source
        self._target = target
        self._page: list[UUID] = []
        self._chosen: list[UUID] = []
        self._quiet = False
        self._keys = MovingKeys(lambda name, *values: self._run(source, name, *values), self._take)

    @classmethod
    async def connect(cls, source: MasterPlace, target: MasterPlace) -> ClusterMove:
        """Connect to both; refuse schemas of different versions.

        Raises:
            Conflict: the schemas differ, or another process moves this cluster.
        """
        labels = [await _applied(place) for place in (source, target)]
        if labels[0] != labels[1]:
            raise Conflict(
                "the masters have different migrations", hint="run `jobmaster db migrate` with this program on both"
            )
        connections = []
        try:
            for place in (source, target):
                connections.append(await _connect(place))
            moving = cls(connections[0], connections[1])
            if not (await moving._run(moving._source, "archive/lock_range", ACTOR))[0]["taken"]:
                raise Conflict("another process moves this cluster at the moment", hint="wait until it has ended")
        except BaseException:
            for connection in connections:
                connection.terminate()
            raise
        return moving

    async def close(self) -> None:
        """Give both connections and the lock back."""
        for connection in (self._source, self._target):
            try:
                await connection.close(timeout=2.0)
            except errors.DRIVER_ERRORS:
                connection.terminate()

    @property
    def in_doubt(self) -> bool:
        """Whether an earlier process left a page whose jobs may be in both masters."""
        return bool(self._page)

    @property
    def quiet(self) -> bool:
        """Whether a look has found that no agent of the source runs a job, or can begin one."""
        return self._quiet

    # ------------------------------------------------------------ before the jobs

    async def preview(self) -> Preview:
        """What would move. Nothing is changed.

        Raises:
            Conflict: both are one cluster, or the target does not take jobs.
        """
        await self._checked_target()
        return Preview(*(await self._run(self._source, "cluster/preview"))[0])

    async def begin(self) -> int:
        """Note the target in the source, or continue; number of jobs that were moved before.

        Raises:
            Conflict: both are one cluster, the target does not take jobs, or an interrupted move went somewhere else.
        """
        there = await self._checked_target()
        (move,) = await self._run(self._source, "cluster/begin_move", UUID(bytes=there.uid), there.name)
        if move["target"].bytes != there.uid:
            raise Conflict(
                f"an interrupted move went to cluster {move['target_name']} ({move['target']}), not to this one",
                hint="run it again with that target first",
            )
        self._page = list(move["page"])
        return int(move["moved"])

    async def mode(self) -> ClusterMode:
        """Mode of the source."""
        return ClusterMode((await self._run(self._source, "reports/cluster_mode"))[0]["mode"])

    async def set_mode(self, mode: ClusterMode, actor: str, reason: str) -> None:
        """Change the mode of the source. ``Conflict``: it may not be archived yet."""
        await self._run(self._source, "cluster/set_mode", str(mode), actor, reason)

    async def move_definitions(self) -> int:
        """Schedules (which stop here) and their decided fires, limits, pauses and actions that ran once; number of rows that
        are new there."""
        taken = 0
        for table in _SMALL_TABLES:
            taken += await self._take_table(table)
        # They are stopped first and there last: no fire is decided between the two that the target does not know.
        stopped = await self._run(self._source, "cluster/stop_schedules", ACTOR)
        taken += await self._take_table("schedule_fire")
        return taken + await self._take("schedule", [row["row_text"] for row in stopped])

    async def move_keys(self) -> int:
        """All idempotency keys and unique keys, or those since the last call; number of those that are new there."""
        return await self._keys.take_new()

    async def move_signals(self) -> int:
        """Signals that are kept here, and those that an earlier process left on their way, are sent there; how many.

        One that is kept for one job is taken away from here before it is there, or two jobs could receive it."""
        await self._run(self._source, "cluster/note_signals")
        sent = 0
        while found := await self._run(self._source, "cluster/noted_signal"):
            await self._send(found[0])
            await self._run(self._source, "cluster/forget_signal", found[0]["id"])
            sent += 1
        return sent

    async def _send(self, signal: asyncpg.Record) -> None:
        id_, key, recipients, payload, actor, sent_at, seconds = signal
        if await self._has_newer(key, recipients, sent_at):
            seconds = 0.0
        finished = False
        while not finished:
            values = (id_, key, payload, recipients, seconds, _SIGNALS, actor, _SIGNAL_JOBS)
            finished = (await self._run(self._target, "signals/send", *values))[0]["finished"]

    async def _has_newer(self, key: str, recipients: str, sent_at: datetime) -> bool:
        """Whether newer news for all are kept there. Those that come would replace them."""
        if recipients != "all":
            return False
        kept = await self._run(self._target, "signals/kept", key, _SIGNALS)
        return any(each["recipients"] == "all" and each["sent_at"] > sent_at for each in kept)

    async def _take_table(self, table: str) -> int:
        taken, after = 0, None
        while True:
            rows = await self._run(self._source, "cluster/read_rows", table, None, None, None, after, _ROWS)
            taken += await self._take(table, [row["row_text"] for row in rows])
            if len(rows) < _ROWS:
                return taken
            after = rows[-1]["place"]

    # ------------------------------------------------------------ the jobs

    async def move_page(self, limit: int) -> int:
        """The next jobs, or those of the page that an earlier process left; number of jobs that are MOVED now.

        0: there are none, or agents may still run jobs (``left``)."""
        was_noted = self.in_doubt
        if not self._page:
            while await self._run(self._source, "signals/finish", 0.0, _SIGNAL_JOBS):
                pass  # or the jobs that its next portion is for would be gone
            self._page = await self._next_page(limit)
        if not self._page:
            return 0
        await self._keys.take_new()
        try:
            async with self._source.transaction():
                moved = await self._move(self._page, was_noted=was_noted)
        except errors.DRIVER_ERRORS as error:
            raise errors.calling(error, "cluster/mark_moved", writes=True) from error
        self._page = []
        return moved

    async def _next_page(self, limit: int) -> list[UUID]:
        """Jobs that are noted; none while agents of the source may still run jobs."""
        if not self._chosen:
            if not await self._run(self._source, "cluster/note_page", []):
                return []
            if not self._quiet:  # no agent of the source begins an action any more
                await self._take_table("once_action")
                self._quiet = True
            self._chosen = [row["id"] for row in await self._run(self._source, "cluster/choose_jobs", _CHOSEN)]
        page, self._chosen = self._chosen[:limit], self._chosen[limit:]
        return page if page and await self._run(self._source, "cluster/note_page", page) else []

    async def _move(self, page: list[UUID], *, was_noted: bool) -> int:
        locked = await self._run(self._source, "cluster/lock_page", page)
        ids = [row["id"] for row in locked]
        keys = sorted({row["signal_key"] for row in locked if row["signal_key"] is not None})
        async with self._target.transaction():
            if keys:
                await self._run(self._target, "cluster/lock_signals", keys)
            for portion in _slices(locked):
                rows: dict[str, list[str]] = {"job": [], "attempt": [], "put_off": []}
                for row in await self._run(self._source, "cluster/read_page", portion):
                    rows[row["table_name"]].append(row["row_text"])
                for table, texts in rows.items():
                    await self._take(table, texts)
            if keys:
                waiting = [row["id"] for row in locked if row["signal_key"] is not None]
                await self._run(self._target, "cluster/receive_signals", waiting, keys)
            # Ended here after an earlier process had put them there: what ended them counts.
            for job_id in set(page) - set(ids) if was_noted else ():
                await self._run(self._target, "requests/cancel", job_id, ACTOR)
        return int((await self._run(self._source, "cluster/mark_moved", ids))[0]["moved"])

    async def left(self) -> Left:
        """What the source still has."""
        return Left(*(await self._run(self._source, "cluster/left"))[0])

    # ------------------------------------------------------------ calls

    async def _cluster(self, connection: asyncpg.Connection[Any]) -> ClusterRow:
        (row,) = await self._run(connection, "schema/cluster")
        return ClusterRow(row["name"], row["uid"].bytes)

    async def _checked_target(self) -> ClusterRow:
        here, there = await self._cluster(self._source), await self._cluster(self._target)
        if here.uid == there.uid:
            raise Conflict("source and target are the same cluster", hint="name another database or schema with --to")
        (state,) = await self._run(self._target, "reports/cluster_mode")
        if state["mode"] != ClusterMode.ACTIVE:
            raise Conflict(f"the target cluster is {state['mode']}", hint="only an active cluster takes jobs")
        return there

    async def _take(self, table: str, rows: list[str]) -> int:
        return int((await self._run(self._target, "cluster/take_rows", table, rows))[0]["taken"]) if rows else 0

    async def _run(self, connection: asyncpg.Connection[Any], name: str, *values: object) -> list[asyncpg.Record]:
        try:
            return await connection.fetch(sql(name), *values)
        except errors.DRIVER_ERRORS as error:
            raise errors.calling(error, name, writes=True) from error


def _slices(rows: list[asyncpg.Record]) -> Iterator[list[UUID]]:
    """Ids of jobs, in order, as many at a time as one statement takes."""
    portion: list[UUID] = []
    room = _SLICE_BYTES
    for row in rows:
        if portion and row["bytes"] > room:
            yield portion
            portion, room = [], _SLICE_BYTES
        portion.append(row["id"])
        room -= row["bytes"]
    if portion:
        yield portion


async def _applied(place: MasterPlace) -> list[str]:
    found = await status(dsn=place.dsn, schema=place.schema, settings=place.settings)
    return [f"{line.number} {line.name}" for line in found if line.standing in ("applied", "newer")]


async def _connect(place: MasterPlace) -> asyncpg.Connection[Any]:
    probe = ConnectionPool(ConnectionFactory(place.dsn, place.schema, place.settings, _APPLICATION_NAME), 1)
    try:
        await check_schema(StatementRunner(probe), place.schema)
    finally:
        await probe.close()
    connector = DatabaseConnector(place.dsn, password=password_of(place.settings))
    try:
        return await connector.connect(
            place.settings.connect_timeout_seconds,
            server_settings={
                "search_path": quoted(place.schema),
                "application_name": _APPLICATION_NAME,
                "timezone": "UTC",
                "jit": "off",
                "statement_timeout": f"{_STATEMENT_SECONDS * 1000:.0f}",
                "lock_timeout": f"{_LOCK_SECONDS * 1000:.0f}",
                "tcp_keepalives_idle": "30",
            },
        )
    except errors.DRIVER_ERRORS as error:
        raise errors.connecting(error, connector.place) from error
