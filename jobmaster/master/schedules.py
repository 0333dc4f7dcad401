"""Schedules: their definitions, their fires, and what people do with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from jobmaster.master.driver.connection import Connection, Row, StatementRunner, rows_of, to_us
from jobmaster.model.schedule import (
    LEAD_SECONDS,
    MISFIRE_SECONDS,
    Fire,
    FireOutcome,
    Schedule,
    ScheduleRow,
    ScheduleSource,
)
from jobmaster.ports import DueSchedule, FiredLine, NewFire, NextUs, RunNowAnswer, ScheduleMove

_JSON = msgspec.json.Encoder()
_SCHEDULE = msgspec.json.Decoder(Schedule)
_PAGE = 1000


class Schedules:
    """``jobmaster.ports.Schedules`` on PostgreSQL."""

    def __init__(self, data: StatementRunner, control: StatementRunner) -> None:
        self._data = data
        self._control = control

    # ------------------------------------------------------------ the leader

    async def due(self, limit: int) -> list[DueSchedule]:
        """Schedules whose next fire is to be decided, without their arguments: misfires last."""
        return [
            DueSchedule(
                _SCHEDULE.decode(row["definition"]), row["next_us"], row["decide_us"], row["revision"], row["now_us"]
            )
            for row in await self._control.read("schedules/due", limit, LEAD_SECONDS + MISFIRE_SECONDS)
        ]

    async def fire(
        self, moves: Sequence[ScheduleMove], fires: Sequence[NewFire], lead_seconds: float, leader_epoch: int | None
    ) -> list[FiredLine]:
        """Decide fires of schedules that are still as they were read. The lines that count now."""
        rows = await self._data.write(
            "schedules/fire",
            *_columns(moves, 4),
            *_columns(fires, 7),
            lead_seconds,
            leader_epoch,
            ids=[fire.job_id for fire in fires],
        )
        return [FiredLine(*row) for row in rows]

    async def retire_undeclared(self, grace_seconds: float) -> list[str]:
        """Retire schedules that no living agent has declared for this long, and cancel their jobs that lie ahead; names."""

        async def retire(connection: Connection) -> list[str]:
            names = [row["name"] for row in await rows_of(connection, "schedules/retire_undeclared", grace_seconds)]
            if names:
                await rows_of(connection, "schedules/withdraw", names, [0.0] * len(names))
            return names

        return await self._control.in_transaction("schedules/retire_undeclared", retire)

    # ------------------------------------------------------------ definitions

    async def publish(
        self, agent_id: bytes, source: ScheduleSource, schedules: Sequence[Schedule], next_us: NextUs
    ) -> list[str]:
        """Definitions that an agent declares.

        One replaces a definition of an agent that started earlier, unless it was itself replaced by that definition; and any
        definition that no living agent declares.

        Returns:
            The names whose definition was not put: that of another living agent, or of the API, stands.
        """
        names = [schedule.name for schedule in schedules]
        digests = [schedule.digest for schedule in schedules]
        rows = await self._control.write("schedules/declare", agent_id, names, digests)
        if not rows or not schedules:
            return []
        put = await self._put(source, rows[0]["started_at"], schedules, next_us)
        return sorted(set(names) - put)

    async def to_republish(self, schedules: Sequence[Schedule]) -> list[str]:
        """Names whose definition in the master is another one, which no living agent declares."""
        names, digests = [schedule.name for schedule in schedules], [schedule.digest for schedule in schedules]
        return sorted(row["name"] for row in await self._control.read("schedules/to_republish", names, digests))

    async def put(self, schedules: Sequence[Schedule], next_us: NextUs) -> list[str]:
        """Definitions by the API, new or changed; the names that agents declare, of which nothing was put."""
        put = await self._put(ScheduleSource.API, None, schedules, next_us)
        return sorted({schedule.name for schedule in schedules} - put)

    async def _put(
        self, source: ScheduleSource, started_at: tuple[int] | None, schedules: Sequence[Schedule], next_us: NextUs
    ) -> set[str]:
        now_us = to_us((await self._control.read("queries/now"))[0][0])
        done: set[str] = set()
        for at in range(0, len(schedules), _PAGE):
            page = sorted(schedules[at : at + _PAGE], key=lambda schedule: schedule.name)
            values = [
                (
                    each.name, each.digest, _JSON.encode(msgspec.structs.replace(each, args=b"{}")), each.handler, each.args,
                    each.priority, each.lane, each.expression, each.zone, each.overlap.value,
                    _JSON.encode(each.tags).decode(), next_us(each, now_us) or 0,
                )
                for each in page
            ]  # fmt: skip

            async def put(connection: Connection, values: Sequence[tuple[Any, ...]] = values) -> list[Row]:
                rows = await rows_of(
                    connection, "schedules/put", source.value, started_at, *_columns(values, 12), LEAD_SECONDS
                )
                if changed := [(row["name"], row["jitter"] or 0.0) for row in rows if row["changed"]]:
                    await rows_of(connection, "schedules/withdraw", *_columns(changed, 2))
                return rows

            done |= {row["name"] for row in await self._control.in_transaction("schedules/put", put)}
        return done

    # ------------------------------------------------------------ people

    async def pause(self, names: Sequence[str] | None, tag: str | None, actor: str, reason: str) -> list[str]:
        """Nothing of these schedules fires until they are resumed, and their jobs that lie ahead are cancelled.

        Args:
            names: ``None``: every one (with the tag).
            tag: ``None``: with any tag.

        Returns:
            The names of those that this call paused.
        """
        return await self._end("schedules/pause", names, tag, actor, reason)

    async def remove(self, names: Sequence[str] | None, tag: str | None, actor: str) -> list[str]:
        """Retire schedules and cancel their jobs that lie ahead; the names of those that this call retired."""
        return await self._end("schedules/remove", names, tag, actor)

    async def _end(self, statement: str, names: Sequence[str] | None, tag: str | None, *args: str) -> list[str]:
        async def end(connection: Connection) -> list[str]:
            rows = await rows_of(connection, statement, None if names is None else list(names), tag, *args)
            ended = [row["name"] for row in rows]
            if ended:
                await rows_of(connection, "schedules/withdraw", ended, [0.0] * len(ended))
            return ended

        return await self._control.in_transaction(statement, end)

    async def resume(self, rows: Sequence[ScheduleRow], next_us: NextUs, actor: str) -> list[str]:
        """Paused schedules fire again, from their next nominal time on; the names of those that this call resumed.

        Args:
            rows: as they were read. One that has changed since is left alone.
        """
        now_us = to_us((await self._control.read("queries/now"))[0][0])
        values = [(row.schedule.name, row.revision, next_us(row.schedule, now_us) or 0) for row in rows]
        resumed = await self._control.write("schedules/resume", *_columns(values, 3), LEAD_SECONDS, actor)
        return [row["name"] for row in resumed]

    async def run_now(
        self, row: ScheduleRow, job_id: bytes, now_us: int, headers: bytes, actor: str
    ) -> RunNowAnswer | None:
        """One fire with the nominal time ``now_us``; ``None``: the schedule has changed or fired since it was read, or is
        retired. Unless its fires may overlap, the job of the next fire that is made ahead is withdrawn."""
        answer = await self._data.write(
            "schedules/run_now",
            row.schedule.name,
            job_id,
            now_us,
            headers,
            row.revision,
            row.next_us or 0,
            actor,
            ids=[job_id],
        )
        if not answer:
            return None
        outcome, lane, priority, previous = answer[0]
        return RunNowAnswer(FireOutcome(outcome), lane, priority, previous)

    # ------------------------------------------------------------ queries

    async def fires(self, name: str, limit: int) -> list[Fire]:
        """The newest lines of a schedule, the newest first."""
        return [
            Fire(schedule, nominal_us, FireOutcome(outcome), job_id, at_us, through_us or None, manual)
            for schedule, nominal_us, outcome, job_id, at_us, through_us, manual in await self._control.read(
                "schedules/fires", name, limit
            )
        ]

    async def list(
        self,
        names: Sequence[str] | None = None,
        *,
        tag: str | None = None,
        retired: bool = False,
        after: str = "",
        limit: int = _PAGE,
    ) -> list[ScheduleRow]:
        """Schedules in the order of their names, after ``after``; retired ones on request."""
        rows = await self._control.read(
            "schedules/list", None if names is None else list(names), tag, retired, after, limit
        )
        return [_row(row) for row in rows]


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


def _row(row: Row) -> ScheduleRow:
    schedule = msgspec.structs.replace(_SCHEDULE.decode(row["definition"]), args=row["args"])
    return ScheduleRow(
        schedule,
        ScheduleSource(row["source"]),
        row["declared_us"],
        row["revision"],
        row["next_us"],
        row["paused_us"],
        row["paused_by"],
        row["paused_reason"],
        row["retired_us"],
        row["retired_reason"],
        row["now_us"],
    )
