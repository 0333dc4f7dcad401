"""``jobmaster pause``, ``jobmaster resume`` and ``jobmaster pauses``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import DURATION, moment
from jobmaster.cli.completion import Known, known
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import reader_of, run_async
from jobmaster.cli.tables import Column, emit_data, emit_rows
from jobmaster.model.errors import WaitTimeout
from jobmaster.model.job_view import iso
from jobmaster.model.pause import Pause, PauseChange, PauseKind, subject_of
from jobmaster.units import UnitError, parse_duration, rounded_duration

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from jobmaster.settings.model import ClusterSettings

COLUMNS = (
    Column("KIND", "kind"),
    Column("VALUE", "value"),
    Column("SINCE", "since"),
    Column("UNTIL", "until", lambda until: until or "resumed"),
    Column("LEFT", "left_seconds", rounded_duration, right=True),
    Column("BY", "actor"),
    Column("REASON", "reason", whole=True),
)


class End(click.ParamType):  # type: ignore[type-arg]  # no generic class before click 8.4
    """``30m``, ``2h``: so long from now by the master's clock; or an ISO 8601 time with zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | datetime:
        try:
            return float(parse_duration(str(value)))
        except UnitError as error:
            try:
                datetime.fromisoformat(str(value))
            except ValueError:
                self.fail(f"{value!r}: {error}; or give a time such as 2030-01-31T12:00:00Z", param, ctx)
            end: datetime = moment(str(value), "--until")
            return end


KIND = click.Choice([kind.value for kind in PauseKind if kind is not PauseKind.BREAKER])
_KNOWN = {PauseKind.HANDLER: Known.HANDLERS, PauseKind.LANE: Known.LANES, PauseKind.SCHEDULE: Known.SCHEDULES}


