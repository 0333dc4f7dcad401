"""``jobmaster job explain`` and ``job failures``: why a job does not run, and what failed jobs have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import job_id_of, with_cluster
from jobmaster.cli.commands.jobs.filter_options import filter_options, filters_of
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_data, emit_rows, iso_at

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.model.inspection.explanation import Explanation
    from jobmaster.model.inspection.failures import Failures

GROUP_COLUMNS = (
    Column("GROUP", "fingerprint"),
    Column("JOBS", "jobs", right=True),
    Column("HANDLER", "handler"),
    Column("ERROR", "error_type"),
    Column("FIRST (UTC)", "first"),
    Column("LAST (UTC)", "last"),
    Column("SAMPLE", "sample"),
    Column("MESSAGE", "line", whole=True),
)


@click.command("explain")
@click.argument("job")
@pass_invocation
def explain(invocation: Invocation, job: str) -> None:
    """Say why a job does not run: what it waits for, and what ends that. The first line is what keeps it now.

    \b
    Example:
      jobmaster job explain 019a9f3c-55d1
    """

    async def work(cluster: Cluster) -> Explanation:
        return await cluster.inspect.explain(await job_id_of(invocation.settings, job))

    found: Explanation = run_async(with_cluster(invocation.settings, work))
    if emit_data(_explanation_record(found), invocation.output):
        return
    click.echo(f"job {found.id} is {found.state.value}:")
    for cause in found.causes:
        until = f" (until {iso_at(cause.until)})" if cause.until is not None else ""
        click.echo(f"  {cause.text}{until}")
        if cause.remedy is not None:
            click.echo(f"    -> {cause.remedy}")


def _explanation_record(found: Explanation) -> dict[str, Any]:
    import msgspec

    record: dict[str, Any] = msgspec.to_builtins(found)
    for made, cause in zip(record["causes"], found.causes, strict=True):
        made["until"] = iso_at(cause.until)
    return record


@click.command("failures")
@filter_options
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Groups at most.")
@pass_invocation
def failures(invocation: Invocation, limit: int, **given: Any) -> None:
    """Group failed jobs by handler, type of the error and first line of its message, where # stands for numbers and ids.

    Without --since: the jobs of the last day. The GROUP is a value of --error of job list, job count and this command.

    \b
    Examples:
      jobmaster job failures --since 7d
      jobmaster job list --error 3f9a1c0b72de --state failed
    """
    filters = filters_of(given)

    async def work(cluster: Cluster) -> Failures:
        return await cluster.inspect.failures(limit=limit, **filters)

    found: Failures = run_async(with_cluster(invocation.settings, work))
    if not found.complete:
        invocation.note("warning: there are more jobs than were read; these are the newest (give --since)", level=-1)
    records = [_group_record(group) for group in found.groups]
    emit_rows(records, GROUP_COLUMNS, invocation.output, empty="no job has failed")


def _group_record(group: Any) -> dict[str, Any]:
    import msgspec

    record: dict[str, Any] = msgspec.to_builtins(group)
    for name in ("first", "last"):
        del record[f"{name}_at"]
        record[name] = iso_at(getattr(group, f"{name}_at"))
    return record
