"""``jobmaster schedule``: show, pause, resume, run and remove recurring jobs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import with_cluster
from jobmaster.cli.completion import Known, known
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.operator_log import operator_name
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_data, emit_record, emit_rows, render, terminal_width
from jobmaster.model.errors import InputError
from jobmaster.units import format_duration

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.client.schedules.schedules import Schedules
    from jobmaster.model.inspection.schedule_view import FireView, ScheduleView

SHOWN_FIRES = 10

LIST_COLUMNS = (
    Column("NAME", "name"),
    Column("STATE", "state"),
    Column("EVERY", "every"),
    Column("ZONE", "zone"),
    Column("NEXT (UTC)", "next_at"),
    Column("HANDLER", "handler"),
    Column("OVERLAP", "overlap"),
    Column("MISFIRE", "misfire"),
    Column("SOURCE", "source"),
    Column("TAGS", "tags", lambda tags: ", ".join(tags) or "-"),
)

FIRE_COLUMNS = (
    Column("NOMINAL TIME (UTC)", "nominal_at"),
    Column("OUTCOME", "outcome"),
    Column("JOB", "job_id"),
    Column("DECIDED (UTC)", "decided_at"),
    Column("UNTIL (UTC)", "until_at"),
    Column("MANUAL", "manual", lambda manual: "yes" if manual else "-"),
)

NAME_COLUMNS = (Column("NAME", "name"), Column("STATE", "state"))

NEXT_COLUMNS = (Column("NOMINAL TIME (UTC)", "at"), Column("IN ITS ZONE", "local"))


@click.group("schedule")
def schedule_group() -> None:
    """Show, pause, resume, run and remove recurring jobs."""


@schedule_group.command("list")
@click.option("--tag", help="Only schedules with this tag.")
@click.option("--all", "all_", is_flag=True, help="Retired ones, too.")
@pass_invocation
def list_(invocation: Invocation, tag: str | None, all_: bool) -> None:
    """List schedules by name.

    \b
    Examples:
      jobmaster schedule list
      jobmaster schedule list --tag reports -o json
    """
    views = run_async(_with_schedules(invocation, lambda schedules: schedules.list(tag=tag, retired=all_)))
    emit_rows([_record(view) for view in views], LIST_COLUMNS, invocation.output, empty="no schedules")


@schedule_group.command("show")
@click.argument("name", shell_complete=known(Known.SCHEDULES))
@pass_invocation
def show(invocation: Invocation, name: str) -> None:
    """Show one schedule, its next fires and the last ones that were decided.

    \b
    Example:
      jobmaster schedule show reports.nightly
    """

    async def work(cluster: Cluster) -> tuple[ScheduleView, list[datetime], list[FireView]]:
        schedules = cluster.schedules
        view = await cluster.redacted(await schedules.get(name))
        return view, await schedules.next(name, 5), await schedules.fires(name, limit=SHOWN_FIRES)

    view, upcoming, fires = run_async(with_cluster(invocation.settings, work))
    record = {**_record(view), **_details(view), "upcoming": [_iso(at) for at in upcoming]}
    lines = [_fire(fire) for fire in fires]
    if emit_data({**record, "fires": lines}, invocation.output, name="name"):
        return
    emit_record(record, invocation.output)
    if lines:
        click.echo()
        click.echo(render(lines, FIRE_COLUMNS, terminal_width()))


@schedule_group.command("next")
@click.argument("name", shell_complete=known(Known.SCHEDULES))
@click.option("--count", type=click.IntRange(1, 1000), default=5, show_default=True)
@pass_invocation
def next_(invocation: Invocation, name: str, count: int) -> None:
    """Show the next nominal times of a schedule, also of a paused one.

    \b
    Example:
      jobmaster schedule next reports.nightly --count 10
    """

    async def work(schedules: Schedules) -> tuple[ScheduleView, list[datetime]]:
        return await schedules.get(name), await schedules.next(name, count)

    view, upcoming = run_async(_with_schedules(invocation, work))
    if view.retired_at is not None and invocation.output.for_people:
        click.echo(f"schedule {name!r} is retired: {view.retired_reason}")
        return
    rows = [{"at": _iso(at), "local": _local(at, view.zone)} for at in upcoming]
    emit_rows(rows, NEXT_COLUMNS, invocation.output, empty=f"schedule {name!r} has ended")


# ---------------------------------------------------------------- change

_NAMES = click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=known(Known.SCHEDULES))
_TAG = click.option("--tag", help="All schedules with this tag, in place of names.")


@schedule_group.command("pause")
@_NAMES
@_TAG
@click.option("--reason", default="", help="Shown beside the schedule and in the operator's log.")
@pass_invocation
def pause(invocation: Invocation, names: tuple[str, ...], tag: str | None, reason: str) -> None:
    """Pause schedules: nothing of them fires until they are resumed, and what falls into the pause is not made up for.

    \b
    Examples:
      jobmaster schedule pause reports.nightly --reason "month end"
      jobmaster schedule pause --tag reports
    """
    actor = operator_name()
    _change(invocation, names, tag, "paused", lambda one, **which: one.pause(**which, reason=reason, actor=actor))


@schedule_group.command("resume")
@_NAMES
@_TAG
@pass_invocation
def resume(invocation: Invocation, names: tuple[str, ...], tag: str | None) -> None:
    """Resume paused schedules, from their next nominal time on.

    \b
    Example:
      jobmaster schedule resume reports.nightly
    """
    actor = operator_name()
    _change(invocation, names, tag, "resumed", lambda one, **which: one.resume(**which, actor=actor))


@schedule_group.command("remove")
@_NAMES
@_TAG
@pass_invocation
def remove(invocation: Invocation, names: tuple[str, ...], tag: str | None) -> None:
    """Retire schedules, and cancel those of their jobs whose time lies ahead. What runs may end.

    A schedule of the code or of the configuration comes back when an agent is started that declares it.

    \b
    Examples:
      jobmaster schedule remove reports.nightly
      jobmaster schedule remove --tag reports
    """
    actor = operator_name()
    _change(invocation, names, tag, "removed", lambda one, **which: one.remove(**which, actor=actor))


@schedule_group.command("run")
@click.argument("name", shell_complete=known(Known.SCHEDULES))
@pass_invocation
def run(invocation: Invocation, name: str) -> None:
    """Fire a schedule now, beside its recurrence, also while it is paused. Exit code 4 when its overlap rule forbids it.

    \b
    Example:
      jobmaster schedule run reports.nightly
    """
    receipt = run_async(_with_schedules(invocation, lambda schedules: schedules.run(name, actor=operator_name())))
    emit_record({"schedule": name, "id": str(receipt.id)}, invocation.output)


def _change(
    invocation: Invocation,
    names: Sequence[str],
    tag: str | None,
    done: str,
    change: Callable[..., Coroutine[Any, Any, list[str]]],
) -> None:
    """Do something to the named schedules, or to those with the tag; print which ones it changed."""
    if bool(names) == (tag is not None):
        raise InputError(
            "name schedules, or give --tag", hint="such as: jobmaster schedule list, then name one of them"
        )

    async def work(schedules: Schedules) -> list[dict[str, str]]:
        if tag is not None:
            return [{"name": name, "state": done} for name in await change(schedules, tag=tag)]
        records = []
        for name in names:
            changed = await change(schedules, name=name)
            records.append({"name": name, "state": done if changed else _unchanged(await schedules.get(name), done)})
        return records

    records = run_async(_with_schedules(invocation, work))
    emit_rows(records, NAME_COLUMNS, invocation.output, empty="nothing to change")


def _unchanged(view: ScheduleView, done: str) -> str:
    """The state of a schedule that a command left as it was."""
    if view.retired_at is not None:
        return f"is retired: {view.retired_reason}" if done != "removed" else "was retired before"
    return f"was {done} before" if view.state.value == done else f"is {view.state.value}"


async def _with_schedules(invocation: Invocation, work: Callable[[Schedules], Coroutine[Any, Any, Any]]) -> Any:
    return await with_cluster(invocation.settings, lambda cluster: work(cluster.schedules))


# ---------------------------------------------------------------- records


def _record(view: ScheduleView) -> dict[str, Any]:
    return {
        "name": view.name,
        "state": view.state.value,
        "every": _every(view.expression),
        "zone": view.zone,
        "next_at": _iso(view.next_at),
        "handler": view.handler,
        "overlap": view.overlap.value,
        "misfire": view.misfire.value,
        "source": view.source.value,
        "tags": list(view.tags),
    }


def _details(view: ScheduleView) -> dict[str, Any]:
    definition = view.definition
    return {
        "misfire_max": definition.misfire_max,
        "jitter_seconds": definition.jitter_seconds,
        "start_at": _iso(view.start_at),
        "end_at": _iso(view.end_at),
        "expires_seconds": definition.expires_seconds,
        "priority": view.priority.label,
        "lane": view.lane,
        "tenant": view.tenant,
        "arguments": view.arguments,
        "timeout_seconds": view.headers.timeout_seconds,
        "max_attempts": view.headers.max_attempts,
        "declared_at": _iso(view.declared_at),
        "paused_at": _iso(view.paused_at),
        "paused_by": view.paused_by,
        "paused_reason": view.paused_reason,
        "retired_at": _iso(view.retired_at),
        "retired_reason": view.retired_reason,
    }


def _fire(fire: FireView) -> dict[str, Any]:
    return {
        "nominal_at": _iso(fire.nominal_at),
        "outcome": fire.outcome.value,
        "job_id": None if fire.job_id is None else str(fire.job_id),
        "decided_at": _iso(fire.decided_at),
        "until_at": _iso(fire.until_at),
        "manual": fire.manual,
    }


def _every(expression: str) -> str:
    """A cron expression as it is; an interval as ``5m``."""
    if " " in expression:
        return expression
    return format_duration(float(expression.removesuffix("s")))


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds").replace("+00:00", "Z")


def _local(at: datetime, zone: str) -> str:
    from jobmaster.rules.recurrence import zone_of

    return at.astimezone(zone_of(zone)).isoformat(timespec="seconds")
