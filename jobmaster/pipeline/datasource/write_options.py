"""The options of a write, checked, with the state of the master that they depend on, read once per write."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from jobmaster.clock import new_id
from jobmaster.handlers import check_lane, check_name
from jobmaster.handlers.flow.ordering import ordering_key_text
from jobmaster.handlers.registry import unknown_handler
from jobmaster.master.driver.connection import EPOCH_2000_US, ConnectionPool, StatementRunner
from jobmaster.master.history.bulk_insert import Brake
from jobmaster.master.schema.migrate import check_schema
from jobmaster.model.agent import HandlerSpec
from jobmaster.model.errors import Conflict, InputError
from jobmaster.model.flow.tenant import checked_tenant
from jobmaster.model.ids import text
from jobmaster.model.job import Headers, Priority
from jobmaster.model.trace_context import checked_context
from jobmaster.pipeline.datasource.cluster_ref import ClusterRef, cluster_ref_of
from jobmaster.pipeline.datasource.read_options import CLUSTER_OPTIONS, flag, number, refuse_unknown
from jobmaster.pipeline.datasource.rows.rejects_file import shared_path
from jobmaster.pipeline.datasource.rows.row_parser import COLUMNS, RowRules, id_bounds_of
from jobmaster.pipeline.datasource.selection import parse_time
from jobmaster.pipeline.datasource.source_files import FILE

CHUNK_ROWS = 10_000
CHUNKS_PER_SECOND = 5
"""At least so many chunks a second, under a rate."""
CHUNKS_IN_BACKLOG = 10
"""A chunk is at most such a part of the backlog that a write may make."""
CONNECTIONS_MAX = 16
"""Default number of connections of a write, as of a read. The driver has two more."""
BATCH_CHARS_MAX = 200
ADOPT_ROWS = 20_000
"""Rows of an older batch per statement, which takes some tenths of a second."""
KNOWN = (
    *CLUSTER_OPTIONS, "batch", "asOf", "remember", "runId", "handler", "priority", "lane", "dueAt", "headers", "lax",
    "allowUnregistered", "rejects", "replay", "onDuplicate", "rowsPerSecond", "chunkRows",
    "maxConnections", "maxBacklog", "resumeBacklog", "finishedRows",
)  # fmt: skip
_NOT_OF_STREAMS = ("batch", "asOf", "runId", "replay", "onDuplicate", "finishedRows")
_TYPES = {
    "key": ("string", "bigint", "int", "smallint", "tinyint"),
    "args": ("string", "struct", "map"),
    "handler": ("string",),
    "priority": ("string",),
    "lane": ("string",),
    "due_at": ("timestamp", "string", "date"),
    "headers": ("string",),
    FILE: ("bigint",),
}


class StreamBatch(NamedTuple):
    """A micro-batch of a streaming query. Spark repeats it under the same number until it is committed."""

    query_id: str
    """Kept by the checkpoint of the query."""
    number: int

    @property
    def name(self) -> str:
        """Name of the query among the batches of the master."""
        return f"stream {self.query_id}"

    @property
    def run_id(self) -> str:
        return f"{self.query_id}-{self.number}"


class WritePlan(NamedTuple):
    """The plan of a write; pickled to every task."""

    cluster: ClusterRef
    batch: str
    run_id: str
    rules: RowRules
    connections: int
    """Most of its tasks' connections at once."""
    chunk_rows: int
    rows_per_second: int | None
    rejects: str | None
    refuse_duplicates: bool
    source: int | None
    """Number of the source under which the rows are remembered."""
    name: str
    """Of the backfill, which a person can pause: of the batch, or of the source."""
    brake: Brake | None
    finished_rows: int
    """Rows of the source in files that earlier runs have finished: they are offered, and are not here."""


