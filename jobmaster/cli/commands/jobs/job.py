"""``jobmaster job``: find jobs and show them; ``submit`` and ``job_changes`` have the commands that make and change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import (
    DURATION,
    ActedOn,
    act_on_each,
    covering,
    emit_each,
    job_id_of,
    with_cluster,
)
from jobmaster.cli.commands.job_rows import (
    ATTEMPT_COLUMNS,
    LIST_COLUMNS,
    RETRY_COLUMNS,
    job_record,
    timeline_rows,
)
from jobmaster.cli.commands.jobs import job_changes, job_logs, job_reports, submit
from jobmaster.cli.commands.jobs.filter_options import filter_options, filters_of
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import reader_of, run_async
from jobmaster.cli.tables import emit_data, emit_record, emit_rows
from jobmaster.client.jobs.listed_job import listed_job
from jobmaster.client.jobs.timeline import changes_of, timeline
from jobmaster.model.errors import Conflict, NotFound
from jobmaster.model.ids import text
from jobmaster.model.job import FINAL_STATES, JobState
from jobmaster.model.job_view import JobView

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.client.jobs.listing import JobCount
    from jobmaster.model.pause import Pause
    from jobmaster.rules.unserved_cause import UnservedCause
    from jobmaster.settings.model import ClusterSettings

LISTED_MAX = 100_000


@click.group("job")
def job_group() -> None:
    """Submit, find, change, cancel and retry jobs."""


for command in (submit.submit, *job_changes.COMMANDS, job_logs.logs, job_reports.explain, job_reports.failures):
    job_group.add_command(command)


# ---------------------------------------------------------------- find


@job_group.command("list")
@filter_options
@click.option("--after", metavar="ID", help="Continue below this id, the last one of the list before.")
@click.option("--limit", type=click.IntRange(1, LISTED_MAX), default=50, show_default=True)
@pass_invocation
def list_(invocation: Invocation, limit: int, after: str | None, **given: Any) -> None:
    """List jobs with a row in the master, the newest first.

    A job of level ``store`` gets its row when it ends, or thresholds.persist_within after its claim; jobmaster job show ID
    finds it before that, too.

    \b
    Examples:
      jobmaster job list --state failed --since 1h
      jobmaster job list --since 2030-01-31T12:00:00Z --until 2030-01-31T13:00:00Z
      jobmaster job list --due-before 10m --lane payroll
      jobmaster job list --handler images.resize --limit 10 -o json
    """
    from jobmaster.client.jobs.listing import LIMIT_MAX

    filters = filters_of(given)

    async def work(cluster: Cluster) -> list[JobView]:
        found: list[JobView] = []
        last: Any = after
        while len(found) < limit:
            part = min(limit - len(found), LIMIT_MAX)
            page = await cluster.jobs(limit=part, after=last, payload=False, **filters)
            found += page
            if len(page) < part:
                break
            last = page[-1]
        return found

    records = [listed_job(view)._asdict() for view in run_async(with_cluster(invocation.settings, work))]
    emit_rows(records, LIST_COLUMNS, invocation.output, empty="no jobs")


@job_group.command("count")
@filter_options
@click.option("--at-most", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True, help="End there.")
@pass_invocation
def count(invocation: Invocation, at_most: int, **given: Any) -> None:
    """Count jobs with a row in the master. A plus sign: there are at least so many.

    \b
    Example:
      jobmaster job count --state failed --error ValueError --since 1d
    """
    filters = filters_of(given)

    async def work(cluster: Cluster) -> JobCount:
        return await cluster.count(at_most=at_most, **filters)

    found = run_async(with_cluster(invocation.settings, work))
    if not emit_data({"jobs": found.jobs, "exact": found.exact}, invocation.output):
        click.echo(str(found))


@job_group.command("show")
@click.argument("job")
@pass_invocation
def show(invocation: Invocation, job: str) -> None:
    """Show one job by its id or the beginning of it: state, arguments, result or error, and its workflow and step.

    \b
    Example:
      jobmaster job show 019a9f3c-55d1
    """

    async def work(cluster: Cluster) -> tuple[JobView, UnservedCause | None, list[Pause], str | None]:
        view = await _view(cluster, invocation.settings, job)
        return view, await _cause(cluster, view), covering(await cluster.pauses(), view), await _step(cluster, view)

    found = run_async(with_cluster(invocation.settings, work))
    record = job_record(*found)
    if (link := invocation.settings.observability.traces.link_of(record["trace_id"])) is not None:
        record["trace"] = link
    emit_record(record, invocation.output)


@job_group.command("timeline")
@click.argument("job")
@pass_invocation
def timeline_(invocation: Invocation, job: str) -> None:
    """Show what happened to one job: its changes, and attempt by attempt.

    \b
    Example:
      jobmaster job timeline 019a9f3c-55d1
    """

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        view = await _view(cluster, invocation.settings, job)
        async with reader_of(invocation.settings) as reader:
            operations = await reader.report("operations_of", str(view.id), LISTED_MAX)
        history = timeline(view, await cluster.attempts(view.id), await _cause(cluster, view), changes_of(operations))
        return timeline_rows(history)

    lines = run_async(with_cluster(invocation.settings, work))
    emit_rows(lines, ATTEMPT_COLUMNS, invocation.output, empty="nothing is known of it", name=("at", "event"))


@job_group.command("wait")
@click.argument("job")
@click.option("--within", type=DURATION, help="Time-out of the wait; exit code 6.")
@pass_invocation
@click.pass_context
def wait(ctx: click.Context, invocation: Invocation, job: str, within: float | None) -> None:
    """Wait for the end of a job and print it. Exit code 1 unless it succeeded, 6 when it takes too long.

    \b
    Example:
      jobmaster job wait 019a9f3c-55d1 --within 30s
    """

    async def work(cluster: Cluster) -> JobView:
        job_id = await job_id_of(invocation.settings, job)
        await cluster.wait(job_id, timeout=within)
        return await cluster.redacted(await cluster.get(job_id))

    view = run_async(with_cluster(invocation.settings, work))
    emit_record(job_record(view), invocation.output)
    if view.state is not JobState.SUCCEEDED:
        ctx.exit(1)


# ---------------------------------------------------------------- change


@job_group.command("cancel")
@click.argument("jobs", nargs=-1, required=True)
@pass_invocation
def cancel(invocation: Invocation, jobs: tuple[str, ...]) -> None:
    """Cancel jobs. A running job gets a cancel request, and ends as CANCELLED unless it finishes first.

    Exit code 4 when a job had ended before.

    \b
    Example:
      jobmaster job cancel 019a9f3c-55d1 019a9f3c-55d2
    """
    from jobmaster.cli.operator_log import operator_name

    async def work(cluster: Cluster) -> list[ActedOn]:
        async def cancelled(job_id: bytes) -> ActedOn:
            state = await cluster.cancel(job_id, actor=operator_name())
            record = {"id": text(job_id), "state": state.value}
            late = state in FINAL_STATES - {JobState.CANCELLED}
            return ActedOn(
                record, Conflict(f"too late for {record['id']}: ended before it could be cancelled") if late else None
            )

        return await act_on_each(invocation.settings, jobs, cancelled)

    emit_each(run_async(with_cluster(invocation.settings, work)), LIST_COLUMNS[:2], invocation.output)


@job_group.command("retry")
@click.argument("jobs", nargs=-1, required=True)
@pass_invocation
def retry(invocation: Invocation, jobs: tuple[str, ...]) -> None:
    """Run FAILED, CANCELLED or EXPIRED jobs again, each as a new job.

    The original job stays unchanged; the new job has metadata retry_of=ID. A second retry of the same job returns the same
    new job. If that one is FAILED, CANCELLED or EXPIRED meanwhile, it is run again instead.

    \b
    Example:
      jobmaster job retry 019a9f3c-55d1
    """

    async def work(cluster: Cluster) -> list[ActedOn]:
        async def retried(job_id: bytes) -> ActedOn:
            return ActedOn(await _retried(cluster, await cluster.get(job_id)))

        return await act_on_each(invocation.settings, jobs, retried)

    emit_each(run_async(with_cluster(invocation.settings, work)), RETRY_COLUMNS, invocation.output)


async def _retried(cluster: Cluster, view: JobView) -> dict[str, Any]:
    """Retry one job: the new job, and which job it is a retry of (the last one of a chain of retries)."""
    from jobmaster.cli.operator_log import operator_name

    receipt = await cluster.retry(view.id, actor=operator_name())
    try:
        retry_of = (await cluster.get(receipt)).metadata["retry_of"]
    except NotFound:  # dropped by retention meanwhile
        retry_of = str(view.id)
    return {"id": str(receipt), "retry_of": retry_of, "handler": view.handler, "duplicate": receipt.duplicate}


# ---------------------------------------------------------------- one job


async def _cause(cluster: Cluster, view: JobView) -> UnservedCause | None:
    """Why no agent can take a job that waits in the master; ``None`` when one can."""
    return (
        (await cluster.master.queries.unserved_causes([view.id_bytes])).get(view.id_bytes)
        if view.state is JobState.HELD
        else None
    )


async def _step(cluster: Cluster, view: JobView) -> str | None:
    """Name of the step that a job is of; its number when the workflow is forgotten."""
    if view.headers.workflow is None:
        return None
    workflow, number = view.headers.workflow
    try:
        steps = (await cluster.workflows.get(workflow)).steps
    except NotFound:
        return str(number)
    return steps[number - 1].name


async def _view(cluster: Cluster, settings: ClusterSettings, job: str) -> JobView:
    """The job as it may be shown."""
    return await cluster.redacted(await cluster.get(await job_id_of(settings, job)))
