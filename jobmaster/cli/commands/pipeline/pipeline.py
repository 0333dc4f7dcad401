"""``jobmaster pipeline``: one command per step, and ``run`` for several steps in one Spark session.

Every command imports its step when it runs, so ``--help`` costs neither Spark nor the pipeline.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import DURATION
from jobmaster.cli.commands.pipeline.figures import anomalies, cost, objectives, rollup
from jobmaster.cli.commands.pipeline.step import (
    note_backfill,
    note_batch,
    open_shared,
    session_options,
    step,
    step_context,
)
from jobmaster.cli.failures import EXIT_FAILED
from jobmaster.cli.invocation import Invocation, pass_invocation

if TYPE_CHECKING:
    from jobmaster.pipeline.context import PipelineContext, StepResult


@click.group("pipeline", no_args_is_help=True)
def pipeline_group() -> None:
    """Move jobs and their history by the million, with Spark."""


@step("archive")
@click.option(
    "--older-than", type=DURATION, default="7d", show_default=True, help="Archive ranges in which every job is older."
)
@click.option("--keep", is_flag=True, help="Leave archived ranges in the master, too, until a later run.")
@click.option("--lost-store", "lost_stores", multiple=True, help="A store that is lost for good; may be repeated.")
def archive(context: PipelineContext, older_than: float, keep: bool, lost_stores: tuple[str, ...]) -> StepResult:
    """Move old ranges of jobs from the master to the lake.

    A range is detached, copied to Parquet, read again and compared with the master in count and checksum, published, and
    only then dropped. After a crash at any point, run the command again: it continues. Unfinished jobs stay in the master.

    \b
    Examples:
      jobmaster pipeline archive --older-than 30d
      jobmaster pipeline archive --keep --lake /srv/lake
    """
    from jobmaster.pipeline.steps.archive import archive

    return archive(context, older_than, keep=keep, lost_stores=lost_stores)


@step("backfills")
@click.argument("name", required=False)
def backfills(context: PipelineContext, name: str | None) -> StepResult:
    """Show what is written by submits, on any machine.

    The latest 50, or the one with NAME: state (writing, held back, paused, stopped, ended), rows that were handled, jobs that
    were inserted by all of its runs since the last one that ended, the estimated end, and the machine of its driver.

    \b
    Examples:
      jobmaster pipeline backfills
      jobmaster pipeline backfills import-2030 -o json
    """
    from jobmaster.pipeline.steps.backfills import list_backfills

    return list_backfills(context, name)


@step("audit")
@click.option("--evidence", type=click.IntRange(0, 10_000), default=20, show_default=True, help="Violations to name.")
def audit(context: PipelineContext, evidence: int) -> StepResult:
    """Check the invariants over the whole history.

    Archived and live jobs together: each job has one outcome; no job is lost or stored twice; no outcome comes from an owner
    that had lost the job; every file of the lake is as verified. All violations are written to the lake. Exit code 1 when
    there is one.

    \b
    Examples:
      jobmaster pipeline audit
      jobmaster pipeline audit --evidence 100 -o json
    """
    from jobmaster.pipeline.steps.audit import audit

    return audit(context, evidence)


@step("compact")
def compact(context: PipelineContext) -> StepResult:
    """Merge small files of the lake.

    Of each range that has several files below 64 MiB for one day, the files are written anew, verified, and replaced in the
    manifest; then the old ones are deleted. After a crash at any point, run the command again.

    \b
    Example:
      jobmaster pipeline compact --dry-run
    """
    from jobmaster.pipeline.steps.forget_jobs import compact as carry_out

    return carry_out(context)


@step("doctor")
def doctor(context: PipelineContext) -> StepResult:
    """Check Java, Spark, the master and the lake.

    Shows which Java is used and why, starts Spark, reads a row of every table, and checks that the lake is writable.
    Exit code 1 when something does not work.

    \b
    Examples:
      jobmaster pipeline doctor
      jobmaster pipeline doctor --master spark://host:7077 -o json
    """
    from jobmaster.pipeline.steps.doctor import doctor

    return doctor(context)


@step("forget")
@click.argument("name", required=False)
@click.option(
    "--metadata", multiple=True, metavar="NAME=VALUE", help="Jobs of the lake with that metadata; may be repeated."
)
@click.option("--older-than", type=DURATION, help="Jobs of the lake that were created before then, such as 400d.")
def forget(
    context: PipelineContext, name: str | None, metadata: tuple[str, ...], older_than: float | None
) -> StepResult:
    """Forget jobs of the lake, or the rows of a source.

    With --metadata or --older-than (both: jobs that fit both) archived jobs are deleted from the lake, with their attempts
    and log lines: the files of their ranges are written anew, verified, and replaced in the manifest; then the old ones are
    deleted. After a crash at any point, run the command again. Jobs that are still in the master stay.

    With NAME, a source is forgotten: submitted again, each of its rows is a new job. NAME is what `pipeline submit` was
    given with --remember, or the handler and the source (`pipeline ls` lists them). Refused while a submit of it runs.

    \b
    Examples:
      jobmaster pipeline forget --metadata tenant=42 --dry-run
      jobmaster pipeline forget --older-than 400d
      jobmaster pipeline forget "bill from orders.parquet" --dry-run
    """
    from jobmaster.cli.operator_log import NOTE, note_values
    from jobmaster.model.errors import InputError

    by_condition = bool(metadata) or older_than is not None
    if by_condition == (name is not None):
        raise InputError(
            "forget needs either the name of a source, or what jobs of the lake to delete",
            hint="give NAME, or --metadata NAME=VALUE and --older-than TIME, or one of these two",
        )
    if name is not None:
        from jobmaster.pipeline.steps.lake_admin import forget as carry_out

        result = carry_out(context, name)
        if not context.dry_run:
            context.connection.execute(NOTE, *note_values("pipeline forget", {name: {"forgotten_rows": result.rows}}))
        return result
    from jobmaster.pipeline.steps.forget_jobs import forget_jobs, forgotten

    result = forget_jobs(context, forgotten(metadata, older_than, context.clock.wall_us()))
    if result.rows and not context.dry_run:
        detail = {"jobs": result.rows, "metadata": list(metadata), "older_than_seconds": older_than}
        context.connection.execute(NOTE, *note_values("pipeline forget", {context.lake: detail}))
    return result


@step("ls")
def ls(context: PipelineContext) -> StepResult:
    """Show what the lake holds, and the latest batches.

    \b
    Example:
      jobmaster pipeline ls --lake lake -o json
    """
    from jobmaster.pipeline.steps.lake_admin import list_lake

    return list_lake(context)


@step("pause")
@click.argument("name")
def pause(context: PipelineContext, name: str) -> StepResult:
    """Pause a submit.

    NAME is that of the batch, of the source (as `pipeline backfills` shows it), or the id of a run. Its tasks, on whatever
    machine, end the chunk that they are in and wait. Another submit of that name is refused until `pipeline resume`.

    \b
    Example:
      jobmaster pipeline pause import-2030
    """
    from jobmaster.cli.operator_log import operator_name
    from jobmaster.pipeline.steps.backfills import pause

    return note_backfill(context, "pipeline pause", pause(context, name, operator_name()))


@step("plan")
@click.option(
    "--objective", "objectives", multiple=True, metavar="[LANE/]PRIORITY=TIME", help="Waiting that is allowed."
)
@click.option("--quantile", type=click.FloatRange(0.5, 0.9999), default=0.99, show_default=True, help="Of the waits.")
@click.option(
    "--arrivals",
    multiple=True,
    metavar="[[LANE/]PRIORITY=]xN",
    help="What if jobs come N times as often; may be repeated.",
)
@click.option(
    "--mix",
    multiple=True,
    metavar="PRIORITY=N%",
    help="What if a priority has that share of all jobs; may be repeated.",
)
@click.option("--agents", type=click.IntRange(1), help="What if there are N agents.  [default: as in the history]")
@click.option("--slots", type=click.IntRange(1), help="Slots of a bucket.  [default: as configured, or more]")
@click.option("--kind", help="Kind of agent in the configuration.  [default: the first]")
@click.option("--days", type=click.IntRange(1, 400), default=14, show_default=True, help="Days of history.")
@click.option("--hours", type=click.IntRange(1, 10_000), default=24, show_default=True, help="Busiest hours to replay.")
@click.option(
    "--ahead",
    type=click.IntRange(0, 400),
    metavar="DAYS",
    default=28,
    show_default=True,
    help="Plan for the load of that day, if it grows as it did from week to week.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Where to write the configuration, too.")
@click.option(
    "--check", is_flag=True, help="Plan without the last day and test the plan on it; exit code 1 when it fails."
)
def plan(
    context: PipelineContext,
    objectives: tuple[str, ...],
    arrivals: tuple[str, ...],
    mix: tuple[str, ...],
    **words: Any,
) -> StepResult:
    """Propose buckets, slots, agents and the transient threshold, with the waits to expect.

    First the present configuration is replayed with the measured arrivals, and its waits are shown beside the measured ones:
    where they differ by more than a factor of two, no objective is called met. Then other numbers are tried on the busiest
    hours, for a load that grows as it did. The error is that of the same prediction for the latest days from the earlier
    ones. Writes a configuration for agents, its difference to the present one, and the curves into the report. Without
    objectives: critical=1s high=5s medium=30s low=2m very_low=10m.

    The plan is kept in the lake; `jobmaster pipeline review` compares it later with what has happened.

    \b
    Examples:
      jobmaster pipeline plan --objective critical=200ms --objective payroll/medium=5s --out buckets.yaml
      jobmaster pipeline plan --arrivals x2
      jobmaster pipeline plan --agents 3 --mix critical=30%
      jobmaster pipeline plan --check
    """
    from jobmaster.pipeline.plan.options import PlanOptions, parse_arrivals, parse_mix, parse_objectives
    from jobmaster.pipeline.plan.plan import plan

    return plan(
        context,
        PlanOptions(parse_objectives(objectives), arrivals=parse_arrivals(arrivals), mix=parse_mix(mix), **words),
    )


@step("replay")
@click.option(
    "--state", "states", type=click.Choice(["failed", "cancelled", "expired"]), multiple=True, default=["failed"]
)
@click.option("--since", help="Jobs created from then on, such as 2030-01-31.")
@click.option("--until", help="Jobs created before then.")
@click.option("--handler", "handlers", multiple=True)
@click.option("--lane", "lanes", multiple=True)
@click.option(
    "--batch", help="Replayed twice under one name, a job is there once.  [default: each job is replayed once, ever]"
)
@click.option("--rate", type=click.IntRange(1), metavar="N", help="At most so many jobs a second.")
def replay(
    context: PipelineContext,
    states: tuple[str, ...],
    since: str | None,
    until: str | None,
    handlers: tuple[str, ...],
    lanes: tuple[str, ...],
    batch: str | None,
    rate: int | None,
) -> StepResult:
    """Run jobs that failed again, each as a new job.

    Jobs of the master and of the lake. The original job stays unchanged; the new job has metadata replay_of=ID. The master
    remembers which jobs were replayed, so a repeated call runs only those that have failed since. With --batch, a job is
    replayed once in each batch.

    \b
    Examples:
      jobmaster pipeline replay --since 2030-01-31 --dry-run
      jobmaster pipeline replay --handler images.resize --batch after-the-outage --rate 1000
    """
    from jobmaster.pipeline.steps.submit import replay as carry_out

    choice = {"states": ",".join(states), "since": since, "until": until}
    choice |= {"handlers": ",".join(handlers) or None, "lanes": ",".join(lanes) or None}
    options = {"rowsPerSecond": str(rate)} if rate is not None else {}
    done = carry_out(context, {key: value for key, value in choice.items() if value}, batch, options)
    return note_batch(context, "pipeline replay", done)


@step("resume")
@click.argument("name")
@click.option("--source", help="The source again, if it has a password.")
@click.option("--reader", multiple=True, metavar="KEY=VALUE", help="Option of Spark's reader that is secret.")
@click.option("--progress", "progress", type=click.Choice(["text", "json"]), default="text", show_default=True)
def resume(
    context: PipelineContext, name: str, source: str | None, reader: tuple[str, ...], progress: str
) -> StepResult:
    """Continue a submit that is paused, or whose driver has ended.

    If its driver lives, its tasks go on. Otherwise the submit runs here, with the options of the call that began it, which
    the master keeps; the source must be reachable from this machine. Rows that are in are not inserted again.

    \b
    Examples:
      jobmaster pipeline resume import-2030
      jobmaster pipeline resume import-2030 --master spark://host:7077
    """
    from jobmaster.pipeline.steps.backfills import end_pause, restored_request
    from jobmaster.pipeline.steps.mapping import parse_pairs
    from jobmaster.pipeline.steps.submit import submit as carry_out

    if context.dry_run:
        from jobmaster.pipeline.steps.backfills import list_backfills

        return list_backfills(context, name)
    result, request = end_pause(context, name)
    note_backfill(context, "pipeline resume", result)
    if request is None:
        return result
    order = restored_request(str(result.summary["backfill"]), request, source, parse_pairs(reader, "--reader"))
    done = carry_out(context, order, json_progress=progress == "json")
    return note_batch(context, "pipeline submit", done)


@click.command("run", params=session_options())
@click.argument("steps", nargs=-1, required=True, metavar="STEP...")
@pass_invocation
@click.pass_context
def run(
    ctx: click.Context,
    invocation: Invocation,
    steps: tuple[str, ...],
    spark_master: str,
    spark_conf: tuple[str, ...],
    lake: str | None,
    dry_run: bool,
) -> None:
    """Run several steps in one Spark session.

    A step is the name of a command of the pipeline, or in quotes a name with its options. --dry-run, --lake, --master and
    --conf are for all steps, and refused inside the quotes of one. All steps are parsed before the first one starts.
    A step that fails ends the run; after a step whose check found violations the others continue, and the exit code is 1.

    \b
    Examples:
      jobmaster pipeline run rollup audit plan
      jobmaster pipeline run "archive --older-than 7d" rollup audit --lake lake
    """
    contexts = [step_context(ctx, pipeline_group, text) for text in steps]
    failed = False
    shared = open_shared(ctx, invocation, spark_master, spark_conf, lake, dry_run)
    try:
        for inner in contexts:
            invocation.note(f"step {inner.info_name}")
            with inner:
                failed |= bool(inner.command.invoke(inner).failed)
    finally:
        shared.close()
    if failed:
        ctx.exit(EXIT_FAILED)


@step("review")
@click.argument("plan", required=False)
def review(context: PipelineContext, plan: str | None) -> StepResult:
    """Compare a plan that was kept with what has happened since.

    Shows for each lane and priority the waits that were predicted and those that were measured since the plan was made, and
    whether the load and the buckets were those of the plan. Exit code 1 when jobs waited more than twice as long as
    predicted, or an objective was missed that the plan had called met. PLAN is the name that `pipeline plan` printed, or the
    file of its --out; without it the latest plan is taken.

    \b
    Examples:
      jobmaster pipeline review
      jobmaster pipeline review buckets.yaml -o json
    """
    from jobmaster.pipeline.plan.review import review as carry_out

    return carry_out(context, plan)


@step("stream")
@click.argument("table", type=click.Choice(["jobs", "attempts", "events"]), default="jobs")
@click.option(
    "--interval", metavar="SECONDS", type=click.FloatRange(1), help="Continue until stopped, one batch in this time."
)
@click.option("--rows", type=click.IntRange(1), default=500_000, show_default=True, help="Of one batch, about.")
@click.option("--from", "position", type=click.Choice(["earliest", "latest"]), default="earliest", show_default=True)
def stream(context: PipelineContext, table: str, interval: float | None, rows: int, position: str) -> StepResult:
    """Copy finished jobs of the master to the lake, each job once.

    Copies everything recorded since the last call and ends; with --interval it continues until it is stopped. Its position
    is stored in the lake. It reads a transaction only after every earlier one has ended, so no job is skipped.

    \b
    Examples:
      jobmaster pipeline stream
      jobmaster pipeline stream attempts --interval 60
    """
    from jobmaster.pipeline.steps.stream import stream

    return stream(context, table, interval, rows, position)


@step("submit")
@click.argument("source", required=False)
@click.option("--handler", required=True, help="The handler of the jobs.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    required=True,
    metavar="COLUMN",
    help="Columns that identify a row; * = the whole row.",
)
@click.option("--format", "kind", type=click.Choice(["csv", "json", "parquet", "orc"]), help="Default: by the name.")
@click.option("--table", help="Table of the database that SOURCE names.")
@click.option("--sql", help="A query: of that database, or over the files (called source) and the views.")
@click.option("--view", "views", multiple=True, metavar="NAME=PATH", help="More files that the query names.")
@click.option("--reader", "reader", multiple=True, metavar="KEY=VALUE", help="Option of Spark's reader, such as sep=;")
@click.option("--map", "arguments", multiple=True, metavar="ARG=EXPR", help="Argument from a column or expression.")
@click.option("--due", metavar="EXPR", help="Due time from a column or expression.")
@click.option("--priority-from", metavar="EXPR", help="Priority from a column or expression.")
@click.option("--lane-from", metavar="EXPR", help="Lane from a column or expression.")
@click.option("--at", help="Due time of all jobs, such as 2030-01-31T12:00:00Z.")
@click.option("--priority", type=click.Choice(["critical", "high", "medium", "low", "very_low"]))
@click.option("--lane")
@click.option("--tag", "tags", multiple=True)
@click.option(
    "--batch", help="Name of a batch that is submitted once: its rows are remembered while their jobs are kept."
)
@click.option(
    "--remember", metavar="NAME", help="Name of data that is submitted repeatedly: no row becomes a job twice."
)
@click.option("--as-of", help="Time part of the ids of a new batch.  [default: now]")
@click.option("--rate", type=click.IntRange(1), metavar="N", help="At most so many jobs a second, all tasks together.")
@click.option("--tasks", type=click.IntRange(1), help="At most so many connections write.")
@click.option(
    "--max-backlog",
    type=click.IntRange(1),
    metavar="N",
    help="Pause while so many jobs of a lane and priority are due and have not begun.",
)
@click.option(
    "--resume-backlog",
    type=click.IntRange(1),
    metavar="N",
    help="Go on at this backlog.  [default: half of --max-backlog]",
)
@click.option(
    "--expect-rows", metavar="N", help="Rows of the source, for the estimate of the end; count = count them first."
)
@click.option(
    "--progress", type=click.Choice(["text", "json"]), default="text", show_default=True, help="On standard error."
)
@click.option("--rejects", metavar="PATH", help="Directory for refused rows.  [default: <lake>/rejects]")
@click.option("--on-duplicate", type=click.Choice(["ignore", "fail"]), default="ignore", show_default=True)
@click.option("--allow-unregistered", is_flag=True, help="Also for a handler that no agent has published.")
def submit(context: PipelineContext, **words: Any) -> StepResult:
    """Submit rows of a file, table or query as jobs.

    One row is one job. SOURCE is a path (CSV, JSON, Parquet, ORC; directories and * too) or postgresql://... Arguments come
    from columns of the same name, or from --map. Every row is checked against the handler's published signature; invalid
    rows go to the rejects with their reason, the others are written. Submitted again, the same rows insert nothing: they are
    remembered by their keys under the name of the handler and SOURCE (or --remember), also after their jobs were retired.
    With --batch or --as-of only the jobs themselves are remembered. `pipeline backfills` shows how far it is, `pipeline
    pause` and `pipeline resume` stop and continue it, on any machine; after a kill, resume or the same command continues.

    \b
    Examples:
      jobmaster pipeline submit images.csv --handler images.resize --key path
      jobmaster pipeline submit orders.parquet --handler bill --key id --map "amount=cast(total * 100 as int)" --due due
      jobmaster pipeline submit postgresql://host/shop --table orders --handler bill --key id --rate 5000 --dry-run
    """
    from jobmaster.pipeline.steps.backfills import SubmitRequest
    from jobmaster.pipeline.steps.inputs import SourceSpec
    from jobmaster.pipeline.steps.mapping import RowMapping, parse_pairs
    from jobmaster.pipeline.steps.submit import submit as carry_out

    options = {
        "priority": words["priority"],
        "lane": words["lane"],
        "dueAt": words["at"],
        "asOf": words["as_of"],
        "headers": json.dumps({"tags": words["tags"]}) if words["tags"] else None,
        "rowsPerSecond": words["rate"],
        "maxBacklog": words["max_backlog"],
        "resumeBacklog": words["resume_backlog"],
        "rejects": words["rejects"],
        "remember": words["remember"],
        "onDuplicate": words["on_duplicate"],
        "allowUnregistered": "true" if words["allow_unregistered"] else None,
    }
    reader = parse_pairs(words["reader"], "--reader")
    order = SubmitRequest(
        SourceSpec(words["source"], words["kind"], words["table"], words["sql"], words["views"], reader),
        words["handler"],
        RowMapping(
            words["keys"],
            parse_pairs(words["arguments"], "--map"),
            words["due"],
            words["priority_from"],
            words["lane_from"],
        ),
        words["batch"],
        {name: str(value) for name, value in options.items() if value is not None},
        words["tasks"],
        *_expected(words["expect_rows"]),
    )
    return note_batch(context, "pipeline submit", carry_out(context, order, json_progress=words["progress"] == "json"))


def _expected(given: str | None) -> tuple[int | None, bool]:
    """The number that was given, and whether to count the rows first."""
    if given is None or given == "count":
        return None, given is not None
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise click.BadParameter(
            f"{given!r} is no number of rows; give one, or the word count", param_hint="--expect-rows"
        )
    return int(given), False


@step("tables")
@click.option(
    "--format",
    "form",
    type=click.Choice(("delta", "iceberg")),
    default="delta",
    show_default=True,
    help="Format of the tables. A lake may have both.",
)
@click.option("--stop", is_flag=True, help="Leave the tables of this format as they are from now on.")
def tables(context: PipelineContext, form: str, stop: bool) -> StepResult:
    """Make the lake readable as Delta or Iceberg tables.

    Writes a log, or metadata, beside the archived files; no row is copied. From then on archive, forget and compact keep it
    up to date. Needs the package deltalake (pip install "jobmaster-cluster[delta]") or pyiceberg (...[iceberg]).

    \b
    Examples:
      jobmaster pipeline tables
      jobmaster pipeline tables --format iceberg
      jobmaster pipeline tables --stop
    """
    from jobmaster.pipeline.steps.tables import tables

    return tables(context, form, stop=stop)


@step("vacuum")
@click.option(
    "--older-than", type=DURATION, default="1d", show_default=True, help="At least 1h: longer than any run takes."
)
@click.option("--rejects-older-than", type=DURATION, help="Delete refused rows of that age, too.")
def vacuum(context: PipelineContext, older_than: float, rejects_older_than: float | None) -> StepResult:
    """Delete files of unfinished runs from the lake.

    No reader sees these files: a file is valid only if a document names its run. The violations of every audit but the
    last go, too, and the master's records of runs that wrote batches, after 30 days. Rows that a submit has refused so far
    stay until it has ended, or for 30 days after its last sign of life.

    \b
    Examples:
      jobmaster pipeline vacuum --older-than 2d --dry-run
      jobmaster pipeline vacuum --rejects-older-than 90d
    """
    from jobmaster.pipeline.steps.lake_admin import vacuum as carry_out

    return carry_out(context, older_than, rejects_older_than)


for _command in (
    anomalies, archive, audit, backfills, compact, cost, doctor, forget, ls, objectives, pause, plan, replay, resume, review,
    rollup, run, stream, submit, tables, vacuum,
):  # fmt: skip
    pipeline_group.add_command(_command)