class _MasterState(NamedTuple):
    """State of the batch, handlers and lanes in the master."""

    as_of_us: int
    now_us: int
    floor: bytes
    ceiling: bytes
    specs: dict[str, HandlerSpec]
    lanes: frozenset[str]
    source: int | None
    latest: int | None
    """Of a stream: number of its latest micro-batch."""


def write_plan(options: Mapping[str, str], schema: Any, *, dry: bool = False) -> WritePlan:
    """The plan to write rows of ``schema``.

    Args:
        dry: only check: nothing is written, and the batch is not recorded.

    Raises:
        InputError: an option, the schema or the handler is wrong; nothing was written.
        Conflict: the batch is too old: ids of its moment are below the retention watermark.
    """
    refuse_unknown(options, KNOWN)
    _check_schema(schema, options)
    cluster = cluster_ref_of(options)
    run_id = check_name(options.get("runId") or new_id().hex(), "option runId", 64)
    batch, moment = _batch(options, run_id)
    found = asyncio.run(_read_master(cluster, batch, moment, _remembered(options), dry=dry))
    _check_moment(batch, found)
    return _plan(options, cluster, batch, run_id, found)


def check_stream(options: Mapping[str, str], schema: Any) -> ClusterRef:
    """Check the options of a stream that writes jobs, before its tasks know their micro-batch; returns the cluster.

    Raises:
        InputError: an option or the schema is wrong.
    """
    refuse_unknown(options, (*KNOWN, "checkpointLocation"))
    for name in _NOT_OF_STREAMS:
        if options.get(name):
            raise InputError(
                f"option {name} does not go with a stream: each micro-batch is a batch of its own",
                hint="leave it out; option remember keeps rows out that an earlier micro-batch has brought",
            )
    _check_schema(schema, options)
    _refuses_duplicates(options)
    _remembered(options)
    return cluster_ref_of(options)


def stream_plan(options: Mapping[str, str], cluster: ClusterRef, batch: StreamBatch) -> WritePlan:
    """The plan of a task of a micro-batch. The options were checked.

    Raises:
        InputError: the handler is wrong.
        Conflict: the micro-batch is over, or the history of its time has been retired.
    """
    found = asyncio.run(_read_master(cluster, batch.name, None, _remembered(options), number=batch.number))
    if found.latest is not None and found.latest > batch.number:
        raise Conflict(
            f"micro-batch {batch.number} of {batch.name} is over: number {found.latest} has begun",
            hint="a checkpoint is for one query at a time; stop the other one",
        )
    _check_moment(batch.name, found)
    return _plan(options, cluster, batch.name, batch.run_id, found)


