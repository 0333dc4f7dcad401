"""``jobmaster breaker``: circuit breakers of resources."""

from __future__ import annotations

from typing import Any

import click

from jobmaster.cli.commands.job_inputs import DURATION, with_cluster
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.operator_log import operator_name
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_record, emit_rows
from jobmaster.model.flow.breaker import BreakerView
from jobmaster.model.job_view import iso

COLUMNS = (
    Column("NAME", "name"),
    Column("STATE", "state"),
    Column("SINCE (UTC)", "changed_at"),
    Column("UNTIL (UTC)", "until_at"),
    Column("CALLS", "calls", right=True),
    Column("FAILED", "failed", right=True),
    Column("TRIALS", "trials", right=True),
    Column("REASON", "reason", whole=True),
)

_EPOCH = click.option(
    "--epoch", type=int, help="Only if the breaker has not changed since `breaker show` has printed this epoch."
)


@click.group("breaker")
def breaker_group() -> None:
    """List circuit breakers; open and close one."""


@breaker_group.command("list")
@pass_invocation
def list_(invocation: Invocation) -> None:
    """List the circuit breakers that handlers of agents have declared.

    CALLS and FAILED: runs within the window. TRIALS: jobs that try the resource while the breaker is half-open.

    \b
    Example:
      jobmaster breaker list -o json
    """
    found = run_async(with_cluster(invocation.settings, lambda cluster: cluster.breakers.list()))
    emit_rows([_record(each) for each in found], COLUMNS, invocation.output, empty="no handler has declared a breaker")


@breaker_group.command("show")
@click.argument("resource")
@pass_invocation
def show(invocation: Invocation, resource: str) -> None:
    """Show a circuit breaker: state, rule, handlers, the runs of its window, and the jobs that try the resource.

    \b
    Example:
      jobmaster breaker show stripe
    """
    view = run_async(with_cluster(invocation.settings, lambda cluster: cluster.breakers.get(resource)))
    emit_record(_record(view), invocation.output)


@breaker_group.command("open")
@click.argument("resource")
@click.option("--for", "seconds", type=DURATION, help="Become half-open after 90s, 10m, 2h ... (default: stay open).")
@click.option("--reason", default="", help="For lists and the operator's log.")
@_EPOCH
@pass_invocation
def open_(invocation: Invocation, resource: str, seconds: float | None, reason: str, epoch: int | None) -> None:
    """Open a circuit breaker: the jobs of its handlers wait in the master. Exit code 4 when it has changed since --epoch.

    \b
    Example:
      jobmaster breaker open stripe --for 2h --reason "maintenance until 14:00"
    """
    actor = operator_name()
    view = run_async(
        with_cluster(
            invocation.settings,
            lambda cluster: cluster.breakers.open(resource, open_for=seconds, reason=reason, actor=actor, epoch=epoch),
        )
    )
    emit_record(_record(view), invocation.output)


@breaker_group.command("close")
@click.argument("resource")
@click.option("--reason", default="", help="For lists and the operator's log.")
@_EPOCH
@pass_invocation
def close(invocation: Invocation, resource: str, reason: str, epoch: int | None) -> None:
    """Close a circuit breaker: the jobs of its handlers start again. Exit code 4 when it has changed since --epoch.

    \b
    Example:
      jobmaster breaker close stripe
    """
    actor = operator_name()
    view = run_async(
        with_cluster(
            invocation.settings,
            lambda cluster: cluster.breakers.close(resource, reason=reason, actor=actor, epoch=epoch),
        )
    )
    emit_record(_record(view), invocation.output)


def _record(view: BreakerView) -> dict[str, Any]:
    return {
        "name": view.name,
        "state": view.state.value,
        "changed_at": iso(view.changed_us),
        "until_at": iso(view.until_us),
        "calls": view.calls,
        "failed": view.failed,
        "trials": len(view.trial_jobs),
        "trial_jobs": [str(job) for job in view.trial_jobs],
        "succeeded": view.succeeded,
        "actor": view.actor,
        "reason": view.reason,
        "handlers": list(view.handlers),
        "failures": view.failures,
        "window": view.window_seconds,
        "min_calls": view.min_calls,
        "open_for": view.open_seconds,
        "half_open": view.half_open,
        "epoch": view.epoch,
    }
