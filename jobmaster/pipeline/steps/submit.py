"""``submit`` and ``replay``: write rows as jobs, and account for every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from jobmaster.clock import new_id
from jobmaster.handlers.registry import unknown_handler
from jobmaster.model.agent import HandlerSpec
from jobmaster.model.errors import InputError
from jobmaster.model.job import JobState
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.datasource.selection import parse_time
from jobmaster.pipeline.datasource.write_options import backfill_name
from jobmaster.pipeline.lake.full_history import open_history
from jobmaster.pipeline.lake.lake import Lake, lake_errors
from jobmaster.pipeline.spark.errors import run_spark
from jobmaster.pipeline.steps.backfills import SubmitRequest, books, open_backfill, stored_request
from jobmaster.pipeline.steps.finished_files import LeftRows, left_rows
from jobmaster.pipeline.steps.inputs import located, read_input
from jobmaster.pipeline.steps.mapping import map_rows
from jobmaster.pipeline.steps.write_progress import ProgressReporter, WriteWatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

REPLAYABLE = (JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED)
REPLAYED = "jobs that were replayed"
"""Name under which the master remembers the jobs of replays that have no batch."""
_REPLAY_COLUMNS = ("id", "args", "handler", "priority", "lane", "headers")
REASONS_SHOWN = 10
_BATCH_CHARS, _DIGEST_CHARS = 200, 16
_COUNTED_CHEAPLY = ("parquet", "orc")
"""The footers of their files have the numbers of rows."""


@dataclass(frozen=True)
class WriteRequest:
    """How rows are written."""

    batch: str | None
    """``None``: the rows of a source are remembered (option ``remember``), or the batch is named by ``asOf``."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the data source."""
    tasks: int | None = None
    """Maximum of connections that write at once."""
    request: str | None = None
    """JSON that another machine can resume the write from."""
    total: int | None = None
    """Rows that are expected."""
    json_progress: bool = False


def submit(context: PipelineContext, order: SubmitRequest, *, json_progress: bool = False) -> StepResult:
    """Submit the rows of the source as jobs.

    Args:
        json_progress: progress as JSON lines instead of text.

    Raises:
        Conflict: the backfill is paused.
    """
    spec = _spec(context, order)
    given, order = order, order._replace(source=located(context.spark, order.source))
    frame = read_input(context.spark, order.source)
    options = {**order.options, "handler": order.handler, "lax": str(order.source.is_text).lower()}
    if order.batch is None and "asOf" not in options and "remember" not in options:
        options["remember"] = _default_name(context, order, given)
    order = order._replace(options=options)
    left = LeftRows(frame, None, 0) if context.dry_run else left_rows(context, order, frame)
    found = map_rows(left.frame, order.mapping, spec, left.file)
    context.progress(f"arguments: {', '.join(found.arguments) or 'none'}")
    if found.unused:
        context.progress(f"columns that are not used: {', '.join(found.unused)}")
    total = None if context.dry_run else _expected(order, frame)
    request = stored_request(order)
    if left.finished_rows:
        options = {**options, "finishedRows": str(left.finished_rows)}
    return write(context, found.rows, WriteRequest(order.batch, options, order.tasks, request, total, json_progress))


def _expected(order: SubmitRequest, frame: DataFrame) -> int | None:
    """Rows of the source, as far as they are known or cost little to count."""
    if order.expected is not None:
        return order.expected
    source = order.source
    is_cheap = source.place is not None and source.sql is None and source.kind in _COUNTED_CHEAPLY
    return run_spark(lambda: int(frame.count())) if order.count_first or is_cheap else None


def _default_name(context: PipelineContext, order: SubmitRequest, given: SubmitRequest) -> str:
    """Name under which the rows are remembered, without ``--remember``. A source that an earlier version has named by its
    address as it was typed keeps that name: under another one all of its rows would be submitted again.

    Args:
        order: its source is located.
        given: the same, as it was typed.
    """
    name = source_name(order.handler, order.source.description)
    earlier = [source_name(order.handler, one) for one in given.source.earlier_descriptions]
    known = {row["name"] for row in context.connection.fetch("pipeline/known_sources", [name, *earlier])}
    kept = next((one for one in earlier if one in known), None)
    if name in known or kept is None:
        return name
    context.progress(
        f"the rows are remembered as {kept!r}, the name that an earlier version gave to this source; "
        f'if those were other rows than these: --remember "{name}"'
    )
    return kept


def source_name(handler: str, description: str) -> str:
    """Default name under which the rows of a source are remembered.

    Two sources never have the same name, however long they are: otherwise rows of one would be skipped as rows of the other.

    Args:
        description: of the source, located.
    """
    name = f"{handler} from {description}"
    if len(name) <= _BATCH_CHARS:
        return name
    digest = sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: _BATCH_CHARS - _DIGEST_CHARS - 1]} {digest}"


