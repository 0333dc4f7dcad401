"""Jobs as rows of tables, records and time lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from jobmaster.cli.tables import Column, iso
from jobmaster.model.ids import created_ms, text
from jobmaster.model.job import AttemptOutcome, ErrorInfo, JobState, Priority
from jobmaster.model.job_change import CHANGE_ACTIONS
from jobmaster.model.job_view import Attempt, JobView
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


def present_attempt(state: str, used: int) -> int:
    """Number of the running or last attempt; ``used`` counts the attempts that are over."""
    return used + 1 if state == JobState.PROCESSING else used


def listed(view: JobView) -> dict[str, Any]:
    """One row of ``job list``."""
    headers = view.headers
    return {
        "id": str(view.id),
        "state": view.state.value,
        "handler": view.handler,
        "priority": view.priority.label,
        "lane": view.lane,
        "attempt": present_attempt(view.state, view.attempt),
        "rescues": view.rescues,
        "token": view.token,
        "bucket_id": text(view.bucket_id) if view.bucket_id else None,
        "bucket_epoch": view.bucket_epoch,
        "cancel_requested": view.cancel_requested,
        "due": iso(view.due_us),
        "changed": iso(view.changed_us),
        "waited_us": view.waited_us,
        "ran_us": view.ran_us,
        "tags": list(headers.tags),
        "metadata": headers.metadata,
        "error": _error(view.error),
    }


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
        "error": _error(error),
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
        "tags": list(headers.tags),
        "metadata": headers.metadata,
        "key": headers.key,
        "unique_key": headers.unique_key,
        "superseded_by": headers.superseded_by,
    }


class Change(NamedTuple):
    """A change of a waiting job, from the operators' log."""

    at_us: int
    actor: str
    action: str
    detail: Mapping[str, Any]
    """The new values: ``due_at``, ``priority``, ``lane``."""


def changes_of(operations: Sequence[Mapping[str, Any]]) -> list[Change]:
    """The changes among the actions of operators on a job: those that gave it another due time, priority or lane."""
    rows = [
        Change(row["at_us"], row["actor"], row["action"], json.loads(row["detail"]))
        for row in operations
        if row["action"] in CHANGE_ACTIONS
    ]
    return sorted(rows)


def timeline(
    view: JobView, attempts: Sequence[Attempt], cause: UnservedCause | None = None, changes: Sequence[Change] = ()
) -> list[dict[str, Any]]:
    """Events of a job, oldest first: each change, each assignment with an outcome, with its identity, and each refused
    write, also after the end. A priority or lane that was changed is left out of the first line: the original is not kept.
    """
    created_us = created_ms(view.id_bytes) * 1000
    changed = {name for change in changes for name in change.detail}
    submitted = {"handler": view.handler, "priority": view.priority.label, "lane": view.lane}
    given = " ".join(f"{name}={value}" for name, value in submitted.items() if name not in changed)
    lines = [_line(created_us, "submitted", given)]
    lines += [_line(change.at_us, change.action.removeprefix("job "), _change_detail(change)) for change in changes]
    number = 0
    for row in attempts:
        if row.concluding:  # the view has it, and more
            continue
        bucket = text(row.bucket_id) if row.bucket_id else None
        where: dict[str, Any] = {"token": row.token, "bucket_id": bucket, "bucket_epoch": row.bucket_epoch}
        if row.outcome in (AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT):
            number += 1
            where["attempt"] = number
        if row.outcome != AttemptOutcome.REFUSED:
            ran = f"after {rounded_us(row.ran_us)}" if row.ran_us else ""
            reason = f"{row.error.type}: {row.error.message} [{row.error.reason}]" if row.error else ""
            lines.append(_line(row.at_us, row.outcome, ", ".join(filter(None, (ran, reason))), where))
        if row.refused_us:
            detail = f"{row.refused_count} late write(s) of this assignment refused"
            lines.append(_line(row.refused_us, "REFUSED", detail, where))
    changed_us = view.changed_us or created_us
    here = {
        "token": view.token,
        "bucket_id": text(view.bucket_id) if view.bucket_id else None,
        "bucket_epoch": view.bucket_epoch,
        "attempt": present_attempt(view.state, view.attempt) or None,
    }
    if view.state.final and view.ran_us is not None and view.state in (JobState.SUCCEEDED, JobState.FAILED):
        waited = f"waited {rounded_us(view.waited_us)}" if view.waited_us is not None else ""
        lines.append(_line(changed_us - view.ran_us, "started", waited, here))
    detail = ", ".join(filter(None, (_state_detail(view), cause.reason if cause else "")))
    lines.append(_line(changed_us, view.state.value, detail, here))
    # A write that was refused after the end is listed after it. The state of a job without an end is always the last line.
    last = lines.pop() if not view.state.final else None
    lines.sort(key=lambda line: line["at_us"])
    lines += [last] if last is not None else []
    for line in lines:
        line["since_us"] = line["at_us"] - created_us
        line["at"] = iso(line.pop("at_us"))
    return lines


def _change_detail(change: Change) -> str:
    new = dict(change.detail)
    if "priority" in new:
        new["priority"] = Priority(int(new["priority"])).label
    if "due_at" in new:
        new["due"] = iso(round(datetime.fromisoformat(new.pop("due_at")).timestamp() * 1_000_000))
    return ", ".join([f"by {change.actor}", *(f"{name} {value}" for name, value in new.items())])


def _state_detail(view: JobView) -> str:
    parts = []
    if view.state.final and view.ran_us is not None:
        parts.append(f"ran {rounded_us(view.ran_us)}")
    if not view.state.final and view.due_us:
        parts.append(f"due {iso(view.due_us)}")
    if view.error is not None:
        parts.append(f"{view.error.type}: {view.error.message} [{view.error.reason}]")
    if view.rescues:
        parts.append(f"rescued {view.rescues} time(s)")
    if view.cancel_requested and not view.state.final:
        parts.append("cancel requested")
    return ", ".join(parts)


def _line(at_us: int, event: str, detail: str, where: Mapping[str, Any] | None = None) -> dict[str, Any]:
    line: dict[str, Any] = {"at_us": at_us, "event": event, "detail": detail}
    return {**dict.fromkeys(("attempt", "token", "bucket_id", "bucket_epoch")), **(where or {}), **line}


def _error(info: ErrorInfo | None) -> dict[str, str] | None:
    return None if info is None else {"type": info.type, "message": info.message, "reason": info.reason}
