"""A job as one row of a list: the same fields for the command line and for the tables that pages give away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jobmaster.client.jobs.timeline import present_attempt
from jobmaster.model.ids import text
from jobmaster.model.job import ErrorInfo
from jobmaster.model.job_view import JobView, iso


class ListedJob(NamedTuple):
    """One row of ``job list``. Times are ISO 8601 in UTC, durations microseconds."""

    id: str
    state: str
    handler: str
    priority: str
    lane: str
    attempt: int
    rescues: int
    token: int
    bucket_id: str | None
    bucket_epoch: int | None
    cancel_requested: bool
    due: str | None
    changed: str | None
    waited_us: int | None
    ran_us: int | None
    tags: list[str]
    metadata: Mapping[str, str]
    error: dict[str, str] | None


def listed_job(view: JobView) -> ListedJob:
    """The row of a job."""
    headers = view.headers
    return ListedJob(
        id=str(view.id),
        state=view.state.value,
        handler=view.handler,
        priority=view.priority.label,
        lane=view.lane,
        attempt=present_attempt(view.state, view.attempt),
        rescues=view.rescues,
        token=view.token,
        bucket_id=text(view.bucket_id) if view.bucket_id else None,
        bucket_epoch=view.bucket_epoch,
        cancel_requested=view.cancel_requested,
        due=iso(view.due_us),
        changed=iso(view.changed_us),
        waited_us=view.waited_us,
        ran_us=view.ran_us,
        tags=list(headers.tags),
        metadata=headers.metadata,
        error=error_record(view.error),
    )


def error_record(info: ErrorInfo | None) -> dict[str, str] | None:
    """An error without its traceback."""
    return None if info is None else {"type": info.type, "message": info.message, "reason": info.reason}
