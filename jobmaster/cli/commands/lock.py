"""``jobmaster lock`` and ``jobmaster once``: named locks, and actions that run once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import with_cluster
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.operator_log import operator_name
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_record, emit_rows
from jobmaster.model.errors import LockHeld, NotFound
from jobmaster.model.flow.lock import LockView
from jobmaster.model.job_view import iso

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster

COLUMNS = (
    Column("NAME", "name"),
    Column("FENCE", "fence", right=True),
    Column("SINCE (UTC)", "acquired_at"),
    Column("UNTIL (UTC)", "expires_at"),
    Column("HOLDER", "holder", whole=True),
)
ONCE_COLUMNS = (
    Column("NAME", "name"),
    Column("VERSION", "version"),
    Column("STATE", "state"),
    Column("SINCE (UTC)", "changed_at"),
    Column("FAILURES", "failures", right=True),
    Column("BY", "holder"),
    Column("ERROR", "error", whole=True),
)


@click.group("lock")
def lock_group() -> None:
    """List named locks and their holders; release a lock."""


@lock_group.command("list")
@pass_invocation
def list_(invocation: Invocation) -> None:
    """List the locks that have a holder, by name; at most 1000.

    FENCE: fencing number of the holder. UNTIL: the end of the lock, unless its holder renews it before.

    \b
    Example:
      jobmaster lock list -o json
    """
    found = run_async(with_cluster(invocation.settings, lambda cluster: cluster.locks()))
    emit_rows([_record(each) for each in found], COLUMNS, invocation.output, empty="no lock is held")


@lock_group.command("release")
@click.argument("name")
@click.option("--force", is_flag=True, help="Take the lock from its holder.")
@pass_invocation
def release(invocation: Invocation, name: str, force: bool) -> None:
    """Take a lock from its holder. The lock of a dead holder ends by itself.

    The holder notices it with its next renewal, within a third of the ttl of the lock; until then both may work. The
    action is written to the operator's log.

    \b
    Example:
      jobmaster lock release nightly-import --force
    """

    async def work(cluster: Cluster) -> LockView:
        if not force:
            for held in await cluster.locks(name):
                raise LockHeld(
                    f"lock {name!r} is held by {held.holder} until {iso(held.expires_us)}",
                    hint="--force takes it from its holder, which may go on for a third of its ttl",
                )
        released = await cluster.release_lock(name, actor=operator_name()) if force else None
        if released is None:
            raise NotFound(f"no program holds lock {name!r}", hint="jobmaster lock list")
        return released

    emit_record(_record(run_async(with_cluster(invocation.settings, work))), invocation.output)


@click.group("once")
def once_group() -> None:
    """List actions that run once per version."""


@once_group.command("list")
@pass_invocation
def once_list(invocation: Invocation) -> None:
    """List the actions that run once: those that run, have failed, and have been done; at most 1000.

    STATE: running, failed (it is tried again) or done. FAILURES: attempts that raised. BY: the program that runs it, has
    tried it last, or has done it. A running action holds the lock once/NAME/VERSION.

    \b
    Example:
      jobmaster once list -o json
    """
    found = run_async(with_cluster(invocation.settings, lambda cluster: cluster.once_actions()))
    rows = [
        {
            "name": each.name,
            "version": each.version,
            "state": each.state.value,
            "changed_at": iso(each.changed_us),
            "failures": each.failures,
            "holder": each.holder,
            "error": each.error,
        }
        for each in found
    ]
    emit_rows(rows, ONCE_COLUMNS, invocation.output, empty="no action has been begun")


def _record(lock: LockView) -> dict[str, Any]:
    return {
        "name": lock.name,
        "fence": lock.fence,
        "holder": lock.holder,
        "acquired_at": iso(lock.acquired_us),
        "expires_at": iso(lock.expires_us),
    }
