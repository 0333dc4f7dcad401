"""Lists and counts of jobs by filter.

The jobs of a filter are found in one of two ways. Where the filter names states or due times that have an index, their ids
are read from it, and the few jobs are compared by their ids. Otherwise, and where they are many, the primary key is read
from its newest id downwards, in steps. Each statement reads a bounded number of rows, however few of them fit: a rare filter
over a long history takes many statements, and none of them takes long. A list that has a time ends between two of them.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from jobmaster.clock import Clock
from jobmaster.model.errors import InputError
from jobmaster.model.job_view import JobFilter, JobView, id_before
from jobmaster.ports import Queries

LIMIT, LIMIT_MAX = 100, 1000
"""Jobs of one page: the default, and the most."""
COUNTED, COUNTED_MAX = 10_000, 1_000_000
"""The number at which a count ends: the default, and the highest."""
READS, READS_MAX, READS_GROWTH = 1000, 64_000, 4
"""Rows that the first step reads, that one step reads at most, and how much more the next one reads."""
INDEXED_MAX = 20_000
"""Ids that are read from an index; of more jobs than these the primary key is read."""
_BY_ID = 1000
_INDEXED_FIELDS = frozenset({"states", "lane", "priority", "due_after_us", "due_before_us"})
"""Fields that the index of the waiting jobs decides alone."""


class JobCount(NamedTuple):
    """How many jobs fit a filter."""

    jobs: int
    exact: bool
    """False: there are at least so many; the count ended there."""

    def __str__(self) -> str:
        return f"{self.jobs:,}{'' if self.exact else '+'}".replace(",", " ")


class JobList(list[JobView]):
    """One page of jobs, the newest first."""

    searched_to: UUID | None = None
    """The list has ended here, because its time was over: older jobs were not looked at. The next page is that with
    ``after=searched_to``. ``None``: the page is full, or the last one."""


class _Budget:
    """The time of one list, and how many rows its next step may read.

    Args:
        seconds: ``None``: as long as it takes.
    """

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._now = clock.boottime
        self._ends = None if seconds is None else self._now() + seconds
        self._began = self._now()
        self.reads = READS

    @property
    def is_over(self) -> bool:
        """Whether no further step begins."""
        return self._ends is not None and self._now() >= self._ends

    def grow(self) -> None:
        """After a step: more rows, as far as the time that is left allows by the pace of that step."""
        began, self._began = self._began, self._now()
        more = min(self.reads * READS_GROWTH, READS_MAX)
        if self._ends is not None and self._began > began:
            affordable = self.reads * (self._ends - self._began) / (self._began - began)
            more = max(min(more, int(affordable)), READS)
        self.reads = more


async def list_jobs(
    queries: Queries,
    chosen: JobFilter,
    clock: Clock,
    *,
    limit: int,
    after: bytes | None,
    payload: bool,
    seconds: float | None,
) -> JobList:
    """One page of jobs with a row in the master; see ``Cluster.jobs``."""
    if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
        raise InputError(
            f"'limit' must be a whole number from 1 to {LIMIT_MAX}, not {limit!r}",
            hint="read the next page with after=page[-1]",
        )
    highest = chosen.highest if after is None else min(chosen.highest, id_before(after))
    if seconds is not None and (type(seconds) not in (int, float) or not seconds > 0):
        raise InputError(f"'at_most_seconds' must be a number of seconds above 0, not {seconds!r:.200}")
    budget = _Budget(clock, seconds)
    found = JobList()
    indexed = await queries.waiting_ids(chosen, INDEXED_MAX + 1)
    if indexed is not None and len(indexed) <= INDEXED_MAX:
        ids = sorted((one for one in indexed if chosen.lowest <= one <= highest), reverse=True)
        for start in range(0, len(ids), _BY_ID):
            found += await queries.jobs_of(chosen, ids[start : start + _BY_ID], payload=payload)
            if len(found) >= limit:
                del found[limit:]
                break
            if budget.is_over and start + _BY_ID < len(ids):
                found.searched_to = UUID(bytes=ids[start + _BY_ID - 1])
                break
        return found
    ranges = await id_ranges(queries, chosen, highest)
    for number, (lowest, top) in enumerate(ranges, 1):
        while lowest <= top:
            step = await queries.jobs(
                chosen, lowest, top, reads=budget.reads, limit=limit - len(found), payload=payload
            )
            found += step.jobs
            if len(found) == limit:
                return found
            top = id_before(step.read_to)
            budget.grow()
            if budget.is_over and (lowest <= top or number < len(ranges)):
                found.searched_to = UUID(bytes=step.read_to)
                return found
    return found


async def count_jobs(queries: Queries, chosen: JobFilter, *, at_most: int) -> JobCount:
    """How many jobs with a row in the master fit; see ``Cluster.count``."""
    if type(at_most) is not int or not 1 <= at_most <= COUNTED_MAX:
        raise InputError(f"'at_most' must be a whole number from 1 to {COUNTED_MAX}, not {at_most!r}")
    whole = chosen.__struct_fields__
    alone = all(field in _INDEXED_FIELDS or not getattr(chosen, field) for field in whole)
    indexed = await queries.waiting_ids(chosen, at_most + 1 if alone else INDEXED_MAX + 1)
    if indexed is not None and (alone or len(indexed) <= INDEXED_MAX):
        fitting = len(indexed) if alone else await _count_of(queries, chosen, indexed)
        return JobCount(min(fitting, at_most), fitting <= at_most)
    jobs, reads = 0, READS
    for lowest, top in await id_ranges(queries, chosen, chosen.highest):
        while lowest <= top:
            step = await queries.count(chosen, lowest, top, reads=reads, limit=at_most + 1 - jobs)
            jobs += step.jobs
            if jobs > at_most:
                return JobCount(at_most, False)
            top = id_before(step.read_to)
            reads = min(reads * READS_GROWTH, READS_MAX)
    return JobCount(jobs, True)


async def _count_of(queries: Queries, chosen: JobFilter, ids: list[bytes]) -> int:
    ids = sorted(ids)
    pages = [ids[start : start + _BY_ID] for start in range(0, len(ids), _BY_ID)]
    return sum([len(await queries.jobs_of(chosen, page, payload=False)) for page in pages])


async def id_ranges(queries: Queries, chosen: JobFilter, highest: bytes) -> list[tuple[bytes, bytes]]:
    """The ranges of ids in which the jobs of a filter lie, the newest first."""
    lowest = chosen.lowest
    ranges = [(lowest, highest)]
    if chosen.batch is not None:
        ranges = await queries.id_ranges(chosen.batch.bytes, None)
    elif chosen.workflow is not None:
        # A workflow that is forgotten leaves jobs whose ids are not below its own.
        ranges = await queries.id_ranges(None, chosen.workflow.bytes) or [(chosen.workflow.bytes, highest)]
    within = [(max(low, lowest), min(high, highest)) for low, high in ranges]
    return [(low, high) for low, high in within if low <= high]
