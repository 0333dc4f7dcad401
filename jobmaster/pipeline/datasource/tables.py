"""The tables of the data source: columns, types, and the options that filter their rows.

A table is a statement ``export/<name>`` of ``jobmaster.master``; ``history`` is ``jobs`` with the archived ones
(``history_reader``). Columns are added at the end, never renamed or removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from jobmaster.model.errors import InputError

TEXT, SHORT, INT, LONG, FLAG, TIME = "string", "smallint", "int", "bigint", "boolean", "timestamp"
"""Types of Spark's DDL."""


class FilterOption(StrEnum):
    """Options that filter rows; they become parameters of the statement."""

    SINCE = "since"
    UNTIL = "until"
    STATES = "states"
    HANDLERS = "handlers"
    LANES = "lanes"
    PRIORITIES = "priorities"
    BUCKETS = "buckets"


class Partitioning(StrEnum):
    """How a table is divided among tasks."""

    JOB_ID = "job id"
    """By ranges of job ids; the first two parameters are the bounds."""
    TIME = "time"
    """One task; the first two parameters are times."""
    WHOLE = "whole"
    """One task."""


class Table(NamedTuple):
    """One table of the data source."""

    name: str
    columns: tuple[tuple[str, str], ...]
    """Name and type."""
    partitioning: Partitioning
    filters: tuple[FilterOption, ...]
    """Without ``since`` and ``until``, in the order of the statement's parameters."""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]

    def type_of(self, column: str) -> str:
        """Type of a column; ``InputError`` when the table has none of that name."""
        for name, kind in self.columns:
            if name == column:
                return kind
        raise InputError(
            f"table {self.name!r} of the data source has no column {column!r}",
            hint=f"its columns are {', '.join(self.names)}",
        )

    def ddl(self, columns: Sequence[str]) -> str:
        """The schema of some columns in Spark's DDL."""
        return ", ".join(f"{name} {self.type_of(name)}" for name in columns)

    @property
    def supported_filters(self) -> set[FilterOption]:
        """Every filter option of this table."""
        times = {FilterOption.SINCE, FilterOption.UNTIL} if self.partitioning is not Partitioning.WHOLE else set()
        return {*self.filters, *times}


_IDENTITY = (("token", INT), ("bucket_id", TEXT), ("bucket_epoch", LONG))
_LINE = (
    ("outcome", TEXT),
    ("at", TIME),
    ("ran_us", LONG),
    ("error", TEXT),
    ("refused_at", TIME),
    ("refused_count", INT),
)

HISTORY = "history"
"""The table of the jobs in the lake and in the master."""
_JOBS = (
    ("id", TEXT),
    ("state", TEXT),
    ("priority", TEXT),
    ("priority_level", SHORT),
    ("lane", TEXT),
    ("handler", TEXT),
    ("created_at", TIME),
    ("due_at", TIME),
    ("started_at", TIME),
    ("ended_at", TIME),
    ("changed_at", TIME),
    ("waited_us", LONG),
    ("ran_us", LONG),
    ("attempt", INT),
    ("rescues", INT),
    *_IDENTITY,
    ("cancel_requested", FLAG),
    ("args", TEXT),
    ("headers", TEXT),
    ("result", TEXT),
    ("error", TEXT),
)
_OF_JOBS = (
    FilterOption.STATES,
    FilterOption.HANDLERS,
    FilterOption.LANES,
    FilterOption.PRIORITIES,
    FilterOption.BUCKETS,
)

TABLES = {
    table.name: table
    for table in (
        Table(
            "jobs",
            _JOBS,
            Partitioning.JOB_ID,
            _OF_JOBS,
        ),
        Table(HISTORY, _JOBS, Partitioning.JOB_ID, _OF_JOBS),
        Table(
            "ledger",
            (("job_id", TEXT), *_IDENTITY, ("concluding", FLAG), *_LINE),
            Partitioning.JOB_ID,
            (FilterOption.BUCKETS,),
        ),
        Table("attempts", (("job_id", TEXT), *_IDENTITY, *_LINE), Partitioning.JOB_ID, (FilterOption.BUCKETS,)),
        Table(
            "buckets",
            (
                ("id", TEXT), ("state", TEXT), ("store", TEXT), ("lane", TEXT), ("priority", TEXT),
                ("priority_level", SHORT), ("epoch", LONG), ("owner", TEXT), ("owner_name", TEXT), ("owner_state", TEXT),
                ("created_at", TIME), ("changed_at", TIME), ("in_flight", LONG),
            ),
            Partitioning.WHOLE,
            (FilterOption.STATES, FilterOption.LANES, FilterOption.PRIORITIES, FilterOption.BUCKETS),
        ),
        Table(
            "events",
            (
                ("seq", LONG), ("at", TIME), ("bucket_id", TEXT), ("from_state", TEXT), ("to_state", TEXT),
                ("epoch", LONG), ("actor", TEXT), ("reason", TEXT), ("jobs_moved", LONG), ("jobs_rescued", LONG),
            ),
            Partitioning.TIME,
            (FilterOption.BUCKETS,),
        ),
        Table(
            "operations",
            (("seq", LONG), ("at", TIME), ("actor", TEXT), ("action", TEXT), ("subject", TEXT), ("detail", TEXT)),
            Partitioning.TIME,
            (),
        ),
    )
}  # fmt: skip


RECORDED = {"jobs": "recorded_jobs", "attempts": "recorded_attempts", "events": "recorded_events"}
"""Tables that can be read as a stream, and their statement by transaction. A stream of jobs has those that have ended."""


def table_of(name: str) -> Table:
    """The table of a name.

    Raises:
        InputError: there is none.
    """
    if name not in TABLES:
        raise InputError(f"the data source has no table {name!r}", hint=f"option table is one of {', '.join(TABLES)}")
    return TABLES[name]
