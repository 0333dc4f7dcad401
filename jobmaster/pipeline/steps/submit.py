"""``jobmaster pipeline submit`` and ``replay``: rows to jobs, with an account of every row."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmaster.clock import new_id
from jobmaster.handlers.registry import unknown_handler
from jobmaster.model.agent import HandlerSpec
from jobmaster.model.errors import InputError
from jobmaster.model.job import JobState
from jobmaster.pipeline.context import Outcome, PipelineRun
from jobmaster.pipeline.spark.errors import spoken
from jobmaster.pipeline.steps.inputs import Input, read_input
from jobmaster.pipeline.steps.mapping import Wanted, mapped
from jobmaster.pipeline.steps.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REPLAYABLE = (JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED)
REASONS_SHOWN = 10
_BATCH_CHARS, _DIGEST_CHARS = 200, 16


class Order(NamedTuple):
    """What to submit, and how."""

    source: Input
    handler: str
    wanted: Wanted
    batch: str | None
    options: Mapping[str, str]
    """Of the data source: ``priority``, ``lane``, ``dueAt``, ``headers``, ``rowsPerSecond``, ``onDuplicate`` ..."""
    tasks: int | None = None
    """How many connections write at once."""


def submit(run: PipelineRun, order: Order) -> Outcome:
    """Jobs out of data."""
    spec = _spec(run, order)
    frame = read_input(run.spark, order.source)
    found = mapped(frame, order.wanted, spec)
    run.tell(f"arguments: {', '.join(found.arguments) or 'none'}")
    if found.unused:
        run.tell(f"columns that are not used: {', '.join(found.unused)}")
    options = {**order.options, "handler": order.handler, "lax": str(order.source.is_text).lower()}
    if order.batch is None and "asOf" not in options:
        options.setdefault("remember", source_name(order))
    return write(run, found.rows, order.batch, options, order.tasks)


def source_name(order: Order) -> str:
    """What the rows are remembered under when nothing else is said: of two sources never the same, however long they are.
    Rows of one would be left out as rows of the other."""
    name = f"{order.handler} from {order.source.said}"
    if len(name) <= _BATCH_CHARS:
        return name
    digest = sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: _BATCH_CHARS - _DIGEST_CHARS - 1]} {digest}"


def replay(run: PipelineRun, choice: Mapping[str, str], batch: str, options: Mapping[str, str]) -> Outcome:
    """Jobs that ended badly once more, each as a new job that bears ``replay_of``; what has ended stays as it is.

    Args:
        choice: options of a read: ``states``, ``since``, ``until``, ``handlers`` ...
        batch: replayed twice under one name, a job is there once.
    """
    states = {state.strip().upper() for state in choice.get("states", "FAILED").split(",")}
    if wrong := states - {state.value for state in REPLAYABLE}:
        raise InputError(
            f"jobs that are {min(wrong)} are not replayed", hint=f"these are: {', '.join(s.value for s in REPLAYABLE)}"
        )
    columns = "id,args,handler,priority,lane,headers"
    frame = run.read("jobs", {**choice, "states": ",".join(sorted(states)), "columns": columns})
    return write(run, frame.withColumnRenamed("id", "key"), batch, {**options, "replay": "true"}, None)


def write(
    run: PipelineRun, rows: DataFrame, batch: str | None, options: Mapping[str, str], tasks: int | None
) -> Outcome:
    """Write rows and say what became of them."""
    if run.dry_run:
        return _dry(run, rows, batch, options)
    run_id = new_id().hex()
    rejects = options.get("rejects") or f"{run.lake}/rejects"
    if "://" not in rejects:
        rejects = str(run.local(rejects).absolute())  # tasks may have another working directory
    every = {**run.source_options(), **options, **_named(batch), "runId": run_id, "rejects": rejects}
    if tasks is not None:
        rows = rows.coalesce(tasks)
    with Progress(run, run_id):
        spoken(lambda: rows.write.format("jobmaster").options(**every).mode("append").save())
    return _outcome(run, run_id, rejects)


def _named(batch: str | None) -> dict[str, str]:
    return {} if batch is None else {"batch": batch}


def _outcome(run: PipelineRun, run_id: str, rejects: str) -> Outcome:
    (row,) = run.link.ask("pipeline/write_of", run_id)
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
        found["reasons"] = _reasons(run, rejects, run_id)
    return Outcome(rows=offered, found=found)


def _reasons(run: PipelineRun, rejects: str, run_id: str) -> dict[str, int]:
    """The most frequent reasons, and how often."""
    from pyspark.sql import functions as F

    frame = run.spark.read.parquet(rejects).where(F.col("run_id") == run_id)
    rows = frame.groupBy("reason").count().orderBy(F.desc("count"), "reason").limit(REASONS_SHOWN).collect()
    return {row["reason"]: int(row["count"]) for row in rows}


def _dry(run: PipelineRun, rows: DataFrame, batch: str | None, options: Mapping[str, str]) -> Outcome:
    """Check every row as a write would, and write none."""
    from pyspark.sql import functions as F

    from jobmaster.pipeline.steps.dry_run import tried

    every = {**run.source_options(), **options, **_named(batch)}
    frame = tried(rows, every)
    counts = spoken(lambda: frame.groupBy("reason").agg(F.sum("rows").alias("rows")).collect())
    reasons = {row["reason"]: int(row["rows"]) for row in counts if row["reason"] is not None}
    offered = sum(int(row["rows"]) for row in counts)
    most = dict(sorted(reasons.items(), key=lambda item: -item[1])[:REASONS_SHOWN])
    found = {
        "batch": batch or options.get("remember"),
        "offered": offered,
        "rejected": sum(reasons.values()),
        "reasons": most,
    }
    return Outcome(rows=offered, found=found)


def _spec(run: PipelineRun, order: Order) -> HandlerSpec | None:
    specs = run.link.wait(run.link.master.handlers())
    spec = specs.get(order.handler)
    if spec is None and order.options.get("allowUnregistered") != "true":
        raise unknown_handler(order.handler, list(specs), "start an agent that has it, or give --allow-unregistered")
    return spec
