"""How callers name jobs: by receipts, views and ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from uuid import UUID

from jobmaster.client.bulk import IdList
from jobmaster.client.receipts import JobReceipt
from jobmaster.model import ids
from jobmaster.model.errors import InputError
from jobmaster.model.job_view import JobView

JobRef = bytes | str | UUID | JobReceipt[Any] | JobView
"""A job by its receipt, its view, its UUID, the UUID's text or its 16 bytes. A receipt is the fastest: it has the bucket."""


def job_id_of(job: object) -> bytes:
    """The 16 bytes of the id of a job."""
    return ref_of(job)[0]


def ref_of(job: object) -> tuple[bytes, bytes | None]:
    """Id and, from a receipt, bucket."""
    if isinstance(job, JobReceipt | JobView):
        return job.id_bytes, job.bucket_id
    if isinstance(job, bytes | str | UUID):
        try:
            return ids.parse(job), None
        except ValueError as error:
            raise InputError(f"{job!r} is not the id of a job: {error}") from None
    raise InputError(f"a job is named by a receipt, a view or an id, not by {type(job).__name__}")


class Watched(NamedTuple):
    """The jobs of one wait."""

    job_ids: list[bytes]
    doubtful: set[bytes]
    """Those that may not exist: an id, unlike a receipt or a view, can be anything."""


def watched(jobs: Iterable[Any]) -> Watched:
    """The ids of these jobs, and which of them may not exist."""
    if isinstance(jobs, IdList):  # of a summary: submitted here
        return Watched(list(jobs.as_bytes()), set())
    job_ids, doubtful = [], set()
    for job in jobs:
        job_id = job_id_of(job)
        job_ids.append(job_id)
        if not isinstance(job, JobReceipt | JobView):
            doubtful.add(job_id)
    return Watched(job_ids, doubtful)
