"""``jobmaster signal``: send signals, list what waits for one and what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from jobmaster.cli.commands.job_inputs import DURATION, with_cluster
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.operator_log import operator_name
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, Output, emit_data, emit_record, emit_rows
from jobmaster.model import ids
from jobmaster.model.errors import InputError
from jobmaster.model.flow.signal import KeptSignal, Recipients, WaitingJobs
from jobmaster.model.job_view import iso

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster

WAITING_COLUMNS = (
    Column("KEY", "key", whole=True),
    Column("JOBS WAITING", "jobs", right=True),
    Column("SINCE (UTC)", "since"),
)
KEPT_COLUMNS = (
    Column("KEY", "key", whole=True),
    Column("TO", "to"),
    Column("KEPT UNTIL (UTC)", "kept_until"),
    Column("DELIVERED", "delivered", right=True),
    Column("BY", "actor"),
    Column("PAYLOAD", "payload", lambda payload: msgspec.json.encode(payload).decode(), whole=True),
)


@click.group("signal")
def signal_group() -> None:
    """Send signals to jobs that wait for them; list what waits and what is kept."""


@signal_group.command("send")
@click.argument("key")
@click.argument("payload", default="null")
@click.option("--to", type=click.Choice([each.value for each in Recipients]), default="all", show_default=True,
              help="All jobs that wait, or the one that was submitted first.")  # fmt: skip
@click.option("--keep-for", type=DURATION, help="Keep it so long for jobs that are submitted later: 30s, 10m, 2h ...")
@click.option("--id", "signal_id", help="A UUID; the same id again delivers nothing new.")
@pass_invocation
def send(
    invocation: Invocation, key: str, payload: str, to: str, keep_for: float | None, signal_id: str | None
) -> None:
    """Send a signal to the jobs that wait for KEY, with PAYLOAD (JSON).

    The jobs are due at once. Without a receiver the signal has no effect, unless it is kept. DELIVERED: jobs that waited
    for it.

    \b
    Examples:
      jobmaster signal send order:17 '{"paid": true}'
      jobmaster signal send stock:lamp --to one --keep-for 10m
    """
    try:
        value = msgspec.json.decode(payload)
    except msgspec.DecodeError as error:
        raise InputError(f"PAYLOAD is not JSON: {error}", hint="for a text give quotes, too: '\"paid\"'") from None
    sent = run_async(
        with_cluster(
            invocation.settings,
            lambda cluster: cluster.signals.send(
                key, value, to=Recipients(to), keep_for=keep_for, signal_id=signal_id, actor=operator_name()
            ),
        )
    )
    record = {
        "id": ids.text(sent.id_bytes),
        "key": sent.key,
        "delivered": sent.delivered,
        "kept_until": None if sent.kept_until_us is None else iso(sent.kept_until_us),
        "repeated": sent.repeated,
    }
    emit_record(record, invocation.output)


@signal_group.command("list")
@click.argument("key", required=False)
@pass_invocation
def list_(invocation: Invocation, key: str | None) -> None:
    """List the keys that jobs wait for, and the signals that are kept; at most 1000 of each. With KEY: of that one.

    \b
    Examples:
      jobmaster signal list
      jobmaster signal list order:17 -o json
    """

    async def work(cluster: Cluster) -> tuple[list[WaitingJobs], list[KeptSignal]]:
        return await cluster.signals.waiting(key), await cluster.signals.kept(key)

    waiting, kept = run_async(with_cluster(invocation.settings, work))
    waiting_rows = [{"key": each.key, "jobs": each.jobs, "since": iso(each.since_us)} for each in waiting]
    kept_rows = [_kept_record(each) for each in kept]
    if invocation.output is Output.NAME:
        keys = dict.fromkeys(row["key"] for row in (*waiting_rows, *kept_rows))
        emit_data([{"key": each} for each in keys], invocation.output)
    elif not emit_data({"waiting": waiting_rows, "kept": kept_rows}, invocation.output):
        emit_rows(waiting_rows, WAITING_COLUMNS, invocation.output, empty="no job waits for a signal")
        emit_rows(kept_rows, KEPT_COLUMNS, invocation.output, empty="no signal is kept")


def _kept_record(kept: KeptSignal) -> dict[str, Any]:
    return {
        "id": ids.text(kept.id_bytes),
        "key": kept.key,
        "to": kept.recipients.value,
        "payload": msgspec.json.decode(kept.payload_json),
        "actor": kept.actor,
        "sent_at": iso(kept.sent_us),
        "kept_until": iso(kept.kept_until_us),
        "delivered": kept.delivered,
    }
