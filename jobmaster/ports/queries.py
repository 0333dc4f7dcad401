"""What people and clients read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from jobmaster.model.agent import Agent, HandlerSpec
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.ids import Identity
from jobmaster.model.job import JobState, JobView, NewJob
from jobmaster.rules.serving import Lack


class SentRow(NamedTuple):
    """What a row says about a job that is sent again."""

    state: JobState
    handler: str
    args: bytes
    bucket_id: bytes | None


class Traits(NamedTuple):
    """What matters of an owner of buckets to who gives it jobs."""

    handlers: frozenset[str]
    share: float
    """Jobs it takes, against those of an owner with share 1."""


EVERY_OWNER = b""
"""Stands for all owners where they are alike."""


class SentBefore(NamedTuple):
    """What the master knows of jobs that may have been sent before."""

    rows: dict[bytes, SentRow]
    """By id; only those that have a row."""
    strangers: bool
    """There is a bucket which may hold jobs and was not among those named."""


class Queries(Protocol):
    """What people and clients read."""

    async def get(self, job_id: bytes) -> JobView | None: ...

    async def states(self, job_ids: Sequence[bytes]) -> dict[bytes, JobState]: ...

    async def sent_before(self, job_ids: Sequence[bytes], bucket_ids: Sequence[bytes]) -> SentBefore:
        """The rows of these jobs, and whether there are buckets beyond these at the same moment."""
        ...

    async def buckets(self, *, states: Sequence[BucketState] = ()) -> list[Bucket]:
        """Buckets in some states (none named: all), in no order."""
        ...

    async def agents(self, *, all_: bool = False) -> list[Agent]: ...

    async def handlers(self) -> dict[str, HandlerSpec]: ...

    async def confirm(
        self, job_id: bytes, identity: Identity, result: bytes | None, actor: str
    ) -> tuple[bool, JobState | None]:
        """Confirm a run from outside: whether it is confirmed now, and the state of the job (``None``: no row)."""
        ...

    async def served(self) -> dict[bytes, Traits]:
        """Owner of buckets -> its traits; ``EVERY_OWNER`` alone when all are alike, nothing when there is none."""
        ...

    async def lacks(self, job_ids: Sequence[bytes]) -> dict[bytes, Lack]:
        """Those of the jobs that wait in the master for a handler nobody brings, and what is missing."""
        ...

    async def cancel(self, job_id: bytes, *, tombstone: NewJob | None, actor: str) -> JobState | None:
        """Cancel by the table of ``rules.job_machine``: HELD -> CANCELLED; in flight -> flag; no row and a tombstone ->
        CANCELLED row; no row and no tombstone -> ``None``. Returns the state after the call."""
        ...
