"""``jobmaster job logs``: the lines that the runs of a job have written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import job_id_of, with_cluster
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Output, clean, emit_item, refuse_csv_stream
from jobmaster.model.job_log import LogLine, dropped_before
from jobmaster.model.job_view import iso

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster

_EVERY_SECONDS = 1.0
_PAGE = 1000
_LAST_LOOKS = 2
"""Looks after the end of the job: its last lines may come a moment after its outcome."""


@click.command("logs")
@click.argument("job")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@pass_invocation
def logs(invocation: Invocation, job: str, follow: bool) -> None:
    """Show the lines that the runs of a job have written: ctx.log, and logging in a handler with keep_logs.

    Run by run, the oldest first. Of each run the last lines are kept. Times are of the agent's clock. With -o json: one
    object a line.

    \b
    Examples:
      jobmaster job logs 019a9f3c-55d1
      jobmaster job logs 019a9f3c-55d1 --follow
    """
    refuse_csv_stream(invocation.output)

    async def work(cluster: Cluster) -> LogLine | None:
        job_id = await job_id_of(invocation.settings, job)
        last: LogLine | None = None
        looks = _LAST_LOOKS if follow else 0
        while True:
            over = not follow or (await cluster.get(job_id)).state.final
            while True:
                page = await cluster.logs(job_id, after=last, limit=_PAGE)
                for line in page:
                    _show(line, last, invocation.output)
                    last = line
                if len(page) < _PAGE:
                    break
            if over and not looks:
                return last
            looks -= over
            await asyncio.sleep(_EVERY_SECONDS if not over else _EVERY_SECONDS / 2)

    if run_async(with_cluster(invocation.settings, work)) is None and invocation.output.for_people:
        click.echo("the runs of this job have written no lines", err=True)


def _show(line: LogLine, previous: LogLine | None, output: Output) -> None:
    if emit_item(_record(line), output, name="text"):
        return
    if previous is None or previous.token != line.token:
        click.echo(f"run with token {line.token}")
    if dropped := dropped_before(line, previous):
        click.echo(f"  [{dropped} older lines were dropped]")
    first, *rest = line.text.splitlines() or [""]
    click.echo(f"  {iso(line.at_us)} {line.level.label:8} {clean(first)}")
    for more in rest:
        click.echo(f"    {clean(more)}")


def _record(line: LogLine) -> dict[str, Any]:
    return {
        "at": iso(line.at_us),
        "level": line.level.label,
        "text": line.text,
        "token": line.token,
        "number": line.number,
    }
