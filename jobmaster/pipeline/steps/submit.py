"""``submit`` and ``replay``: write rows as jobs, and account for every row."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import sha256
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmaster.clock import new_id
from jobmaster.handlers.registry import unknown_handler
from jobmaster.master.driver.connection import ConnectionPool, StatementRunner
from jobmaster.model.agent import HandlerSpec
from jobmaster.model.errors import InputError, JobMasterError
from jobmaster.model.job import JobState
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.spark.errors import run_spark
from jobmaster.pipeline.steps.inputs import SourceSpec, read_input
from jobmaster.pipeline.steps.mapping import RowMapping, map_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

REPLAYABLE = (JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED)
REASONS_SHOWN = 10
_BATCH_CHARS, _DIGEST_CHARS = 200, 16
_PROGRESS_SECONDS = 3.0


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


def submit(context: PipelineContext, order: SubmitRequest) -> StepResult:
    """Submit the rows of the source as jobs."""
    spec = _spec(context, order)
    frame = read_input(context.spark, order.source)
    found = map_rows(frame, order.mapping, spec)
    context.progress(f"arguments: {', '.join(found.arguments) or 'none'}")
    if found.unused:
        context.progress(f"columns that are not used: {', '.join(found.unused)}")
    options = {**order.options, "handler": order.handler, "lax": str(order.source.is_text).lower()}
    if order.batch is None and "asOf" not in options:
        options.setdefault("remember", source_name(order))
    return write(context, found.rows, order.batch, options, order.tasks)


def source_name(order: SubmitRequest) -> str:
    """Default name under which the rows are remembered.

    Two sources never have the same name, however long they are: otherwise rows of one would be skipped as rows of the other.
    """
    name = f"{order.handler} from {order.source.description}"
    if len(name) <= _BATCH_CHARS:
        return name
    digest = sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: _BATCH_CHARS - _DIGEST_CHARS - 1]} {digest}"


def replay(context: PipelineContext, choice: Mapping[str, str], batch: str, options: Mapping[str, str]) -> StepResult:
    """Submit failed, cancelled or expired jobs again, each as a new job with metadata ``replay_of``.

    Args:
        choice: options of a read: ``states``, ``since``, ``until``, ``handlers`` ...
        batch: a job that is replayed twice under one name is inserted once.
    """
    states = {state.strip().upper() for state in choice.get("states", "FAILED").split(",")}
    if wrong := states - {state.value for state in REPLAYABLE}:
        raise InputError(
            f"jobs that are {min(wrong)} are not replayed", hint=f"these are: {', '.join(s.value for s in REPLAYABLE)}"
        )
    columns = "id,args,handler,priority,lane,headers"
    frame = context.read("jobs", {**choice, "states": ",".join(sorted(states)), "columns": columns})
    return write(context, frame.withColumnRenamed("id", "key"), batch, {**options, "replay": "true"}, None)


def write(
    context: PipelineContext, rows: DataFrame, batch: str | None, options: Mapping[str, str], tasks: int | None
) -> StepResult:
    """Write rows as jobs; the result has their counts."""
    if context.dry_run:
        return _dry(context, rows, batch, options)
    run_id = new_id().hex()
    rejects = options.get("rejects") or f"{context.lake}/rejects"
    if "://" not in rejects:
        rejects = str(context.local(rejects).absolute())  # tasks may have another working directory
    every = {**context.source_options(), **options, **_named(batch), "runId": run_id, "rejects": rejects}
    if tasks is not None:
        rows = rows.coalesce(tasks)
    with _ProgressReporter(context, run_id):
        run_spark(lambda: rows.write.format("jobmaster").options(**every).mode("append").save())
    return _outcome(context, run_id, rejects)


def _named(batch: str | None) -> dict[str, str]:
    return {} if batch is None else {"batch": batch}


def _outcome(context: PipelineContext, run_id: str, rejects: str) -> StepResult:
    (row,) = context.connection.fetch("pipeline/write_result", run_id)
    offered, inserted, rejected = int(row["offered"]), int(row["inserted"]), int(row["rejected"])
    found: dict[str, Any] = {
        "batch": row["batch"],
        "run_id": run_id,
        "offered": offered,
        "inserted": inserted,
        "duplicates": offered - inserted - rejected,
        "rejected": rejected,
    }
    if rejected:
        found["rejects"] = rejects
        found["reasons"] = _reasons(context, rejects, run_id)
    return StepResult(rows=offered, summary=found)


def _reasons(context: PipelineContext, rejects: str, run_id: str) -> dict[str, int]:
    """The most frequent reasons of rejected rows, with counts."""
    from pyspark.sql import functions as F

    frame = context.spark.read.parquet(rejects).where(F.col("run_id") == run_id)
    rows = frame.groupBy("reason").count().orderBy(F.desc("count"), "reason").limit(REASONS_SHOWN).collect()
    return {row["reason"]: int(row["count"]) for row in rows}


def _dry(context: PipelineContext, rows: DataFrame, batch: str | None, options: Mapping[str, str]) -> StepResult:
    """Check every row as a write would, without writing."""
    from pyspark.sql import functions as F

    every = {**context.source_options(), **options, **_named(batch)}
    frame = _checked(rows, every)
    counts = run_spark(lambda: frame.groupBy("reason").agg(F.sum("rows").alias("rows")).collect())
    reasons = {row["reason"]: int(row["rows"]) for row in counts if row["reason"] is not None}
    offered = sum(int(row["rows"]) for row in counts)
    most = dict(sorted(reasons.items(), key=lambda item: -item[1])[:REASONS_SHOWN])
    found = {
        "batch": batch or options.get("remember"),
        "offered": offered,
        "rejected": sum(reasons.values()),
        "reasons": most,
    }
    return StepResult(rows=offered, summary=found)


def _checked(rows: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """``(reason, rows)`` of each batch; no reason: rows that would become jobs."""
    from jobmaster.pipeline.datasource.row_parser import RowParser
    from jobmaster.pipeline.datasource.write_options import write_plan

    rules = write_plan(options, rows.schema, dry=True).rules

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        reader = RowParser(rules)
        for batch in batches:
            jobs, rejects = reader.read(batch)
            counts: Counter[str | None] = Counter(one.reason for one in rejects)
            if jobs:
                counts[None] = len(jobs)
            yield pa.RecordBatch.from_arrays(
                [pa.array(list(counts), pa.string()), pa.array(list(counts.values()), pa.int64())],
                names=["reason", "rows"],
            )

    return rows.mapInArrow(check, "reason string, rows bigint")


def _spec(context: PipelineContext, order: SubmitRequest) -> HandlerSpec | None:
    specs = context.connection.run(context.connection.master.queries.handlers())
    spec = specs.get(order.handler)
    if spec is None and order.options.get("allowUnregistered") != "true":
        raise unknown_handler(order.handler, list(specs), "start an agent that has it, or give --allow-unregistered")
    return spec


class _ProgressReporter:
    """Reports every few seconds how many jobs were inserted, from the counts in the master, on a connection of its own."""

    def __init__(self, context: PipelineContext, run_id: str) -> None:
        self._context = context
        self._run_id = run_id
        self._connection_factory = context.connection.connection_factory
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="jobmaster-progress", daemon=True)

    def __enter__(self) -> _ProgressReporter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        with asyncio.Runner() as runner:
            connections = ConnectionPool(self._connection_factory, 1)
            statements = StatementRunner(connections)
            while not self._done.wait(_PROGRESS_SECONDS):
                try:
                    rows = runner.run(statements.read("pipeline/written", self._run_id))
                except JobMasterError:
                    continue  # the tasks report the error
                if rows[0]["inserted"]:
                    self._context.progress(f"{rows[0]['inserted']:,} jobs are in".replace(",", " "))
            runner.run(connections.close())
