"""How ranges leave the master: the manifest and its moves, on one connection of their own.

One session, because the lock on a range ends with it: an archiver whose session is gone can neither commit a step nor
hold up another one. Its statements read whole ranges, so they may run for hours and scan as they like.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from jobmaster.master.driver import errors
from jobmaster.master.driver.connection import (
    ConnectionFactory,
    ConnectionPool,
    DatabaseConnector,
    StatementRunner,
    password_of,
)
from jobmaster.master.driver.statements import quoted, sql
from jobmaster.master.schema.migrate import check_schema
from jobmaster.model.archive import ArchiveRange, ArchiveState, LakeFile, Measure
from jobmaster.model.errors import Conflict, JobMasterError, Unavailable
from jobmaster.settings.model import MasterSettings

_APPLICATION_NAME = "jobmaster-archive"
_STATEMENT_SECONDS = 6 * 3600.0
_PATIENCE_SECONDS = 600.0
"""How long a lock is waited for in all. The wait itself requests no lock, so nothing waits behind it."""
_PAUSE_SECONDS = 0.5
_LOOK_SECONDS = 0.02
"""Between two looks at the holders of a table: a statement of an agent or a producer takes less."""
_RETIRING = "job_attic"
"""Name of the lock of sessions that change what is attached to ``job``."""
_ATTICS = ("job_attic", "attempt_attic")
_COPY_PAGES, _SWEEP_PAGES = 2000, 200
_CATCH_UP_ROWS, _CLEAN_JOBS = 5000, 2000
"""What one transaction of the retirement does; some tens of milliseconds."""
_MOVED_ROWS = 10_000
"""Rows that one transaction looks at for jobs that have moved."""
_SWITCH_ROWS = 500
"""How many rows may be copied under the lock on ``job``."""
_FILES = msgspec.json.Decoder(tuple[LakeFile, ...])


class Archive:
    """The manifest. Belongs to the event loop it was made in.

    Every method raises ``Unavailable`` when the master cannot be reached, ``OutcomeUnknown`` when a step may or may not
    have been committed (look at ``ranges`` and go on from there), and ``Refused`` when the master refuses.
    """

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self._connection = connection

    @classmethod
    async def connect(cls, *, dsn: str, schema: str, settings: MasterSettings) -> Archive:
        """Connect, and refuse a schema that is not this program's."""
        probe = ConnectionPool(ConnectionFactory(dsn, schema, settings, _APPLICATION_NAME), 1)
        try:
            await check_schema(StatementRunner(probe), schema)
        finally:
            await probe.close()
        connector = DatabaseConnector(dsn, password=password_of(settings))
        try:
            connection = await connector.connect(
                settings.connect_timeout_seconds,
                server_settings={
                    "search_path": quoted(schema),
                    "application_name": _APPLICATION_NAME,
                    "timezone": "UTC",
                    "jit": "off",
                    "statement_timeout": f"{_STATEMENT_SECONDS * 1000:.0f}",
                    "lock_timeout": f"{settings.lock_timeout_seconds * 1000:.0f}",
                    # A dead archiver must not hold its range for the two hours that TCP would take to notice.
                    "tcp_keepalives_idle": "30",
                    "tcp_keepalives_interval": "10",
                    "tcp_keepalives_count": "3",
                },
            )
        except errors.DRIVER_ERRORS as error:
            raise errors.connecting(error, connector.place) from error
        return cls(connection)

    async def close(self) -> None:
        """Give the connection and every lock back."""
        try:
            await self._connection.close(timeout=2.0)
        except errors.DRIVER_ERRORS:
            self._connection.terminate()

    # ------------------------------------------------------------ looking

    async def ranges(self) -> list[ArchiveRange]:
        """Every range of the manifest, oldest first."""
        return [_range(row) for row in await self._run("archive/manifest", writes=False)]

    async def range(self, name: str) -> ArchiveRange | None:
        """One of them."""
        return next((found for found in await self.ranges() if found.name == name), None)

    async def oldest(self) -> tuple[str, bytes, bytes] | None:
        """Name, first id and first id beyond of the oldest range that is still a partition of ``job``."""
        rows = await self._run("archive/attached", writes=False)
        return (rows[0]["name"], rows[0]["lo"].bytes, rows[0]["hi"].bytes) if rows else None

    async def leaving(self, bound: bytes) -> list[str]:
        """Names of the ranges that are partitions of ``job`` and lie wholly below an id, oldest first."""
        rows = await self._run("archive/attached", writes=False)
        return [row["name"] for row in rows if row["hi"].bytes <= bound]

    async def pages(self, table: str) -> int:
        """How long a table is, in pages."""
        return int((await self._run("archive/page_count", table, writes=False))[0]["pages"])

    async def measure(self, found: ArchiveRange) -> tuple[Measure, datetime | None, datetime | None]:
        """What the tables of a detached range hold, and the first and last end of its jobs."""
        row = (await self._run("archive/checksum", found.name, found.attempts, writes=False))[0]
        measure = Measure(row["rows"], int(row["checksum"]), row["attempt_rows"], int(row["attempt_checksum"]))
        return measure, row["ended_from"], row["ended_to"]

    # ------------------------------------------------------------ one archiver a range

    async def take(self, name: str) -> bool:
        """Reserve the range for this connection; False while another connection has it."""
        return bool((await self._run("archive/lock_range", name))[0]["taken"])

    async def let_go(self, name: str) -> None:
        """Give the range back."""
        await self._run("archive/unlock_range", name)

    # ------------------------------------------------------------ steps

    async def seal(self, below: datetime) -> str | None:
        """Choose the oldest range if all of it was created before a moment; its name."""
        rows = await self._run("archive/seal", below)
        return rows[0]["name"] if rows else None

    async def detach(self, below: datetime, progress: Callable[[str], None] = lambda _: None) -> tuple[str, int] | None:
        """The oldest range leaves ``job``; its name, and how many unfinished jobs moved to the attic.

        A call that was killed is continued: of a range whose leaving has begun, this is the rest.

        Args:
            below: nothing that was created before it may be held by an agent store alone.

        Raises:
            Unavailable: a transaction kept the tables busy for ten minutes, or another session is retiring ranges. The range
                leaves with the next call.
        """
        async with self._retiring(progress):
            if (left := await self._cleaned()) is not None:
                return left
            oldest = await self.oldest()
            if oldest is None:
                return None
            begun = (await self._patiently("archive/retire_begin", progress, (oldest[0], *_ATTICS), below))[0]["name"]
            if begun is None:
                return None
            await self._patiently("archive/retire_bound", progress, ("attempt_attic",))
            await self._run("archive/retire_prove")
            while (await self._run("archive/retire_copy", _COPY_PAGES))[0]["more"]:
                pass
            tables = ("job", "attempt", begun, *_ATTICS)
            while True:
                while (await self._run("archive/retire_catch_up", _CATCH_UP_ROWS))[0]["taken"] > _SWITCH_ROWS:
                    pass
                if (await self._patiently("archive/retire_switch", progress, tables, _SWITCH_ROWS))[0]["name"]:
                    return await self._cleaned()

    async def finish(self, progress: Callable[[str], None] = lambda _: None) -> str | None:
        """What a killed call has left: a range that has left ``job`` and is not DETACHED yet; its name."""
        async with self._retiring(progress):
            left = await self._cleaned()
        return left[0] if left is not None else None

    async def sweep(self, ended_before: datetime, progress: Callable[[str], None] = lambda _: None) -> str | None:
        """Stragglers that ended in the attic leave as a range of their own; its name."""
        async with self._retiring(progress):
            await self._cleaned()
            begun = (await self._run("archive/sweep_begin", ended_before))[0]
            name: str | None = begun["name"]
            if name is None:
                return None
            for page in range(0, begun["pages"], _SWEEP_PAGES):
                await self._run("archive/sweep_pages", name, ended_before, page, page + _SWEEP_PAGES)
            swept = (await self._patiently("archive/sweep_end", progress, (name,), name))[0]["swept"]
            return name if swept else None

    async def forget_moved(self, before: datetime, progress: Callable[[str], None] = lambda _: None) -> int:
        """Rows of jobs that moved to another master before a moment leave an archived cluster; how many. None leave a cluster
        in another mode, or one whose move was interrupted."""
        forgotten: int = 0
        last = UUID(int=0)
        async with self._retiring(progress):
            while True:
                row = (await self._run("cluster/forget_moved", before, last, _MOVED_ROWS))[0]
                forgotten += row["forgotten"]
                if row["last"] is None:
                    return forgotten
                last = row["last"]

    async def _cleaned(self) -> tuple[str, int] | None:
        """What is left to do after a range has left ``job``; its name and how many jobs moved, if there is one."""
        rows = await self._run("archive/retirement", writes=False)
        if not rows or not rows[0]["left_job"]:
            return None
        while (await self._run("archive/retire_clean", _CLEAN_JOBS))[0]["more"]:
            pass
        found = await self.range(rows[0]["name"])
        assert found is not None
        assert found.moved is not None
        return found.name, found.moved

    @asynccontextmanager
    async def _retiring(self, progress: Callable[[str], None]) -> AsyncIterator[None]:
        """One session at a time changes what is attached; the others wait."""
        waited = 0.0
        while not await self.take(_RETIRING):
            if waited == 0:
                progress("waiting for another session that retires ranges")
            if waited >= _PATIENCE_SECONDS:
                raise Unavailable(
                    f"another session has been retiring ranges for {_PATIENCE_SECONDS:.0f} s",
                    hint="look for jobmaster-archive in pg_stat_activity; run the command again when it has ended",
                )
            await asyncio.sleep(_PAUSE_SECONDS)
            waited += _PAUSE_SECONDS
        try:
            yield
        finally:
            with suppress(JobMasterError):  # the lock ends with the session
                await self.let_go(_RETIRING)

    async def note_run(self, agent_id: bytes, after_seconds: float, *, discards: bool, blocked: str | None) -> None:
        """Record a look of the leader for ranges past the lifetime of jobs.

        Args:
            blocked: why the next range could not leave; ``None``: nothing older is left.
        """
        await self._run("archive/note_run", UUID(bytes=agent_id), after_seconds, discards, blocked)

    async def exported(
        self,
        found: ArchiveRange,
        lake: str,
        format_: int,
        run_id: str,
        measured: tuple[Measure, datetime | None, datetime | None],
    ) -> ArchiveRange:
        """DETACHED -> EXPORTED: the files of this run are written, and must hold what ``measure`` returned for the tables."""
        measure, first, last = measured
        await self._step(
            *("archive/exported", found.name, run_id, lake, format_, measure.rows, str(measure.checksum)),
            *(measure.attempt_rows, str(measure.attempt_checksum), first, last),
        )
        return await self._again(found.name)

    async def verified(self, found: ArchiveRange, files: tuple[LakeFile, ...]) -> ArchiveRange:
        """EXPORTED -> VERIFIED. The caller has compared count and checksum."""
        await self._step("archive/verified", found.name, found.run_id, msgspec.json.encode(files).decode())
        return await self._again(found.name)

    async def published(self, found: ArchiveRange) -> ArchiveRange:
        """VERIFIED -> PUBLISHED."""
        await self._step("archive/published", found.name, found.run_id)
        return await self._again(found.name)

    async def export_again(self, found: ArchiveRange) -> ArchiveRange:
        """EXPORTED, VERIFIED or PUBLISHED -> DETACHED: its files are not what they should be."""
        await self._step("archive/export_again", found.name, found.run_id)
        return await self._again(found.name)

    async def rewritten(
        self, found: ArchiveRange, run_id: str, files: tuple[LakeFile, ...], measure: Measure, forgotten: int
    ) -> ArchiveRange:
        """The files of a DROPPED range are those of another run. The caller has compared count and checksum.

        Args:
            forgotten: jobs that the new files lack.
        """
        await self._step(
            *("archive/rewritten", found.name, found.run_id, run_id, msgspec.json.encode(files).decode()),
            *(measure.rows, str(measure.checksum), measure.attempt_rows, str(measure.attempt_checksum), forgotten),
        )
        return await self._again(found.name)

    async def drop(self, name: str, *, discard: bool = False, progress: Callable[[str], None] = lambda _: None) -> bool:
        """The tables go. False when they were gone before.

        Raises:
            Refused: the range is not PUBLISHED (nor DETACHED and to be discarded), or its tables have changed.
        """
        tables = (name, name.replace("job", "attempt", 1))
        return bool((await self._patiently("archive/drop_range", progress, tables, name, discard))[0]["dropped"])

    # ------------------------------------------------------------ calls

    async def _step(self, name: str, *values: object) -> None:
        if not await self._run(name, *values):
            raise Conflict(
                f"range {values[0]} is in another state than this archiver left it in",
                hint="another archiver worked on it; run the command again",
            )

    async def _again(self, name: str) -> ArchiveRange:
        found = await self.range(name)
        if found is None:
            raise Conflict(f"range {name} is no longer in the manifest")
        return found

    async def _patiently(
        self, name: str, progress: Callable[[str], None], tables: Sequence[str], *values: object
    ) -> list[asyncpg.Record]:
        """A statement that needs ``tables`` to itself for an instant.

        A request for a lock makes all later requests wait, too. So it is made only when no transaction has held
        the tables for long, and is given up after a tenth of a second; the long wait before it is only a look now and then.
        """
        waited = 0.0
        while True:
            waited = await self._seldom_held(name, tables, progress, waited)
            try:
                return await self._connection.fetch(sql(name), *values)
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
                if waited >= _PATIENCE_SECONDS:
                    raise Unavailable(
                        f"{name} did not get its lock: transactions keep {', '.join(tables)} busy ({error})",
                        hint="look for long transactions in pg_stat_activity, then run the command again",
                    ) from error
                pause = _PAUSE_SECONDS * (0.5 + random.random())
                await asyncio.sleep(pause)
                waited += pause
            except errors.DRIVER_ERRORS as error:
                raise errors.calling(error, name, writes=True) from error

    async def _seldom_held(
        self, name: str, tables: Sequence[str], progress: Callable[[str], None], waited: float
    ) -> float:
        """Wait until no transaction holds one of the tables in two looks one after the other; how long that took."""
        before: dict[str, int | None] = {}
        pause = _LOOK_SECONDS
        while True:
            held = {row["holder"]: row["pid"] for row in await self._run("archive/holders", tables, writes=False)}
            stuck = before.keys() & held.keys()
            if not held or (before and not stuck):
                return waited
            if stuck and waited >= _PATIENCE_SECONDS:
                raise Unavailable(
                    f"{name} did not get its lock: process {held[min(stuck)]} of the master has kept {', '.join(tables)} "
                    f"busy for {waited:.0f} s",
                    hint="look for that process in pg_stat_activity, then run the command again",
                )
            if stuck and pause == _LOOK_SECONDS:
                progress("waiting for a moment without long transactions")
                pause = _PAUSE_SECONDS
            before = held
            await asyncio.sleep(pause)
            waited += pause

    async def _run(self, name: str, *values: object, writes: bool = True) -> list[asyncpg.Record]:
        try:
            return await self._connection.fetch(sql(name), *values)
        except errors.DRIVER_ERRORS as error:
            raise errors.calling(error, name, writes=writes) from error


def _range(row: asyncpg.Record) -> ArchiveRange:
    measure: Any = None
    if row["rows"] is not None:
        measure = Measure(row["rows"], int(row["checksum"]), row["attempt_rows"], int(row["attempt_checksum"]))
    return ArchiveRange(
        name=row["name"],
        attempts=row["attempts"],
        state=ArchiveState(row["state"]),
        lo=row["lo"].bytes,
        hi=row["hi"].bytes,
        moved=row["moved"],
        discarded=row["discarded"],
        measure=measure,
        run_id=row["run_id"],
        lake=row["lake"],
        format=row["format"],
        files=_FILES.decode(row["files"]) if row["files"] else (),
        ended_from=row["ended_from"],
        ended_to=row["ended_to"],
        detached_at=row["detached_at"],
        published_at=row["published_at"],
        dropped_at=row["dropped_at"],
    )