def _plan(options: Mapping[str, str], cluster: ClusterRef, batch: str, run_id: str, found: _MasterState) -> WritePlan:
    rate = number(options, "rowsPerSecond", 1) if options.get("rowsPerSecond") else None
    chunk_rows = number(options, "chunkRows", CHUNK_ROWS)
    brake = _brake(options)
    if brake is not None:  # a task takes the room of a whole chunk
        chunk_rows = min(chunk_rows, max(1, brake.max_backlog // CHUNKS_IN_BACKLOG))
    rejects = options.get("rejects")
    return WritePlan(
        cluster=cluster,
        batch=batch,
        run_id=run_id,
        rules=_rules(options, cluster, found),
        connections=number(options, "maxConnections", CONNECTIONS_MAX),
        # The first chunk does not wait, and a chunk goes in at once.
        chunk_rows=chunk_rows if rate is None else min(chunk_rows, max(1, rate // CHUNKS_PER_SECOND)),
        rows_per_second=rate,
        rejects=None if rejects is None else shared_path(rejects),
        refuse_duplicates=_refuses_duplicates(options),
        source=found.source,
        name=_remembered(options) or batch,
        brake=brake,
        finished_rows=number(options, "finishedRows", 0),
    )


def _brake(options: Mapping[str, str]) -> Brake | None:
    if not options.get("maxBacklog"):
        if options.get("resumeBacklog"):
            raise InputError(
                "option resumeBacklog needs maxBacklog", hint="maxBacklog holds back, resumeBacklog goes on"
            )
        return None
    most = number(options, "maxBacklog", 1)
    resume = number(options, "resumeBacklog", 0) if options.get("resumeBacklog") else most // 2
    if resume > most:
        raise InputError(
            f"option resumeBacklog ({resume}) is above maxBacklog ({most})", hint="leave it out: it is half of it"
        )
    return Brake(most, resume)


def _refuses_duplicates(options: Mapping[str, str]) -> bool:
    word = options.get("onDuplicate") or "ignore"
    if word not in ("ignore", "fail"):
        raise InputError(f"option onDuplicate is {word!r}", hint="give ignore or fail")
    return word == "fail"


def _remembered(options: Mapping[str, str]) -> str | None:
    """Name of the source whose rows are remembered."""
    name = options.get("remember")
    return check_name(name, "option remember", BATCH_CHARS_MAX) if name else None


def backfill_name(options: Mapping[str, str]) -> str:
    """Name under which a person finds and pauses a write: that of the source whose rows are remembered, or of the batch."""
    return _remembered(options) or _batch(options, "")[0]


def _batch(options: Mapping[str, str], run_id: str) -> tuple[str, datetime | None]:
    """Name of the batch, and the moment of a new one.

    A run that remembers its rows is a batch of its own: its jobs get ids of its own time.
    """
    batch = options.get("batch")
    if not batch and (source := options.get("remember")):
        batch = f"{source[: BATCH_CHARS_MAX - len(run_id) - 3]} ({run_id})"
    moment = parse_time("asOf", options["asOf"]) if options.get("asOf") else None
    if not batch and moment is None:
        raise InputError(
            "a write needs a name for its batch",
            hint="give option batch, such as import-2030-01-31: the same rows under the same name are inserted once; or"
            " option remember, a name for data that is submitted repeatedly: no row of it is inserted twice",
        )
    return check_name(batch or f"as of {moment}", "the batch's name", BATCH_CHARS_MAX), moment


def _check_moment(batch: str, found: _MasterState) -> None:
    """Refuse a moment below the retention watermark or beyond the last partition."""
    first = (found.as_of_us // 1000 << 80).to_bytes(16, "big")
    if first < found.floor:
        raise Conflict(
            f"batch {batch!r} is of a time whose history has been retired (ids below {text(found.floor)} are not taken)",
            hint="under another name every row would be a new job, also those that have run. Growing data that is submitted"
            " repeatedly needs no batch: jobmaster pipeline submit without --batch (in Spark: option remember) inserts only"
            " rows that no earlier run has inserted",
        )
    if first >= found.ceiling:
        raise InputError(
            f"batch {batch!r} is of a time for which the master has no partition yet",
            hint="give option asOf a time that has come",
        )


def _rules(options: Mapping[str, str], cluster: ClusterRef, found: _MasterState) -> RowRules:
    handler = options.get("handler")
    if handler is not None and handler not in found.specs and not flag(options, "allowUnregistered"):
        raise unknown_handler(handler, list(found.specs), "start an agent that has it, or set allowUnregistered")
    lane = options.get("lane")
    due = options.get("dueAt")
    lanes = found.lanes | cluster.lanes
    if lane and lane not in lanes:
        raise InputError(f"no agent serves lane {lane!r}", hint=f"lanes are {', '.join(sorted(lanes)) or 'none'}")
    return RowRules(
        as_of_ms=found.as_of_us // 1000,
        now_us=found.now_us,
        handler=handler,
        priority=int(_priority(options["priority"])) if options.get("priority") else None,
        lane=check_lane(lane) if lane else None,
        due_us=_us(parse_time("dueAt", due)) if due else 0,
        headers=_headers(options.get("headers")),
        replay=flag(options, "replay"),
        lax=flag(options, "lax"),
        allow_unregistered=flag(options, "allowUnregistered"),
        specs=found.specs,
        lanes=lanes,
        default_lane=cluster.lane,
        default_priority=int(_priority(cluster.priority)),
        limits=cluster.limits,
    )


async def _read_master(
    cluster: ClusterRef,
    batch: str,
    moment: Any,
    remember: str | None,
    *,
    dry: bool = False,
    number: int | None = None,
) -> _MasterState:
    connections = ConnectionPool(cluster.connection_factory(), 1)
    try:
        statements = StatementRunner(connections)
        await check_schema(statements, cluster.schema)
        wanted = None if moment is None else (_us(moment) - EPOCH_2000_US,)
        if number is not None:
            row = (await statements.write("pipeline/open_stream_batch", batch, number))[0]
        else:
            row = (await statements.write("pipeline/peek_batch" if dry else "pipeline/open_batch", batch, wanted))[0]
        handlers = [
            msgspec.json.decode(one["spec"], type=HandlerSpec) for one in await statements.read("queries/handlers")
        ]
        lanes = frozenset(one["lane"] for one in await statements.read("pipeline/lanes"))
        return _MasterState(
            row["as_of_us"],
            row["now_us"],
            row["floor"],
            row["ceiling"],
            {one.name: one for one in handlers},
            lanes,
            None if remember is None or dry else await _source(statements, remember),
            None if number is None else row["latest"],
        )
    finally:
        await connections.close()


async def _source(statements: StatementRunner, name: str) -> int:
    """Number of a source. Rows of an earlier batch of the same name are remembered, too."""
    row = (await statements.write("pipeline/open_source", name))[0]
    if row["adopts_us"] is not None:
        low, high = id_bounds_of(row["adopts_us"] // 1000)
        found = ADOPT_ROWS
        while found >= ADOPT_ROWS:
            page = (await statements.write("pipeline/adopt_batch", row["id"], low, high, ADOPT_ROWS))[0]
            if not page["remembered"]:
                raise Conflict(
                    f"source {name!r} was forgotten while its earlier rows were looked for (jobmaster pipeline forget)",
                    hint="start the write again",
                )
            found, low = page["found"], page["last"]
        await statements.write("pipeline/mark_adopted", row["id"])
    return int(row["id"])


def _check_schema(schema: Any, options: Mapping[str, str]) -> None:
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        kind = field.dataType.typeName()
        kind = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}.get(kind, kind)
        if field.name not in _TYPES:
            raise InputError(
                f"column {field.name!r} means nothing to a write",
                hint=f"its columns are {', '.join(COLUMNS)}; put arguments into one column args: "
                "to_json(struct(...)) or struct(...)",
            )
        if kind not in _TYPES[field.name]:
            raise InputError(
                f"column {field.name!r} of a write is {kind}", hint=f"it must be {' or '.join(_TYPES[field.name])}"
            )
    if "key" not in names:
        raise InputError("a write needs a column key", hint="it makes a row unique: the job's id is derived from it")
    if "handler" not in names and not options.get("handler"):
        raise InputError("a write needs a handler", hint="give option handler, or a column of that name")


def _priority(word: str) -> Priority:
    try:
        return Priority.parse(word)
    except ValueError as error:
        raise InputError(str(error)) from None


def _us(moment: Any) -> int:
    return int(moment.timestamp() * 1_000_000)


def _headers(text_: str | None) -> Headers:
    if not text_:
        return Headers()
    try:
        headers = msgspec.json.decode(text_, type=Headers)
        if headers.ordering_key is not None:
            ordering_key_text(headers.ordering_key)
        if headers.tenant is not None:
            checked_tenant(headers.tenant[0])
        if headers.traceparent is not None or headers.tracestate is not None:
            checked_context(headers.traceparent, headers.tracestate)
        return headers
    except (msgspec.DecodeError, InputError) as error:
        raise InputError(f"option headers cannot be read: {error}", hint='such as {"tags": ["import"]}') from None
