"""``backfills``, ``pause`` and ``resume``: what submits write, on any machine, and how far it is.

A backfill is what all runs of one name write: of a batch, or of a source whose rows are remembered. Its books are those of
the runs since the last one that ended. A run that was killed has inserted jobs and has not counted its rows; the next run
offers all rows again, finds those jobs, and ends the books.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from jobmaster.model.errors import Conflict, InputError, NotFound
from jobmaster.model.job import Priority
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.steps.inputs import SourceSpec
from jobmaster.pipeline.steps.mapping import RowMapping
from jobmaster.pipeline.steps.write_progress import WriteState, write_state
from jobmaster.settings.masking import mask_secrets

LISTED = 50
_SECRET = re.compile(r"(?i)secret|password|token|key")


class SubmitRequest(NamedTuple):
    """The rows to submit, and the options."""

    source: SourceSpec
    handler: str
    mapping: RowMapping
    batch: str | None
    options: Mapping[str, str]
    """Of the data source: ``priority``, ``lane``, ``dueAt``, ``headers``, ``rowsPerSecond``, ``onDuplicate`` ..."""
    tasks: int | None = None
    """Maximum of connections that write at once."""
    expected: int | None = None
    """Rows of the source, for the estimate of the end; ``None``: counted where that costs little."""
    count_first: bool = False
    """Count the rows, whatever it costs."""


def stored_request(order: SubmitRequest) -> str:
    """The request as the master keeps it: JSON without passwords, which a resume asks for."""
    source = order.source
    if source.place is not None and mask_secrets(source.place) != source.place:
        source = source._replace(place="")
    source = source._replace(options={k: "" if _SECRET.search(k) else v for k, v in source.options.items()})
    return msgspec.json.encode(order._replace(source=source)).decode()


def restored_request(name: str, text: str, place: str | None, reader: Mapping[str, str]) -> SubmitRequest:
    """The request of a backfill.

    Args:
        place: of the source, instead of the stored one.
        reader: options of Spark's reader, added to the stored ones.

    Raises:
        InputError: a password is missing.
    """
    order = msgspec.json.decode(text, type=SubmitRequest)
    source = order.source
    if place is not None:
        source = source._replace(place=place)
    if source.place == "":
        raise InputError(
            f"the source of backfill {name!r} has a password, which is not stored",
            hint="name the source again: --source postgresql://...",
        )
    options = {**source.options, **reader}
    if missing := [key for key, value in options.items() if _SECRET.search(key) and not value]:
        raise InputError(
            f"the reader of backfill {name!r} needs {', '.join(missing)}, which is not stored",
            hint=f"give it again: --reader {missing[0]}=...",
        )
    return order._replace(source=source._replace(options=options))


def open_backfill(context: PipelineContext, name: str, request: str | None) -> None:
    """Record that a run of a backfill begins.

    Raises:
        Conflict: it is paused.
    """
    (row,) = context.connection.execute("pipeline/open_backfill", name, request)
    if row["paused_us"] is not None:
        raise Conflict(
            f"backfill {name!r} is paused since {_time(row['paused_us'])} by {row['paused_by']}",
            hint=f'jobmaster pipeline resume "{name}"',
        )


def list_backfills(context: PipelineContext, name: str | None) -> StepResult:
    """The latest backfills, or one, with their books.

    Raises:
        NotFound: there is none of that name.
    """
    now_us = context.clock.wall_us()
    rows = context.connection.fetch("pipeline/backfills", name, LISTED)
    if name is not None and not rows:
        raise _unknown(context, name)
    return StepResult(items=[_line(row, now_us) for row in rows])


def pause(context: PipelineContext, name: str, by: str) -> StepResult:
    """Pause a backfill: its tasks end the chunk that they are in, and write nothing more. Runs to come are refused.

    Args:
        name: of the backfill, of a batch of it, or the id of a run.

    Raises:
        NotFound: there is none of that name.
    """
    if context.dry_run:
        return list_backfills(context, name)
    rows = context.connection.execute("pipeline/pause_backfill", name, by)
    if not rows:
        raise _unknown(context, name)
    (row,) = rows
    note = None if row["changed"] else f"it was paused already, by {row['paused_by']}"
    found = {"backfill": row["name"], "state": WriteState.PAUSED.value, "paused_at": _time(row["paused_us"])}
    return StepResult(summary=found, note=note)


def end_pause(context: PipelineContext, name: str) -> tuple[StepResult, str | None]:
    """End a pause; also the stored request to run here, if no driver lives and the backfill has not ended.

    Raises:
        NotFound: there is none of that name.
    """
    rows = context.connection.execute("pipeline/resume_backfill", name)
    if not rows:
        raise _unknown(context, name)
    (row,) = rows
    found = {"backfill": row["name"], "was_paused": row["was_paused"], "driver": row["living"]}
    if row["living"] is not None:
        return StepResult(summary=found, note="its driver lives and goes on"), None
    runs = context.connection.fetch("pipeline/backfills", row["name"], 1)
    if runs and runs[0]["ended_us"] is not None:
        return StepResult(summary=found, note="it has ended: there is nothing to resume"), None
    if row["request"] is None:
        return StepResult(
            summary=found, note="it was begun by a program: that goes on, or is to be run again if it has ended"
        ), None
    return StepResult(summary=found), row["request"]


def books(context: PipelineContext, name: str) -> dict[str, int]:
    """What the runs before the present one have inserted, if it has ended the books of several."""
    (row,) = context.connection.fetch("pipeline/backfills", name, 1)
    if row["runs"] == 1 or row["ended_us"] is None:
        return {}
    return {"runs": row["runs"], "inserted_by_all_runs": row["inserted"]}


def _unknown(context: PipelineContext, name: str) -> NotFound:
    known = [row["name"] for row in context.connection.fetch("pipeline/backfills", None, LISTED)]
    return NotFound(f"no backfill is called {name!r}", hint=f"these are: {', '.join(map(repr, known)) or 'none'}")


def _line(row: Any, now_us: int) -> dict[str, Any]:
    ended = row["ended_us"] is not None
    lives = row["lives"] if row["driver"] is not None else None
    state = write_state(paused=row["paused"], held_back=row["lane"] is not None, lives=lives, ended=ended)
    seconds = max((row["ended_us"] if ended else now_us) - row["began_us"], 1) / 1e6
    rate = (row["handled"] - row["finished"]) / seconds
    moves = state in (WriteState.WRITING, WriteState.HELD_BACK)
    left = (row["total"] - row["handled"]) / rate if moves and row["total"] is not None and rate else None
    return {
        "name": row["name"],
        "state": state.value,
        "handled": row["handled"],
        "total": row["total"],
        "offered": row["offered"],
        "inserted": row["inserted"],
        "duplicates": row["offered"] - row["inserted"] - row["rejected"] if ended else None,
        "rejected": row["rejected"],
        "rows_per_second": round(rate),
        "ends_at": _time(row["ended_us"] if ended else round(now_us + left * 1e6) if left is not None else None),
        "held_back_by": None
        if row["lane"] is None
        else f"{row['lane']}/{Priority(row['priority']).label} ({row['backlog']})",
        "runs": row["runs"],
        "driver": row["driver"],
        "began_at": _time(row["began_us"]),
    }


def _time(us: int | None) -> str | None:
    return None if us is None else datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="seconds")
