"""The options of a read. An unknown or invalid option is an error that names it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from jobmaster.model.errors import InputError
from jobmaster.pipeline.datasource.batch_reader import ReadPlan, StreamStart
from jobmaster.pipeline.datasource.cluster_ref import MASTER, READING, address_of, cluster_ref_of
from jobmaster.pipeline.datasource.pacing import UNLIMITED, Pace
from jobmaster.pipeline.datasource.selection import selection_of
from jobmaster.pipeline.datasource.tables import FLAG, INT, LONG, SHORT, TEXT, TIME, FilterOption, Table, table_of
from jobmaster.settings.masking import mask_secrets

TASKS_MAX = 16
"""Default number of connections of all tasks."""
STATEMENT_SECONDS = 3600
"""Default limit of one statement of a task, and so of its snapshot."""
OPTIONS_KEY = "jobmaster.options"
RATE = "rowsPerSecond"
WITHOUT_LIMIT = "unlimited"
COUNTED = "counted"
"""Option: only the number of rows is needed, and the columns may hold null."""
BLOCK_BYTES = 4 * 1024 * 1024
CLUSTER_OPTIONS = ("url", "dsn", "dsnEnv", "config", "cluster", "schema")
KNOWN = (
    *CLUSTER_OPTIONS, *READING, "maxStatementSeconds", "table", "columns",
    *(option.value for option in FilterOption), "numPartitions", "maxConnections", "batchBytes", "snapshot", "archived",
    RATE, COUNTED, "maxRowsPerTrigger", "startingOffsets", "maxRowsPerBatch", "startingPosition",
)  # fmt: skip
_EARLIER_NAMES = {"maxRowsPerTrigger": "maxRowsPerBatch", "startingOffsets": "startingPosition"}
"""Options that had other names before they got those that Spark's own sources use."""
_OF_A_TABLE = {
    "path", "owner", "provider", "location", "external", "comment", "is_managed_location", "collation",
    "serialization.format",
}  # fmt: skip
"""Options that Spark adds to a table of its catalogue."""
_YES, _NO = {"true", "1", "yes"}, {"false", "0", "no"}


