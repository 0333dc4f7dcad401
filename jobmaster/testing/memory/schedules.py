"""The schedules of a cluster in memory. None fires by itself: a test computes fires, or runs a schedule."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from jobmaster.handlers import Handlers
from jobmaster.model.job import NewJob
from jobmaster.model.schedule import Fire, FireOutcome, Overlap, Schedule, ScheduleRow, ScheduleSource
from jobmaster.ports import NextUs, RunNowAnswer
from jobmaster.rules.recurrence import next_fire_us
from jobmaster.settings.schedules import declared_schedules
from jobmaster.testing.memory.rows import MemoryRows


class MemorySchedules:
    """``ClientSchedules`` over rows in memory.

    Args:
        handlers: their schedules are declared, as an agent declares them.
    """

    def __init__(self, rows: MemoryRows, handlers: Handlers) -> None:
        self._rows = rows
        self._handlers = handlers

    async def put(self, schedules: Sequence[Schedule], next_us: NextUs) -> list[str]:
        """Definitions by the API; the names that the code declares, of which nothing was put."""
        now_us, declared = self._rows.clock.wall_us(), self._all()
        refused = [
            one.name for one in schedules
            if (there := declared.get(one.name)) is not None and there.source is not ScheduleSource.API
            and there.retired_us is None
        ]  # fmt: skip
        for one in schedules:
            if one.name in refused:
                continue
            before = declared.get(one.name)
            row = ScheduleRow(one, ScheduleSource.API, now_us, 1, next_us(one, now_us), None, "", "", None, "", now_us)
            if before is not None:
                row = row._replace(
                    revision=before.revision + 1,
                    paused_us=before.paused_us,
                    paused_by=before.paused_by,
                    paused_reason=before.paused_reason,
                )
            self._rows.schedules[one.name] = row
        return refused

    async def pause(self, names: Sequence[str] | None, tag: str | None, actor: str, reason: str) -> list[str]:
        """They are shown as paused."""
        now_us = self._rows.clock.wall_us()
        chosen = [row for row in self._chosen(names, tag) if row.paused_us is None]
        return self._keep([row._replace(paused_us=now_us, paused_by=actor, paused_reason=reason) for row in chosen])

    async def resume(self, rows: Sequence[ScheduleRow], next_us: NextUs, actor: str) -> list[str]:
        """They are no longer shown as paused."""
        paused = [row for row in rows if row.paused_us is not None and self._is_as_read(row)]
        return self._keep([row._replace(paused_us=None, paused_by="", paused_reason="") for row in paused])

    async def remove(self, names: Sequence[str] | None, tag: str | None, actor: str) -> list[str]:
        """They are retired."""
        now_us = self._rows.clock.wall_us()
        chosen = self._chosen(names, tag)
        return self._keep([row._replace(retired_us=now_us, retired_reason=f"removed by {actor}") for row in chosen])

    async def run_now(
        self, row: ScheduleRow, job_id: bytes, now_us: int, headers: bytes, actor: str
    ) -> RunNowAnswer | None:
        """A job that is due now; ``None``: the schedule has changed since it was read, or is retired."""
        schedule = row.schedule
        if not self._is_as_read(row) or row.retired_us is not None:
            return None
        fires = self._rows.fires.setdefault(schedule.name, [])
        with self._rows.lock:
            unended = [
                fire.job_id
                for fire in fires
                if fire.job_id is not None
                and (job := self._rows.jobs.get(fire.job_id)) is not None
                and not job.state.final
            ]
            if unended and schedule.overlap in (Overlap.SKIP, Overlap.QUEUE):
                return RunNowAnswer(FireOutcome.SKIPPED, schedule.lane, schedule.priority, unended[0])
            if schedule.overlap is Overlap.CANCEL_PREVIOUS:
                for one in unended:
                    self._rows.jobs[one].cancel()
            self._rows.insert(
                NewJob(job_id, schedule.priority, schedule.lane, schedule.handler, schedule.args, headers, now_us)
            )
            fires.append(Fire(schedule.name, now_us, FireOutcome.FIRED, job_id, now_us, None, True))
        if schedule.overlap is not Overlap.PARALLEL:  # as in the master, where the job that a person made is the newest
            self._keep([row])
        return RunNowAnswer(FireOutcome.FIRED, schedule.lane, schedule.priority, unended[0] if unended else None)

    async def fires(self, name: str, limit: int) -> list[Fire]:
        """Fires that a test asked for, the newest first."""
        return list(reversed(self._rows.fires.get(name, [])))[:limit]

    async def list(
        self,
        names: Sequence[str] | None = None,
        *,
        tag: str | None = None,
        retired: bool = False,
        after: str = "",
        limit: int = 1000,
    ) -> builtins.list[ScheduleRow]:
        """Schedules in the order of their names."""
        found = [
            row for name, row in sorted(self._all().items())
            if name > after and (names is None or name in names) and (tag is None or tag in row.schedule.tags)
            and (retired or row.retired_us is None)
        ]  # fmt: skip
        return found[:limit]

    def _chosen(self, names: Sequence[str] | None, tag: str | None) -> builtins.list[ScheduleRow]:
        return [
            row for name, row in sorted(self._all().items())
            if (names is None or name in names) and (tag is None or tag in row.schedule.tags) and row.retired_us is None
        ]  # fmt: skip

    def _is_as_read(self, row: ScheduleRow) -> bool:
        """Nothing but time has changed it since it was read."""
        there = self._all().get(row.schedule.name)
        return there is not None and there.revision == row.revision

    def _keep(self, rows: Sequence[ScheduleRow]) -> builtins.list[str]:
        """Keep changed rows; their names."""
        for row in rows:
            self._rows.schedules[row.schedule.name] = row._replace(revision=row.revision + 1)
        return [row.schedule.name for row in rows]

    def _all(self) -> dict[str, ScheduleRow]:
        """Those that the code declares, and what was changed or put."""
        now_us = self._rows.clock.wall_us()
        found = {
            one.schedule.name: ScheduleRow(one.schedule, one.source, now_us, 1, None, None, "", "", None, "", now_us)
            for one in declared_schedules(self._rows.settings, self._handlers)
        }
        return {
            name: row._replace(next_us=next_fire_us(row.schedule, now_us), now_us=now_us)
            for name, row in (found | self._rows.schedules).items()
        }
