"""``jobmaster limit``: how many jobs run at once, or start in a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import with_cluster
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.operator_log import operator_name
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_record, emit_rows
from jobmaster.model.flow.limit import LimitView
from jobmaster.model.job_view import iso

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:g}"


COLUMNS = (
    Column("NAME", "name"),
    Column("LIMIT", "running", _number, right=True),
    Column("RATE/S", "rate", _number, right=True),
    Column("BURST", "burst", _number, right=True),
    Column("TAKEN", "taken", right=True),
    Column("KEYS", "keys", right=True),
    Column("FULLEST", "fullest", right=True),
    Column("KEY", "fullest_key"),
    Column("SET BY", "set_by", whole=True),
)


@click.group("limit")
def limit_group() -> None:
    """List limits and what is taken of them; set other values at run time."""


@limit_group.command("list")
@pass_invocation
def list_(invocation: Invocation) -> None:
    """List the limits, by name; at most 1000.

    LIMIT, RATE/S and BURST count for each key. TAKEN: permits of running jobs of all keys. FULLEST: those of the key
    with the most. SET BY: the operator whose values stand over those of the code.

    \b
    Example:
      jobmaster limit list -o json
    """
    found = run_async(with_cluster(invocation.settings, lambda cluster: cluster.limits.list()))
    emit_rows([_record(each) for each in found], COLUMNS, invocation.output, empty="there are no limits")


@limit_group.command("show")
@click.argument("name")
@pass_invocation
def show(invocation: Invocation, name: str) -> None:
    """Show one limit: the values that count, those of the code, and what is taken.

    \b
    Example:
      jobmaster limit show stripe
    """
    found = run_async(with_cluster(invocation.settings, lambda cluster: cluster.limits.get(name)))
    emit_record(_record(found), invocation.output)


@limit_group.command("set")
@click.argument("name")
@click.argument("running", type=int, required=False)
@click.option("--rate", help="Starts in a time, of each key: 50/s, 600/m, 10/5s.")
@click.option("--burst", type=float, help="Starts that may come at once after a pause. Default: those of one second.")
@click.option("--reason", default="", help="Reason, for the list and the operator's log.")
@click.option("--force", is_flag=True, help="Also a limit that no agent has declared.")
@pass_invocation
def set_(
    invocation: Invocation,
    name: str,
    running: int | None,
    rate: str | None,
    burst: float | None,
    reason: str,
    force: bool,
) -> None:
    """Give a limit other values; they stand over those of the code until `jobmaster limit reset`.

    Every start after the command obeys. A limit that is lowered ends no job. What is left out stays as in the code.
    RUNNING: jobs that may run at once, of each key.

    \b
    Examples:
      jobmaster limit set stripe 50 --reason "incident 4711"
      jobmaster limit set geocoder --rate 20/s --burst 5
    """

    async def work(cluster: Cluster) -> LimitView:
        return await cluster.limits.set(
            name, running, rate=rate, burst=burst, reason=reason, actor=operator_name(), force=force
        )

    emit_record(_record(run_async(with_cluster(invocation.settings, work))), invocation.output)


@limit_group.command("reset")
@click.argument("name")
@pass_invocation
@click.pass_context
def reset(ctx: click.Context, invocation: Invocation, name: str) -> None:
    """Take set values back: those of the code count again. A limit that no agent has declared is removed.

    Exit code 4 when nothing was set.

    \b
    Example:
      jobmaster limit reset stripe
    """
    was_set = run_async(
        with_cluster(invocation.settings, lambda cluster: cluster.limits.reset(name, actor=operator_name()))
    )
    emit_record({"name": name, "reset": was_set}, invocation.output)
    if not was_set:
        ctx.exit(4)


def _record(limit: LimitView) -> dict[str, Any]:
    return {
        "name": limit.name,
        "running": limit.running,
        "rate": limit.rate,
        "burst": limit.burst,
        "taken": limit.taken,
        "keys": limit.keys,
        "fullest_key": limit.fullest_key,
        "fullest": limit.fullest,
        "declared": limit.declared,
        "declared_running": limit.declared_running,
        "declared_rate": limit.declared_rate,
        "declared_burst": limit.declared_burst,
        "set_at": iso(limit.set_us) if limit.set_us else None,
        "set_by": limit.set_by,
        "set_reason": limit.set_reason,
    }
