"""``jobmaster job reschedule``, ``reprioritise``, ``move`` and ``run-now``: change jobs that wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jobmaster.cli.commands.job_inputs import (
    DURATION,
    PRIORITIES,
    ActedOn,
    act_on_each,
    covering,
    emit_each,
    moment,
    with_cluster,
)
from jobmaster.cli.completion import Known, known
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column
from jobmaster.model.errors import Conflict
from jobmaster.model.job_view import iso

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.model.job_change import JobChange

_Command = TypeVar("_Command", bound=Callable[..., Any])

_COLUMNS = (
    Column("ID", "id"),
    Column("EFFECT", "effect"),
    Column("STATE", "state"),
    Column("DUE", "due"),
    Column("PRIORITY", "priority"),
    Column("LANE", "lane"),
)
_JOBS = click.argument("jobs", metavar="JOB...", nargs=-1, required=True)


def _at_and_after(command: _Command) -> _Command:
    for option in (
        click.option("--after", type=DURATION, help="Due in 30s, 5m, 1h30m ... from now."),
        click.option("--at", metavar="TIME", help="Due at an ISO 8601 time with zone; one in the past means now."),
    ):
        command = option(command)
    return command


def _priority(*, required: bool) -> Callable[[_Command], _Command]:
    return click.option("--priority", type=click.Choice(PRIORITIES), required=required, help="The new priority.")


def _lane(*, required: bool) -> Callable[[_Command], _Command]:
    return click.option("--lane", required=required, help="The new lane.", shell_complete=known(Known.LANES))


@click.command("reschedule")
@_JOBS
@_at_and_after
@_priority(required=False)
@_lane(required=False)
@pass_invocation
def reschedule(
    invocation: Invocation,
    jobs: tuple[str, ...],
    at: str | None,
    after: float | None,
    priority: str | None,
    lane: str | None,
) -> None:
    """Give jobs that wait another due time; also another priority or lane, in the same write.

    A job in a bucket is taken out of it first. EFFECT says whether that was in time. Exit code 4 when a job had started or
    ended before.

    \b
    Examples:
      jobmaster job reschedule 019a9f3c-55d1 --after 2h
      jobmaster job reschedule 019a9f3c-55d1 --at 2030-01-31T12:00:00Z --priority low
    """
    _change(invocation, jobs, {"at": at, "after": after, "priority": priority, "lane": lane})


@click.command("reprioritise")
@_JOBS
@_priority(required=True)
@pass_invocation
def reprioritise(invocation: Invocation, jobs: tuple[str, ...], priority: str) -> None:
    """Give jobs that wait another priority. Exit code 4 when a job had started or ended before.

    \b
    Example:
      jobmaster job reprioritise 019a9f3c-55d1 019a9f3c-55d2 --priority critical
    """
    _change(invocation, jobs, {"priority": priority})


@click.command("move")
@_JOBS
@_lane(required=True)
@pass_invocation
def move(invocation: Invocation, jobs: tuple[str, ...], lane: str) -> None:
    """Move jobs that wait to another lane. Exit code 4 when a job had started or ended before.

    \b
    Example:
      jobmaster job move 019a9f3c-55d1 --lane payroll
    """
    _change(invocation, jobs, {"lane": lane})


@click.command("run-now")
@_JOBS
@pass_invocation
def run_now(invocation: Invocation, jobs: tuple[str, ...]) -> None:
    """Make jobs due now that wait for a later time. Exit code 4 when a job had started or ended before.

    \b
    Example:
      jobmaster job run-now 019a9f3c-55d1
    """
    _change(invocation, jobs, {"after": 0.0})


def _change(invocation: Invocation, jobs: tuple[str, ...], given: dict[str, Any]) -> None:
    """Change the jobs one after another. What was changed is printed, too, when others could not be."""
    from jobmaster.cli.operator_log import operator_name

    options = {name: value for name, value in given.items() if value is not None}
    if "at" in options:
        options["at"] = moment(options["at"], "--at")

    async def work(cluster: Cluster) -> list[ActedOn]:
        in_force = await cluster.pauses()

        async def change(job_id: bytes) -> ActedOn:
            record = _record(await cluster.change(job_id, actor=operator_name(), **options))
            found = covering(in_force, await cluster.get(job_id)) if in_force and record["changed"] else []
            record["paused"] = [f"{each.subject}, by {each.actor}: {each.reason}" for each in found]
            late = Conflict(f"too late for {record['id']} ({record['state']}): not changed")
            return ActedOn(record, None if record["changed"] else late)

        return await act_on_each(invocation.settings, jobs, change)

    done = run_async(with_cluster(invocation.settings, work))
    for record in (each.record for each in done):
        if paused := record.get("paused"):
            invocation.note(f"{record['id']} does not start before the end of its pause: {'; '.join(paused)}")
    if invocation.output.for_people and (note := _unserved_note([each.record for each in done])) is not None:
        click.echo(note, err=True)
    emit_each(done, _COLUMNS, invocation.output)


def _unserved_note(records: Sequence[Mapping[str, Any]]) -> str | None:
    """A sentence about changed jobs that wait for a lane and priority without an agent; ``None``: there are none."""
    unserved = [record for record in records if record.get("unserved")]
    if not unserved:
        return None
    groups = sorted({f"{record['lane']}/{record['priority']}" for record in unserved})
    return (
        f"note: {len(unserved)} of {len(records)} job(s) wait for an agent that serves {', '.join(groups)} and has their "
        "handler; none does now ('jobmaster doctor' names the cause)"
    )


def _record(change: JobChange) -> dict[str, Any]:
    return {
        "id": str(change.id),
        "effect": change.effect.value,
        "changed": change.changed,
        "state": change.state.value,
        "due": iso(change.due_us),
        "priority": change.priority.label,
        "lane": change.lane,
        "unserved": change.unserved,
    }


COMMANDS = (reschedule, reprioritise, move, run_now)
"""Commands of the group ``job``."""
