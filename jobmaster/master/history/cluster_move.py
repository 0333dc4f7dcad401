"""How jobs move from the master of one cluster to that of another, page by page.

A page is noted in the source before any of its jobs is in the target. Then its rows are locked, inserted into the target
where they are absent, marked ``MOVED`` and taken off the note in one transaction of the source. A process that dies in the
middle leaves the note: the next one begins with these jobs. The source runs nothing meanwhile (mode ``migrating``), and does
not become active again while a page is noted, so no job runs in both.
"""

from __future__ import annotations

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
from jobmaster.master.schema.migrate import check_schema, status
from jobmaster.model.cluster import ClusterMode, ClusterRow
from jobmaster.model.errors import Conflict
from jobmaster.settings.model import MasterSettings

_APPLICATION_NAME = "jobmaster-migrate"
_STATEMENT_SECONDS = 600.0
_LOCK_SECONDS = 60.0
_KEYS = 5000
"""Idempotency keys of one statement."""
_YOUNG_SECONDS = 120.0
"""Keys that are younger are read again with each page: longer than the transaction of a submit lasts."""
_SMALL_TABLES = ("job_limit", "pause", "once_action", "signal", "schedule_fire", "unique_key")
"""Whole tables that go along: limits, pauses, actions that ran once, kept signals, fires that are decided, unique keys."""
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
    in_flight: bool
    waiting: bool
    """Jobs that can be moved."""
    workflows: int
    batches: int


class ClusterMove:
    """The two masters. Belongs to the event loop it was made in; one at a time for a source (a lock of its session).

    Every method raises ``Unavailable`` or ``OutcomeUnknown`` when a master does not answer: begin again with ``begin``.
    """

    def __init__(self, source: asyncpg.Connection[Any], target: asyncpg.Connection[Any]) -> None:
        self._source = source
        self._target = target
        self._page: list[UUID] = []

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

    # ------------------------------------------------------------ before the jobs

    async def begin(self) -> int:
        """Note the target in the source, or continue; number of jobs that were moved before.

        Raises:
            Conflict: both are one cluster, the target does not take jobs, or an interrupted move went somewhere else.
        """
        here, there = await self._cluster(self._source), await self._cluster(self._target)
        if here.uid == there.uid:
            raise Conflict("source and target are the same cluster", hint="name another database or schema with --to")
        (state,) = await self._run(self._target, "reports/cluster_mode")
        if state["mode"] != ClusterMode.ACTIVE:
            raise Conflict(f"the target cluster is {state['mode']}", hint="only an active cluster takes jobs")
        (move,) = await self._run(self._source, "cluster/begin_move", UUID(bytes=there.uid), there.name)
        if move["target"].bytes != there.uid:
            raise Conflict(
                f"an interrupted move went to cluster {move['target_name']} ({move['target']}), not to this one",
                hint="run it again with that target first",
            )
        self._page = list(move["page"])
        return int(move["moved"])

    async def set_mode(self, mode: ClusterMode, actor: str, reason: str) -> None:
        """Change the mode of the source. ``Conflict``: it may not be archived yet."""
        await self._run(self._source, "cluster/set_mode", str(mode), actor, reason)

    async def move_definitions(self) -> int:
        """Schedules (which stop here), limits, pauses and whatever else jobs need; number of rows that are new there."""
        taken = 0
        for table in _SMALL_TABLES:
            rows = (await self._run(self._source, "cluster/read_rows", table))[0]["rows_text"]
            taken += await self._take(table, rows)
        rows = (await self._run(self._source, "cluster/stop_schedules", ACTOR))[0]["rows_text"]
        return taken + await self._take("schedule", rows)

    async def move_keys(self) -> int:
        """All idempotency keys; number of those that are new there."""
        taken, last = 0, ("", "")
        while True:
            (page,) = await self._run(self._source, "cluster/read_keys", *last, _KEYS)
            if page["last_key"] is None:
                return taken
            taken += await self._take("idempotency", page["rows_text"])
            last = (page["last_scope"], page["last_key"])

    # ------------------------------------------------------------ the jobs

    async def move_page(self, limit: int) -> int:
        """The next jobs, or those of the page that an earlier process left; number of jobs that are MOVED now.

        0: there are none, or agents may still run jobs (``left``)."""
        if not self._page:
            chosen = await self._run(self._source, "cluster/choose_page", limit)
            self._page = list(chosen[0]["page"]) if chosen else []
        if not self._page:
            return 0
        (young,) = await self._run(self._source, "cluster/read_young_keys", _YOUNG_SECONDS)
        await self._take("idempotency", young["keys"])
        await self._take("unique_key", young["unique_keys"])
        try:
            async with self._source.transaction():
                moved = await self._move(self._page)
        except errors.DRIVER_ERRORS as error:
            raise errors.calling(error, "cluster/mark_moved", writes=True) from error
        self._page = []
        return moved

    async def _move(self, page: list[UUID]) -> int:
        rows = await self._run(self._source, "cluster/lock_page", page)
        locked = [row["id"] for row in rows]
        (beside,) = await self._run(self._source, "cluster/read_beside", locked)
        jobs = "[" + ",".join(row["row_text"] for row in rows) + "]"
        async with self._target.transaction():
            await self._take("job", jobs)
            await self._take("attempt", beside["attempts"])
            await self._take("put_off", beside["put_off"])
            # Ended here after an earlier process had put them there: what ended them counts.
            for job_id in set(page) - set(locked):
                await self._run(self._target, "requests/cancel", job_id, ACTOR)
        return int((await self._run(self._source, "cluster/mark_moved", locked))[0]["moved"])

    async def left(self) -> Left:
        """What the source still has."""
        return Left(*(await self._run(self._source, "cluster/left"))[0])

    # ------------------------------------------------------------ calls

    async def _cluster(self, connection: asyncpg.Connection[Any]) -> ClusterRow:
        (row,) = await self._run(connection, "schema/cluster")
        return ClusterRow(row["name"], row["uid"].bytes)

    async def _take(self, table: str, rows: str) -> int:
        return int((await self._run(self._target, "cluster/take_rows", table, rows))[0]["taken"]) if rows != "[]" else 0

    async def _run(self, connection: asyncpg.Connection[Any], name: str, *values: object) -> list[asyncpg.Record]:
        try:
            return await connection.fetch(sql(name), *values)
        except errors.DRIVER_ERRORS as error:
            raise errors.calling(error, name, writes=True) from error


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