class ReadOptions(NamedTuple):
    """The parsed options of a read."""

    table: Table
    columns: tuple[str, ...]
    raw: Mapping[str, str]


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options' names, the table and its columns.

    Raises:
        InputError: the first thing that is wrong.
    """
    _refuse_pushdown(options)
    refuse_unknown(options, KNOWN)
    table = table_of(options.get("table") or "jobs")
    columns = tuple(table.names)
    if (text := options.get("columns")) is not None:
        columns = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
        if not columns:
            raise InputError("option columns is empty", hint="give names with commas between them, or leave it out")
        for column in columns:
            table.type_of(column)
    return ReadOptions(table, columns, options)


def read_plan(options: ReadOptions, schema: Any, *, streams: bool = False) -> ReadPlan:
    """The plan of a read. ``schema`` comes from Spark; the user may have given it with ``.schema(...)``.

    Args:
        streams: of a streaming query.

    Raises:
        InputError: the schema does not fit the table, or an option is wrong.
    """
    table, raw = options.table, options.raw
    for field in schema.fields:
        kind = table.type_of(field.name)
        if field.dataType.simpleString() != kind:
            raise InputError(
                f"column {field.name!r} of table {table.name!r} is {kind}, the given schema has "
                f"{field.dataType.simpleString()}",
                hint="leave .schema(...) out and cast afterwards",
            )
    columns = tuple(field.name for field in schema.fields)
    connections = number(raw, "maxConnections", TASKS_MAX)
    counted = flag(raw, COUNTED)
    pace = _pace(raw, streams=streams) if not counted else UNLIMITED
    # One of the COPY, one that looks, and one that keeps ranges in the master beside a shared snapshot.
    sessions = 1 + (not pace.unlimited) + (table.name == "history" and raw.get("snapshot") is not None)
    tasks = min(number(raw, "numPartitions", 2 * (os.cpu_count() or 1)), max(connections // sessions, 1))
    return ReadPlan(
        cluster=cluster_ref_of(raw),
        selection=selection_of(table, columns, raw)._replace(counted=counted),
        tasks=tasks,
        block_bytes=number(raw, "batchBytes", BLOCK_BYTES),
        snapshot=raw.get("snapshot"),
        pace=pace._replace(tasks=tasks),
        statement_seconds=number(raw, "maxStatementSeconds", STATEMENT_SECONDS),
        rows_per_batch=_rows_per_trigger(raw),
        start=_start(raw),
        archived=raw.get("archived"),
    )


def schema_with_options(table: Table, columns: tuple[str, ...], options: Mapping[str, str]) -> Any:
    """The schema of a table of Spark's catalogue, with its options as metadata of the first column.

    Spark passes the options of ``CREATE TABLE ... USING`` when it creates the table, and not when it reads it; it stores the
    schema whole. The schema also goes into files written from the table, so it must not contain a password.

    Raises:
        InputError: ``url`` or ``dsn`` has a password.
    """
    from pyspark.sql import types

    for names in (MASTER, READING):
        address = address_of(options, names) or ""
        if mask_secrets(address) != address:
            raise InputError(
                f"a table of the catalogue would keep the password of its {names.url}",
                hint=f"give {names.env} or config, or no password",
            )
    kept = {name: options[name] for name in KNOWN if options.get(name) is not None}
    kinds = {
        TEXT: types.StringType(),
        SHORT: types.ShortType(),
        INT: types.IntegerType(),
        LONG: types.LongType(),
        FLAG: types.BooleanType(),
        TIME: types.TimestampType(),
    }
    schema = types.StructType([types.StructField(name, kinds[table.type_of(name)]) for name in columns])
    schema.fields[0].metadata = {OPTIONS_KEY: json.dumps(kept)}
    return schema


def options_of_schema(schema: Any) -> dict[str, str]:
    """The options that ``schema_with_options`` stored."""
    for field in schema.fields:
        if OPTIONS_KEY in (field.metadata or {}):
            return dict(json.loads(field.metadata[OPTIONS_KEY]))
    return {}


def _refuse_pushdown(options: Mapping[str, str]) -> None:
    """Earlier versions had the option. Spark keeps the filters of one query for all later ones of the same DataFrame, so that
    a count without a filter was too low."""
    if options.get("pushdown") is not None:
        raise InputError(
            "the data source no longer has option 'pushdown': Spark gave the filters of one query to other queries, too",
            hint="select by states, handlers, lanes, priorities, buckets, since and until",
        )


def _rows_per_trigger(options: Mapping[str, str]) -> int | None:
    name, text = _of_stream(options, "maxRowsPerTrigger")
    return number(options, name, 1) if text else None


def _pace(options: Mapping[str, str], *, streams: bool) -> Pace:
    """A stream has a pace only if it is given: it reads what is new, and would fall behind those who write it."""
    text = options.get(RATE)
    if text is None:
        return UNLIMITED if streams else Pace()
    if text.lower() == WITHOUT_LIMIT:
        return UNLIMITED
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InputError(
            f"option {RATE} is {text!r}",
            hint=f"give a whole number from 1 on, or {WITHOUT_LIMIT}, or leave it out",
        )
    return Pace(int(text))


def _start(options: Mapping[str, str]) -> StreamStart:
    name, text = _of_stream(options, "startingOffsets")
    if text in (None, "earliest", "latest"):
        return StreamStart(from_now=text == "latest")
    try:
        offset = json.loads(text or "")
    except ValueError:
        offset = None
    numbers = ("xid", "began", "mark_xid", "mark_us", "next_xid", "next_us")
    if (
        not isinstance(offset, dict)
        or not isinstance(offset.get("system"), str)
        or not all(type(offset.get(name, 0)) is int for name in numbers)
        or "xid" not in offset
    ):
        raise InputError(
            f"option {name} is {text!r}",
            hint='give earliest, latest, or an end offset of a stream, such as {"xid": 1234, "began": 1200, "system": "7"}',
        )
    return StreamStart({name: offset[name] for name in (*numbers, "system") if name in offset})


def _of_stream(options: Mapping[str, str], name: str) -> tuple[str, str | None]:
    """Name and text of an option that may have its earlier name."""
    earlier = _EARLIER_NAMES[name]
    if options.get(name) is not None and options.get(earlier) is not None:
        raise InputError(f"the data source got both {name} and {earlier}", hint=f"give {name}")
    return (earlier, options[earlier]) if options.get(earlier) is not None else (name, options.get(name))


def refuse_unknown(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Raise ``InputError`` for an unknown option (Spark passes names in any case)."""
    lower = {name.lower() for name in known} | _OF_A_TABLE
    for name in options:
        if name.lower() not in lower and not name.lower().startswith("option."):
            raise InputError(f"the data source has no option {name!r}", hint=f"its options are {', '.join(known)}")


def flag(options: Mapping[str, str], name: str) -> bool:
    """A boolean option; false when it is not given."""
    text = (options.get(name) or "false").lower()
    if text not in _YES | _NO:
        raise InputError(f"option {name} is {text!r}", hint="give true or false")
    return text in _YES


def number(options: Mapping[str, str], name: str, default: int) -> int:
    """A positive integer option."""
    text = options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InputError(f"option {name} is {text!r}", hint="give a whole number from 1 on")
    return int(text)
