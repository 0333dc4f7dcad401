"""``ls``, ``forget`` and ``vacuum``: lists the lake, forgets sources, deletes files of unfinished runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from jobmaster.model.errors import Conflict, InputError
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.driver_connection import DriverConnection
from jobmaster.pipeline.lake.lake import Lake
from jobmaster.pipeline.steps.audit import LAST

_RUN = re.compile(r"^(?P<dataset>(?:jobs|attempts|logs|violations|rollup/[^/]+)/v\d+)/run=(?P<run>[^/]+)/")
_UNFINISHED = re.compile(r"^rejects/\.writing-(?P<run>[^/]+)/")
_REJECTS = re.compile(r"^rejects/[^/.][^/]*\.parquet$")
_DOCUMENTS = ("_manifest/jobs", "_manifest/rollup")
_RUN_SECONDS = 30 * 86_400.0
"""How long the master keeps the record of a run that wrote a batch: longer than a run takes, also one that is paused."""
OLDER_THAN_SECONDS_MIN = 3600.0
"""Files of a running step may be as old as a part of it takes."""
FORGET_ROWS = 20_000
"""Rows of a source per statement, which takes some tenths of a second."""
_STREAM = re.compile(r"^stream/(?P<table>\w+)/v\d+/day=.*\.parquet$")


class LeftoverFile(NamedTuple):
    """A file of a run that no document names."""

    path: str
    bytes: int
    age_seconds: float


def list_lake(context: PipelineContext) -> StepResult:
    """List every range, day, stream and source of the lake, and the latest batches."""
    lake = Lake(context.lake)
    lines: list[dict[str, Any]] = []
    for row in context.connection.fetch("archive/manifest"):
        lines.append(
            {"kind": "range", "name": row["name"], "state": row["state"], "rows": row["rows"], "run": row["run_id"]}
        )
    for name, document in lake.documents("_manifest/rollup").items():
        lines.append({"kind": "rollup", "name": name, "state": "PUBLISHED", "rows": None, "run": document.get("run")})
    streams: dict[str, int] = {}
    for path in lake.files("stream"):
        if match := _STREAM.match(path):
            streams[match["table"]] = streams.get(match["table"], 0) + 1
    for table, files in streams.items():
        lines.append({"kind": "stream", "name": table, "state": f"{files} files", "rows": None, "run": None})
    for row in context.connection.fetch("pipeline/sources"):
        lines.append({"kind": "source", "name": row["name"], "state": "REMEMBERED", "rows": row["rows"], "run": None})
    for row in context.connection.fetch("pipeline/writes"):
        state = "WRITTEN" if row["ended"] else "UNFINISHED"
        lines.append(
            {"kind": "batch", "name": row["batch"], "state": state, "rows": row["inserted"], "run": row["run_id"]}
        )
    return StepResult(summary={"lake": context.lake}, items=lines)


def forget(context: PipelineContext, name: str) -> StepResult:
    """Forget the rows of a source: submitted again, every row is a new job.

    A writer whose driver is unknown (a program of the user) may be at work: the next chunk of it finds no source and fails.

    Raises:
        InputError: no source has that name. Conflict: a submit of it runs.
    """
    connection = context.connection
    known = {str(row["name"]): row for row in connection.fetch("pipeline/sources")}
    if name not in known:
        raise InputError(f"no source is called {name!r}", hint=f"sources are {', '.join(known) or 'none'}")
    if living := connection.fetch("pipeline/living_driver", name):
        raise Conflict(
            f"a submit of {name!r} runs on {living[0]['driver']}: rows that it writes later would be remembered by no source",
            hint=f'wait until it has ended (jobmaster pipeline backfills "{name}"), or end that process',
        )
    source, rows = int(known[name]["id"]), int(known[name]["rows"])
    if not context.dry_run:
        _forget_rows(connection, source)
        connection.execute("pipeline/forget_source", name)
        _forget_rows(connection, source)  # those of a chunk that was under way
    return StepResult(rows=rows, summary={"source": name, "forgotten_rows": rows})


def _forget_rows(connection: DriverConnection, source: int) -> None:
    gone, last = FORGET_ROWS, bytes(16)
    while gone >= FORGET_ROWS:
        page = connection.execute("pipeline/forget_rows", source, last, FORGET_ROWS)[0]
        gone, last = page["forgotten"], page["last"]


def vacuum(
    context: PipelineContext, older_than_seconds: float, rejects_older_than_seconds: float | None = None
) -> StepResult:
    """Delete files of runs that no document names and that are older than any run takes; also the violations of every
    audit but the last, and the master's records of old runs that wrote batches.

    The manifest and the documents are read before the files, so a run that ends in between keeps its files: they are too
    young. A submit runs for days, or is paused: what it has refused so far stays while the master has it as unfinished.

    Args:
        older_than_seconds: at least ``OLDER_THAN_SECONDS_MIN``.
        rejects_older_than_seconds: delete refused rows of that age, too; ``None``: none.

    Raises:
        InputError: ``older_than_seconds`` is too low.
    """
    if older_than_seconds < OLDER_THAN_SECONDS_MIN:
        raise InputError(
            f"vacuum of files older than {older_than_seconds:g} s could delete files of a running step",
            hint="give older_than (--older-than) at least 1h: longer than any run of archive or rollup takes",
        )
    lake = Lake(context.lake)
    named = {str(row["run_id"]) for row in context.connection.fetch("archive/manifest") if row["run_id"]}
    for folder in _DOCUMENTS:
        named |= {str(document.get("run")) for document in lake.documents(folder).values()}
    named.add(str((lake.read_json(LAST) or {}).get("run")))
    writing = {str(row["run_id"]) for row in context.connection.fetch("pipeline/unfinished_runs", _RUN_SECONDS)}
    now = context.clock.wall_us() / 1e6
    found = [one for one in leftover_files(lake, named, writing, now) if one.age_seconds > older_than_seconds]
    if rejects_older_than_seconds is not None:
        found += [one for one in refused_rows(lake, now) if one.age_seconds > rejects_older_than_seconds]
    for one in found:
        context.progress(f"{'would delete' if context.dry_run else 'deleting'} {one.path}")
        if not context.dry_run:
            lake.delete(one.path)
    connection = context.connection
    (runs,) = (
        connection.fetch("pipeline/count_runs", _RUN_SECONDS)
        if context.dry_run
        else connection.execute("pipeline/forget_runs", _RUN_SECONDS)
    )
    summary = {"files": len(found), "bytes": sum(one.bytes for one in found), "records_of_runs": runs["runs"]}
    return StepResult(summary=summary)


def leftover_files(lake: Lake, named: set[str], writing: set[str], now: float) -> Iterator[LeftoverFile]:
    """Files of runs that are not ``named``, and refused rows of runs that are not ``writing``."""
    for path, size, changed in lake.listing(""):
        match, kept = _RUN.match(path), named
        if match is None:
            match, kept = _UNFINISHED.match(path), writing
        if match is not None and match["run"] not in kept:
            yield LeftoverFile(path, size, now - changed)


def refused_rows(lake: Lake, now: float) -> Iterator[LeftoverFile]:
    """Files of rows that writes have refused."""
    for path, size, changed in lake.listing("rejects"):
        if _REJECTS.match(path):
            yield LeftoverFile(path, size, now - changed)