def _complete_value(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the kind that stands before the value."""
    kind = next((found for each, found in _KNOWN.items() if each.value == ctx.params.get("kind")), None)
    return [] if kind is None else known(kind)(ctx, parameter, incomplete)


_CHANGE = (
    click.argument("kind", type=KIND),
    click.argument("value", shell_complete=_complete_value),
    click.option("--reason", default="", help="Reason, for the list of the pauses and the operator's log."),
    click.option("--no-wait", is_flag=True, help="Do not wait until every agent has confirmed it."),
    click.option(
        "--timeout", type=DURATION, default="30s", show_default=True, help="Time-out of the wait (exit code 6)."
    ),
)


def _change(command: Callable[..., None]) -> Callable[..., None]:
    for decorate in reversed(_CHANGE):
        command = decorate(command)
    return command


@click.command("pause")
@_change
@click.option(
    "--until", type=End(), help="End of the pause: 30m, 2h ..., or 2030-01-31T12:00:00Z. Default: jobmaster resume."
)
@click.option("--force", is_flag=True, help="Also a handler that no agent has, or a lane that none serves.")
@pass_invocation
def pause(
    invocation: Invocation, kind: str, value: str, reason: str, no_wait: bool, timeout: float, until: Any, force: bool
) -> None:
    """Stop the starts of a handler, a lane, a priority or a tag.

    No such job starts in any agent, and what runs may end. A paused schedule does not fire. Jobs are still accepted,
    and wait. The command returns when every living agent has confirmed the pause. A pause holds for agents and buckets
    that come later, and no rescue and no restart ends it. A second pause of the same thing replaces its end and its
    reason.

    \b
    Examples:
      jobmaster pause handler billing.charge --reason "charges twice"
      jobmaster pause lane payroll --until 2h
      jobmaster pause priority low --until 2030-01-31T06:00:00Z
      jobmaster pause tag customer-7 --no-wait
      jobmaster pause schedule nightly
    """
    wait = 0.0 if no_wait else timeout
    subject = {kind: value}
    change = run_async(
        _changed(
            invocation.settings,
            lambda cluster, actor: cluster.pause(
                until=until, reason=reason, timeout=wait, force=force, actor=actor, **subject
            ),
        )
    )
    _emit(invocation, change, "paused", waited=not no_wait)
    _confirmed(change, waited=not no_wait)


@click.command("resume")
@_change
@pass_invocation
@click.pass_context
def resume(
    ctx: click.Context, invocation: Invocation, kind: str, value: str, reason: str, no_wait: bool, timeout: float
) -> None:
    """End a pause.

    Jobs that waited for it start. Exit code 4 when there was no such pause.

    \b
    Example:
      jobmaster resume handler billing.charge --reason "fixed in 4.2"
    """
    wait = 0.0 if no_wait else timeout
    subject = {kind: value}
    change = run_async(
        _changed(
            invocation.settings,
            lambda cluster, actor: cluster.resume(reason=reason, timeout=wait, actor=actor, **subject),
        )
    )
    _emit(invocation, change, "resumed", waited=not no_wait)
    _confirmed(change, waited=not no_wait)
    if not change.changed:
        ctx.exit(4)


@click.command("pauses")
@pass_invocation
def pauses(invocation: Invocation) -> None:
    """List the pauses in force, and the paused schedules.

    \b
    Examples:
      jobmaster pauses
      jobmaster pauses -o json
    """

    async def work() -> list[dict[str, Any]]:
        async with reader_of(invocation.settings) as reader:
            in_force = [pause_record(each) for each in (await reader.pauses()).pauses]
            return in_force + [_schedule_record(row) for row in await reader.report("paused_schedules")]

    records = run_async(work())
    emit_rows(records, COLUMNS, invocation.output, empty="nothing is paused", name=("kind", "value"))


def pause_record(each: Pause) -> dict[str, Any]:
    """One pause as a record."""
    return {
        "kind": each.kind.value,
        "value": each.value,
        "since": iso(each.since_us),
        "until": iso(each.until_us) if each.until_us else None,
        "left_seconds": None if each.left_seconds is None else round(each.left_seconds, 3),
        "actor": each.actor,
        "reason": each.reason,
    }


def _schedule_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """A paused schedule as the record of a pause, which has no end."""
    return {
        "kind": PauseKind.SCHEDULE.value,
        "value": row["name"],
        "since": iso(row["since_us"]),
        "until": None,
        "left_seconds": None,
        "actor": row["actor"],
        "reason": row["reason"],
    }


async def _changed(settings: ClusterSettings, change: Callable[[Any, str], Any]) -> PauseChange:
    from jobmaster.cli.operator_log import operator_name
    from jobmaster.wiring import open_cluster

    async with await open_cluster(settings) as cluster:
        answer: PauseChange = await change(cluster, operator_name())
        return answer


def _emit(invocation: Invocation, change: PauseChange, done: str, *, waited: bool) -> None:
    """``handler 'x' paused; 3 of 3 agents obey after 1.2 s``."""
    record = {
        "kind": change.kind.value,
        "value": change.value,
        "changed": change.changed,
        "until": iso(change.until_us) if change.until_us else None,
        "agents": change.agents,
        "obeying": change.obeying,
        "seconds": round(change.seconds, 3),
    }
    if emit_data(record, invocation.output, name=("kind", "value")):
        return
    subject = subject_of(change.kind, change.value)
    if not change.changed:
        click.echo(f"{subject} is not paused", err=True)
        return
    if change.kind is PauseKind.SCHEDULE:
        click.echo(f"{subject} {done}; {'nothing of it fires' if done == 'paused' else 'its next nominal time fires'}")
        return
    until = f" until {iso(change.until_us)}" if change.until_us else ""
    if not change.agents:
        follows = "no agent is running"
    elif waited:
        follows = f"{change.obeying} of {change.agents} agents obey after {change.seconds:.1f} s"
    else:
        follows = f"{change.obeying} of {change.agents} agents obey already, the others from their next renewal on"
    click.echo(f"{subject} {done}{until}; {follows}")


def _confirmed(change: PauseChange, *, waited: bool) -> None:
    """``WaitTimeout`` when a command that waits ends before every agent has confirmed the change (``--timeout 0``)."""
    if waited and change.obeying < change.agents:
        raise WaitTimeout(
            f"the change is stored, but {change.agents - change.obeying} of {change.agents} agents have not confirmed it",
            hint="it holds for them from their next renewal on",
        )
