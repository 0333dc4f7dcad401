"""``jobmaster cluster mode`` and ``jobmaster migrate``: the mode of a cluster, and its move to another master."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.operator_log import operator_name
from jobmaster.cli.running import reader_of, run_async
from jobmaster.cli.tables import emit_record
from jobmaster.model.cluster import ClusterMode
from jobmaster.model.job_view import iso
from jobmaster.settings.urls import is_dsn

if TYPE_CHECKING:
    from jobmaster.settings.model import ClusterSettings

NO_REASON = "no reason given"


@click.group("cluster")
def cluster_group() -> None:
    """Show and change the mode of the cluster."""


@cluster_group.command("mode")
@click.argument("mode", required=False, type=click.Choice([each.value for each in ClusterMode]))
@click.option("--reason", default=NO_REASON, help="Reason, for the operator's log.")
@pass_invocation
def mode(invocation: Invocation, mode: str | None, reason: str) -> None:
    """Show the mode of the cluster, or change it.

    active: it takes and runs jobs. migrating: it takes jobs into the master and runs none; within leases.renew its agents
    begin to complete their buckets. archived: it takes no jobs, every submit is refused with one error, and everything can
    be read; only a cluster without unfinished jobs and open buckets can be archived.

    \b
    Examples:
      jobmaster cluster mode
      jobmaster cluster mode archived --reason "moved to pg2"
    """
    emit_record(run_async(_mode(invocation.settings, mode, reason)), invocation.output)


@click.command("migrate")
@click.option("--to", "target", required=True, metavar="FILE|DSN", help="Configuration or master.dsn of the target.")
@click.option("--archive", is_flag=True, help="Archive this cluster when it is empty: late submits get an error.")
@click.option("--preview", is_flag=True, help="Count what would move and what would stay, and change nothing.")
@pass_invocation
def migrate(invocation: Invocation, target: str, archive: bool, preview: bool) -> None:
    """Move all unfinished jobs to the master of another cluster.

    No job is lost, and none runs in both. The target is an empty cluster with its own stores and a schema that `jobmaster db
    migrate` has made. With a DSN it has the name and the schema of this one, and no password_command: a target whose
    password comes from a command needs a FILE. This cluster becomes `migrating`: its agents
    complete their buckets, then jobs move page by page, with their attempts, idempotency keys, unique keys, schedules,
    limits, pauses, kept signals and once actions. Jobs that are submitted here meanwhile move, too. Start the agents of the
    target when schedules have moved, and point producers at it.

    Run it again after any interruption. Workflows and batches must have ended; --preview counts them.

    \b
    Examples:
      jobmaster migrate --config old.yaml --to new.yaml --preview
      jobmaster migrate --config old.yaml --to new.yaml
      jobmaster migrate --to postgresql://jobmaster@pg2/jobs --archive
    """
    from jobmaster.retention.cluster_move import move_cluster, preview_move

    settings = invocation.settings
    if preview:
        found = run_async(preview_move(settings, target_settings(settings, target)))
        emit_record(found._asdict(), invocation.output)
        return
    moved = run_async(
        move_cluster(settings, target_settings(settings, target), operator_name(), invocation.note, archive=archive)
    )
    record = {"moved": moved.moved, "mode": str(ClusterMode.ARCHIVED if moved.archived else ClusterMode.MIGRATING)}
    emit_record(record, invocation.output)


async def _mode(settings: ClusterSettings, wanted: str | None, reason: str) -> dict[str, Any]:
    from jobmaster.retention.cluster_move import set_mode

    if wanted is not None:
        await set_mode(settings, ClusterMode(wanted), operator_name(), reason)
    async with reader_of(settings) as reader:
        (row,) = await reader.report("cluster_mode")
    row["since"] = iso(row.pop("since_us"))
    return row


def target_settings(settings: ClusterSettings, target: str) -> ClusterSettings:
    """Settings of the target. Variables of the environment that change settings are those of this cluster alone."""
    import msgspec

    from jobmaster.settings.loader import load_settings

    if is_dsn(target):
        # What password_command gives is a secret of this cluster's server.
        master = msgspec.structs.replace(settings.master, dsn=target, password_command=None)
        return msgspec.structs.replace(settings, master=master)
    env = {name: value for name, value in os.environ.items() if not name.startswith("JOBMASTER_")}
    return load_settings(Path(target), env, ()).settings
