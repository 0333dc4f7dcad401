"""What has happened to one job, as lines of text in the order of time: for the command line and the pages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from jobmaster.model.ids import created_ms
from jobmaster.model.job import AttemptOutcome, JobState, Priority
from jobmaster.model.job_change import CHANGE_ACTIONS
from jobmaster.model.job_view import Attempt, JobView, iso
from jobmaster.rules.unserved_cause import UnservedCause
from jobmaster.units import rounded_us

SUBMITTED_EVENT = "submitted"
"""Event of the line about the submit."""
REFUSED_EVENT = "REFUSED"
"""Event of a line about late writes that the master has refused."""


class TimelineLine(NamedTuple):
    """One line."""

    at_us: int
    event: str
    """``SUBMITTED_EVENT``, an action of an operator, an outcome of an attempt, ``REFUSED_EVENT``, ``started``, or a state."""
    detail: str
    attempt: int | None = None
    token: int | None = None
    bucket_id: bytes | None = None
    bucket_epoch: int | None = None
    ran_us: int | None = None
    """Duration of the run that ended here."""
    due_us: int | None = None
    """The due time that ``detail`` names, as ``due_text`` writes it."""


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


def present_attempt(state: str, used: int) -> int:
    """Number of the running or last attempt; ``used`` counts the attempts that are over."""
    return used + 1 if state == JobState.PROCESSING else used


def timeline(
    view: JobView, attempts: Sequence[Attempt], cause: UnservedCause | None = None, changes: Sequence[Change] = ()
) -> list[TimelineLine]:
    """Events of a job, oldest first: each change, each assignment with an outcome, with its identity, and each refused
    write, also after the end. A priority or lane that was changed is left out of the first line: the original is not kept.
    """
    created_us = created_ms(view.id_bytes) * 1000
    changed = {name for change in changes for name in change.detail}
    submitted = {"handler": view.handler, "priority": view.priority.label, "lane": view.lane}
    given = " ".join(f"{name}={value}" for name, value in submitted.items() if name not in changed)
    lines = [TimelineLine(created_us, SUBMITTED_EVENT, given)]
    lines += [_change_line(each) for each in changes]
    number = 0
    for row in attempts:
        if row.concluding:  # the view has it, and more
            continue
        line = TimelineLine(row.at_us, row.outcome, "", None, row.token, row.bucket_id, row.bucket_epoch, row.ran_us)
        if row.outcome in (AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT):
            number += 1
            line = line._replace(attempt=number)
        if row.outcome != AttemptOutcome.REFUSED:
            ran = f"after {rounded_us(row.ran_us)}" if row.ran_us else ""
            reason = f"{row.error.type}: {row.error.message} [{row.error.reason}]" if row.error else ""
            lines.append(line._replace(detail=", ".join(filter(None, (ran, reason)))))
        if row.refused_us:
            detail = f"{row.refused_count} late write(s) of this assignment refused"
            lines.append(line._replace(at_us=row.refused_us, event=REFUSED_EVENT, detail=detail, ran_us=None))
    changed_us = view.changed_us or created_us
    last = TimelineLine(
        changed_us,
        view.state.value,
        ", ".join(filter(None, (_state_detail(view), cause.reason if cause else ""))),
        present_attempt(view.state, view.attempt) or None,
        view.token,
        view.bucket_id,
        view.bucket_epoch,
        view.ran_us if view.state.final else None,
        None if view.state.final else view.due_us or None,
    )
    if view.state.final and view.ran_us is not None and view.state in (JobState.SUCCEEDED, JobState.FAILED):
        waited = f"waited {rounded_us(view.waited_us)}" if view.waited_us is not None else ""
        lines.append(last._replace(at_us=changed_us - view.ran_us, event="started", detail=waited, ran_us=None))
    # A write that was refused after the end is listed after it. The state of a job without an end is always the last line.
    if view.state.final:
        return sorted([*lines, last], key=lambda line: line.at_us)
    return [*sorted(lines, key=lambda line: line.at_us), last]


def due_text(us: int) -> str:
    """A due time (microseconds since 1970) as details name it."""
    return f"due {iso(us)}"


def _change_line(change: Change) -> TimelineLine:
    new = dict(change.detail)
    due_us = None
    parts = [f"by {change.actor}"]
    if "priority" in new:
        new["priority"] = Priority(int(new["priority"])).label
    if "due_at" in new:
        due_us = round(datetime.fromisoformat(new.pop("due_at")).timestamp() * 1_000_000)
        parts.append(due_text(due_us))
    parts += [f"{name} {value}" for name, value in new.items()]
    return TimelineLine(change.at_us, change.action.removeprefix("job "), ", ".join(parts), due_us=due_us)


def _state_detail(view: JobView) -> str:
    parts = []
    if view.state.final and view.ran_us is not None:
        parts.append(f"ran {rounded_us(view.ran_us)}")
    if not view.state.final and view.due_us:
        parts.append(due_text(view.due_us))
    if view.error is not None:
        parts.append(f"{view.error.type}: {view.error.message} [{view.error.reason}]")
    if view.rescues:
        parts.append(f"rescued {view.rescues} time(s)")
    if view.cancel_requested and not view.state.final:
        parts.append("cancel requested")
    return ", ".join(parts)
