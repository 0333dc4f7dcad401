"""``jobmaster log``: the actions of operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import DURATION, with_cluster
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_rows, iso_at

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.model.inspection.views import OperatorAct


def _detail_text(detail: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in detail.items() if value is not None)


COLUMNS = (
    Column("TIME (UTC)", "at"),
    Column("BY", "actor"),
    Column("ACTION", "action"),
    Column("SUBJECT", "subject"),
    Column("DETAIL", "detail", _detail_text, whole=True),
)


@click.group("log")
def log_group() -> None:
    """Show the actions of operators."""


@log_group.command("list")
@click.option("--subject", help="Only actions on this subject: an id or its beginning, a batch, a range.")
@click.option("--actor", help="Only actions of this operator: user@host, or the user alone.")
@click.option("--since", type=DURATION, help="Only of the last 30m, 2h, 7d ...")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True)
@pass_invocation
def list_(invocation: Invocation, subject: str | None, actor: str | None, since: float | None, limit: int) -> None:
    """List the actions of operators, the latest first.

    Cancelled, changed, confirmed and retried jobs, drained agents, frozen buckets, pauses, schedules that were paused,
    resumed, removed or run, released locks, retired ranges, submitted and replayed batches; cancels and confirmations also
    from the Python client, by the actor that the caller named.

    \b
    Examples:
      jobmaster log list --since 7d
      jobmaster log list --subject 0199a1f3 -o json
      jobmaster log list --actor ann
    """

    async def work(cluster: Cluster) -> list[OperatorAct]:
        return await cluster.inspect.operator_log(subject=subject, actor=actor, since=since, limit=limit)

    filtered = any(given is not None for given in (subject, actor, since))
    empty = "no action of an operator fits these options" if filtered else "no operator has done anything"
    records = [_record(act) for act in run_async(with_cluster(invocation.settings, work))]
    emit_rows(records, COLUMNS, invocation.output, empty=empty, name="subject")


def _record(act: OperatorAct) -> dict[str, Any]:
    return {
        "at": iso_at(act.at),
        "actor": act.actor,
        "action": act.action,
        "subject": act.subject,
        "detail": act.detail,
    }
