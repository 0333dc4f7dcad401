"""Jobs as rows of tables, records and time lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jobmaster.cli.tables import Column
from jobmaster.client.jobs.listed_job import error_record
from jobmaster.client.jobs.timeline import SUBMITTED_EVENT, TimelineLine, present_attempt
from jobmaster.model.ids import created_ms, text
from jobmaster.model.job import JobState
from jobmaster.model.job_view import JobView, iso
from jobmaster.model.pause import Pause
from jobmaster.model.run_progress import RunProgress
from jobmaster.rules.unserved_cause import UnservedCause
from jobmaster.units import rounded_us


def short_error(error: Mapping[str, str]) -> str:
    """``KeyError: 7``: the message alone is often only a key or a number."""
    kind = error["type"].rpartition(".")[2]
    return f"{kind}: {error['message']}" if kind and error["message"] else kind or error["message"]


LIST_COLUMNS = (
    Column("ID", "id"),
    Column("STATE", "state"),
    Column("HANDLER", "handler"),
    Column("PRIORITY", "priority"),
    Column("LANE", "lane"),
    Column("ATTEMPT", "attempt", right=True),
    Column("RESCUES", "rescues", right=True),
    Column("DUE", "due"),
    Column("CHANGED", "changed"),
    Column("RAN", "ran_us", rounded_us, right=True),
    Column("ERROR", "error", short_error),
)

RETRY_COLUMNS = (
    Column("ID", "id"),
    Column("RETRY OF", "retry_of"),
    Column("HANDLER", "handler"),
    Column("ALREADY THERE", "duplicate", lambda known: "yes" if known else "no"),
)

ATTEMPT_COLUMNS = (
    Column("TIME (UTC)", "at"),
    Column("+TIME", "since_us", rounded_us, right=True),
    Column("ATTEMPT", "attempt", right=True),
    Column("TOKEN", "token", right=True),
    Column("EVENT", "event"),
    Column("BUCKET", "bucket_id"),
    Column("EPOCH", "bucket_epoch", right=True),
    Column("DETAIL", "detail", whole=True),
)


def progress_record(progress: RunProgress | None) -> dict[str, Any] | None:
    """The last report of a run."""
    if progress is None:
        return None
    at = None if progress.at is None else progress.at.isoformat()
    return {"done": progress.done, "total": progress.total, "text": progress.text, "at": at}


def _awaited(view: JobView) -> str | None:
    """The key of the signal that a job waits for; a job of a bucket waits for a confirmation."""
    wait = view.headers.signal
    return wait.key if wait is not None and view.state is JobState.WAITING and view.bucket_id is None else None


def job_record(
    view: JobView, cause: UnservedCause | None = None, pauses: Sequence[Pause] = (), step: str | None = None
) -> dict[str, Any]:
    """One job as a record; ``cause`` is the reason why no agent takes it, ``pauses`` are those that keep it from starting,
    ``step`` is the name of its step in a workflow."""
    headers, error = view.headers, view.error
    return {
        "id": str(view.id),
        "state": view.state.value,
        "unserved": cause.reason if cause else None,
        "waits_for": _awaited(view),
        "signal": None if headers.received is None else json.loads(headers.received.payload),
        "paused": [f"{each.subject}, by {each.actor}: {each.reason}" for each in pauses],
        "workflow": headers.workflow[0] if headers.workflow else None,
        "step": step,
        "handler": view.handler,
        "priority": view.priority.label,
        "lane": view.lane,
        "args": view.arguments,
        "result": view.result_value,
        "error": error_record(error),
        "progress": progress_record(view.progress),
        "traceback": error.traceback if error else None,
        "attempt": present_attempt(view.state, view.attempt),
        "rescues": view.rescues,
        "snoozes": headers.snoozes,
        "token": view.token,
        "bucket_id": text(view.bucket_id) if view.bucket_id else None,
        "bucket_epoch": view.bucket_epoch,
        "cancel_requested": view.cancel_requested,
        "created": iso(created_ms(view.id_bytes) * 1000),
        "due": iso(view.due_us),
        "changed": iso(view.changed_us),
        "waited_us": view.waited_us,
        "ran_us": view.ran_us,
        "tenant": headers.tenant[0] if headers.tenant else None,
        "trace_id": view.trace_id,
        "tags": list(headers.tags),
        "metadata": headers.metadata,
        "key": headers.key,
        "unique_key": headers.unique_key,
        "superseded_by": headers.superseded_by,
    }


def timeline_rows(lines: Sequence[TimelineLine]) -> list[dict[str, Any]]:
    """The history of a job as rows."""
    submitted_us = next(line.at_us for line in lines if line.event == SUBMITTED_EVENT)
    return [
        {
            "attempt": line.attempt,
            "token": line.token,
            "bucket_id": text(line.bucket_id) if line.bucket_id else None,
            "bucket_epoch": line.bucket_epoch,
            "event": line.event,
            "detail": line.detail,
            "since_us": line.at_us - submitted_us,
            "at": iso(line.at_us),
        }
        for line in lines
    ]
