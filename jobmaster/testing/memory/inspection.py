"""What operators see of a cluster in memory: no agent runs and no bucket exists; what waits has rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from jobmaster.model.inspection.failures import FailureGroup
from jobmaster.model.inspection.views import AgentView, BucketEvent, BucketView, OperatorAct, RescueView
from jobmaster.model.job import JobState
from jobmaster.model.job_view import JobFilter, JobView
from jobmaster.ports.inspection import FailureStep, FullLimit, HeldGroup, Inspected, OrderedJob
from jobmaster.rules.failure_group import error_fingerprint, error_line
from jobmaster.testing.memory.rows import MemoryRows


class MemoryInspection:
    """``jobmaster.ports.inspection.InspectionQueries`` over rows in memory."""

    def __init__(self, rows: MemoryRows, fitting: Callable[[JobFilter, Sequence[bytes]], list[JobView]]) -> None:
        self._rows = rows
        self._fitting = fitting

    async def now(self) -> Inspected:
        """The clock of the rows; nothing leads."""
        return Inspected(self._rows.clock.wall_us(), None)

    async def agents(self, *, ended: bool) -> list[AgentView]:
        """None."""
        return []

    async def cordoned_hosts(self, deaths: int, cordon_seconds: float) -> dict[str, float]:
        """None."""
        return {}

    async def buckets(self, *, retired: bool) -> list[BucketView]:
        """None."""
        return []

    async def bucket_history(self, bucket_id: bytes) -> list[BucketEvent]:
        """None."""
        return []

    async def rescues(self, seconds: float | None, *, unfinished: bool, limit: int) -> list[RescueView]:
        """None."""
        return []

    async def held(self, grace_seconds: float, count_max: int) -> list[HeldGroup]:
        """HELD rows by lane and priority."""
        now_us = self._rows.clock.wall_us()
        groups: dict[tuple[str, int], list[int]] = defaultdict(list)
        for job in self._rows.jobs.values():
            if job.state is JobState.HELD:
                groups[job.lane, job.priority].append(job.entry.due_us)
        return [
            HeldGroup(
                *group,
                len(dues),
                sum(due <= now_us for due in dues),
                sum(due <= now_us - grace_seconds * 1e6 for due in dues),
                min(dues),
            )
            for group, dues in sorted(groups.items())
        ]

    async def paused_schedules(self) -> list[str]:
        """None is listed."""
        return []

    async def acts(
        self, subject: str | None, actor: str | None, seconds: float | None, limit: int
    ) -> list[OperatorAct]:
        """There is no log."""
        return []

    async def failures(self, chosen: JobFilter, lowest: bytes, highest: bytes, *, reads: int) -> FailureStep:
        """Rows with an error, all of them in one step."""
        in_range = [one for one in self._rows.jobs if lowest <= one <= highest]
        groups: dict[str, list[JobView]] = defaultdict(list)
        for view in self._fitting(chosen, in_range):
            if view.error is not None:
                groups[error_fingerprint(view.handler, view.error.type, view.error.message)].append(view)
        return FailureStep(lowest, [_group(fingerprint, views) for fingerprint, views in groups.items()])

    async def ordered_before(self, key: str, job_id: bytes) -> OrderedJob | None:
        """The first job of the key that has not ended."""
        earlier = sorted(
            job_id_
            for job_id_, job in self._rows.jobs.items()
            if job_id_ < job_id and not job.state.final and job.view().headers.ordering_key == key
        )
        return OrderedJob(earlier[0], self._rows.jobs[earlier[0]].state) if earlier else None

    async def ahead(self, lane: str, priority: int, due_us: int, count_max: int) -> int:
        """HELD rows that are due before."""
        waiting = [
            job
            for job in self._rows.jobs.values()
            if (job.state, job.lane, job.priority) == (JobState.HELD, lane, priority) and job.entry.due_us < due_us
        ]
        return min(len(waiting), count_max)

    async def full_limits(self, bucket_id: bytes, seconds: float) -> list[FullLimit]:
        """No agent has asked for a permit."""
        return []


def _group(fingerprint: str, views: list[JobView]) -> FailureGroup:
    error, times = views[0].error, [view.changed_at for view in views if view.changed_at is not None]
    assert error is not None
    return FailureGroup(
        fingerprint=fingerprint,
        handler=views[0].handler,
        error_type=error.type,
        line=error_line(error.message),
        jobs=len(views),
        first_at=min(times, default=None),
        last_at=max(times, default=None),
        sample=views[0].id,
    )
