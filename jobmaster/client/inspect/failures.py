"""Groups of failed jobs, counted step by step from the newest job backwards."""

from __future__ import annotations

import msgspec

from jobmaster.client.jobs.listing import READS, READS_GROWTH, id_ranges
from jobmaster.model.errors import InputError
from jobmaster.model.inspection.failures import FailureGroup, Failures
from jobmaster.model.job import JobState
from jobmaster.model.job_view import JobFilter, id_before
from jobmaster.ports import Queries
from jobmaster.ports.inspection import InspectionQueries

GROUPS, GROUPS_MAX = 50, 1000
"""Groups that are listed: the default, and the most."""
WINDOW_SECONDS = 86_400.0
"""How long ago the oldest jobs were created, unless the caller says otherwise."""
STEP_ROWS_MAX = 16_000
"""Rows of one step: the errors of many jobs are decoded."""
ROWS_MAX, JOBS_MAX = 1_000_000, 100_000
"""Rows that are read at most, and jobs after which no further step is read."""


async def group_failures(queries: Queries, reads: InspectionQueries, chosen: JobFilter, *, limit: int) -> Failures:
    """See ``Inspection.failures``."""
    given: object = limit
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= GROUPS_MAX:
        raise InputError(f"'limit' must be a whole number from 1 to {GROUPS_MAX}, not {limit!r:.200}")
    if not chosen.states:
        chosen = msgspec.structs.replace(chosen, states=(JobState.FAILED,))
    groups: dict[str, FailureGroup] = {}
    rows, jobs, step_rows = 0, 0, READS
    complete = True
    for lowest, top in await id_ranges(queries, chosen, chosen.highest):
        while lowest <= top and rows < ROWS_MAX and jobs < JOBS_MAX:
            step = await reads.failures(chosen, lowest, top, reads=step_rows)
            for group in step.groups:
                groups[group.fingerprint] = _together(groups.get(group.fingerprint), group)
            rows += step_rows
            jobs += sum(group.jobs for group in step.groups)
            top = id_before(step.read_to)
            step_rows = min(step_rows * READS_GROWTH, STEP_ROWS_MAX)
        complete = lowest > top
        if not complete:
            break
    ordered = sorted(groups.values(), key=lambda group: (-group.jobs, group.fingerprint))
    return Failures(groups=tuple(ordered[:limit]), jobs=jobs, complete=complete)


def _together(newer: FailureGroup | None, older: FailureGroup) -> FailureGroup:
    """The group of two steps; the sample is that of the newer jobs."""
    if newer is None:
        return older
    times = [at for at in (newer.first_at, newer.last_at, older.first_at, older.last_at) if at is not None]
    return msgspec.structs.replace(
        newer, jobs=newer.jobs + older.jobs, first_at=min(times, default=None), last_at=max(times, default=None)
    )