def replay(
    context: PipelineContext, choice: Mapping[str, str], batch: str | None, options: Mapping[str, str]
) -> StepResult:
    """Submit failed, cancelled or expired jobs again, each as a new job with metadata ``replay_of``.

    Jobs of the master and of the lake. A range that leaves the master while the step runs may be read in neither of them;
    the result then says so, and the next call replays its jobs.

    Args:
        choice: options of a read: ``states``, ``since``, ``until``, ``handlers``, ``lanes``.
        batch: a job that is replayed twice under one name is inserted once. ``None``: each job is replayed once, ever; the
            master remembers it. A replay that fails is a failed job of its own.

    Raises:
        InputError: jobs in one of the states are not replayed.
        Refused: archived jobs fit, and the lake is that of another cluster or not the one they are in.
    """
    states = {state.strip().upper() for state in choice.get("states", "FAILED").split(",")}
    if wrong := states - {state.value for state in REPLAYABLE}:
        raise InputError(
            f"jobs that are {min(wrong)} are not replayed", hint=f"these are: {', '.join(s.value for s in REPLAYABLE)}"
        )
    chosen = {**choice, "states": ",".join(sorted(states))}
    frame = context.read("jobs", {**chosen, "columns": ",".join(_REPLAY_COLUMNS)})
    before = _archived(context)
    if any(_may_fit(chosen, first_us, last_us) for first_us, last_us in before.values()):
        frame = frame.unionByName(_archived_rows(context, chosen))
    given = {**options, "replay": "true"}
    if batch is None:
        given["remember"] = REPLAYED
    done = write(context, frame.withColumnRenamed("id", "key"), WriteRequest(batch, given))
    if left := sorted(_archived(context).keys() - before):
        note = f"{', '.join(left)} left the master meanwhile; run it again, so that no job of it is missing"
        done = replace(done, note=note)
    return done


def _archived(context: PipelineContext) -> dict[str, tuple[int, int]]:
    """First and last time of each range that is in the lake alone, in microseconds since 1970."""
    return {row["name"]: (row["first_us"], row["last_us"]) for row in context.connection.fetch("export/archived")}


def _may_fit(choice: Mapping[str, str], first_us: int, last_us: int) -> bool:
    """Whether a range may have jobs created within ``since`` and ``until``."""
    low, high = (
        None if choice.get(name) is None else parse_time(name, choice[name]).timestamp() * 1e6
        for name in ("since", "until")
    )
    return (low is None or last_us >= low) and (high is None or first_us < high)


def _archived_rows(context: PipelineContext, choice: Mapping[str, str]) -> DataFrame:
    """The chosen jobs of the lake."""
    from pyspark.sql import functions as F

    with open_history(context) as history, lake_errors(Lake(context.lake)):
        fitting = [
            one
            for one in history.archived
            if _may_fit(choice, round(one.first.timestamp() * 1e6), round(one.last.timestamp() * 1e6))
        ]
        frame = history.archived_frame("jobs", (*_REPLAY_COLUMNS, "state", "created_at"), fitting)
    for option, column in (("states", "state"), ("handlers", "handler"), ("lanes", "lane")):
        if choice.get(option):
            frame = frame.where(F.col(column).isin([word.strip() for word in choice[option].split(",")]))
    if choice.get("since"):
        frame = frame.where(F.col("created_at") >= F.lit(parse_time("since", choice["since"])))
    if choice.get("until"):
        frame = frame.where(F.col("created_at") < F.lit(parse_time("until", choice["until"])))
    # The lake has nothing where a job has no headers; the view of the master has an empty object.
    return frame.withColumn("headers", F.coalesce(F.nullif("headers", F.lit("")), F.lit("{}"))).select(*_REPLAY_COLUMNS)


def write(context: PipelineContext, rows: DataFrame, wanted: WriteRequest) -> StepResult:
    """Write rows as jobs; the result has their counts.

    Raises:
        Conflict: the backfill is paused.
    """
    batch, options = wanted.batch, wanted.options
    if context.dry_run:
        return _dry(context, rows, batch, options)
    run_id = new_id().hex()
    name = backfill_name({**options, **_named(batch)})
    open_backfill(context, name, wanted.request)
    rejects = options.get("rejects") or f"{context.lake}/rejects"
    if "://" not in rejects:
        rejects = str(context.local(rejects).absolute())  # tasks may have another working directory
    every = {**context.source_options(), **options, **_named(batch), "runId": run_id, "rejects": rejects}
    if wanted.tasks is not None:
        rows = rows.coalesce(wanted.tasks)
    with ProgressReporter(context, run_id, WriteWatch(name, wanted.total, wanted.json_progress)):
        run_spark(lambda: rows.write.format("jobmaster").options(**every).mode("append").save())
    return _outcome(context, name, run_id, rejects)


def _named(batch: str | None) -> dict[str, str]:
    return {} if batch is None else {"batch": batch}


def _outcome(context: PipelineContext, name: str, run_id: str, rejects: str) -> StepResult:
    (row,) = context.connection.fetch("pipeline/write_result", run_id)
    offered, inserted, rejected = int(row["offered"]), int(row["inserted"]), int(row["rejected"])
    found: dict[str, Any] = {
        "batch": row["batch"],
        "run_id": run_id,
        "offered": offered,
        "inserted": inserted,
        "duplicates": offered - inserted - rejected,
        "rejected": rejected,
        **books(context, name),
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
    from jobmaster.pipeline.datasource.rows.row_parser import RowParser
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
