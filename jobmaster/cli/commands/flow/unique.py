"""``jobmaster unique``: unique keys, and the jobs that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import with_cluster
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.operator_log import operator_name
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_record, emit_rows, iso_at

if TYPE_CHECKING:
    from jobmaster.model.flow.uniqueness import UniqueKeyView

COLUMNS = (
    Column("HANDLER", "handler", whole=True),
    Column("KEY", "key", whole=True),
    Column("JOB", "job", whole=True),
    Column("STATE", "state"),
    Column("UNTIL (UTC)", "until"),
)
_ENDS = {"live": "the job has ended", "waiting": "the job starts"}


@click.group("unique")
def unique_group() -> None:
    """List unique keys and the jobs that hold them; release a key."""


@unique_group.command("list")
@click.argument("handler", required=False)
@click.option("--key", help="Only this key.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most so many lines.")
@pass_invocation
def list_(invocation: Invocation, handler: str | None, key: str | None, limit: int) -> None:
    """List the unique keys that jobs hold, of HANDLER or of all handlers, by handler and key.

    STATE: state of the job; empty when it has no row any more. UNTIL: what ends the hold: a time, the end of the job or
    its start.

    \b
    Examples:
      jobmaster unique list
      jobmaster unique list customers.sync --key 42 -o json
    """
    found = run_async(
        with_cluster(invocation.settings, lambda cluster: cluster.inspect.unique_keys(handler, key, limit=limit))
    )
    emit_rows(
        [_record(each) for each in found],
        COLUMNS,
        invocation.output,
        empty="no unique key is held",
        name=("handler", "key"),
    )


@unique_group.command("release")
@click.argument("handler")
@click.argument("key")
@pass_invocation
def release(invocation: Invocation, handler: str, key: str) -> None:
    """Take the unique key KEY of HANDLER from the job that holds it.

    The job goes on. The next submit of the key makes another job, which may run beside it. The action is written to the
    operator's log.

    \b
    Example:
      jobmaster unique release customers.sync 42
    """
    actor = operator_name()
    run_async(
        with_cluster(invocation.settings, lambda cluster: cluster.operate.release_unique_key(handler, key, actor=actor))
    )
    emit_record({"handler": handler, "key": key, "released": True}, invocation.output, name=("handler", "key"))


def _record(held: UniqueKeyView) -> dict[str, Any]:
    return {
        "handler": held.handler,
        "key": held.key,
        "job": str(held.job),
        "state": None if held.state is None else held.state.value,
        "term": held.term.value,
        "held_at": iso_at(held.held_at),
        "until": _ENDS[held.term.value] if held.until is None else iso_at(held.until),
    }
