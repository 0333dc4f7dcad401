"""``jobmaster events``: what the master has recorded, event by event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import with_cluster
from jobmaster.cli.commands.job_rows import short_error
from jobmaster.cli.completion import Known, known
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import clean, emit_item, refuse_csv_stream
from jobmaster.model.event import (
    RECORDED_KINDS,
    BucketEvent,
    ClusterEvent,
    JobEvent,
    OperatorEvent,
    ScheduleEvent,
)
from jobmaster.model.ids import text
from jobmaster.model.job_view import iso
from jobmaster.units import rounded_us

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster


@click.command("events")
@click.option(
    "--after",
    metavar="CURSOR",
    help="Continue after this place. 'start': all that the master has, the default without --follow.",
)
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C; without --after with what comes from now on.")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(sorted(kind.value for kind in RECORDED_KINDS)),
    multiple=True,
    help="May be repeated.",
)
@click.option(
    "--handler",
    "handlers",
    multiple=True,
    help="Jobs of this handler; may be repeated.",
    shell_complete=known(Known.HANDLERS),
)
@click.option("--tag", help="Jobs with this tag.")
@click.option("--batch", help="Jobs of this batch.")
@click.option("--workflow", help="Jobs of this workflow.")
@click.option("--tenant", help="Jobs of this tenant.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many events.")
@click.option(
    "--interval", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds between two looks."
)
@click.option(
    "--accept-failover",
    is_flag=True,
    help="Continue after a standby has taken over; without a synchronous one events may be missed.",
)
@pass_invocation
def events(invocation: Invocation, follow: bool, limit: int | None, after: str | None, **options: Any) -> None:
    """Show what the master has recorded, event by event; follow it.

    Ends of jobs and attempts, changes of buckets, fires of schedules, acts of operators; each once, oldest first.
    With -o json: one object a line, each with the cursor after it. Without: the last cursor on standard error. A look
    reads what the master has; --follow rests nine times as long as that has taken.

    \b
    Examples:
      jobmaster events --follow --kind job_failed
      jobmaster events --after start --tag orders -o json
    """
    refuse_csv_stream(invocation.output)
    filters = {
        "kinds": options["kinds"] or None,
        "handler": options["handlers"] or None,
        **{name: options[name] for name in ("tag", "batch", "workflow", "tenant")},
    }

    async def work(cluster: Cluster) -> str | None:
        stream = cluster.events(
            after or (None if follow else "start"),
            follow=follow,
            interval=options["interval"],
            accept_failover=options["accept_failover"],
            **filters,
        )
        given = 0
        async for event in stream:
            if not emit_item(_record(event), invocation.output, name="cursor"):
                click.echo(_line(event))
            given += 1
            if given == limit:
                break
        return stream.cursor

    cursor = run_async(with_cluster(invocation.settings, work))
    if invocation.output.for_people:
        click.echo(f"continue with --after {cursor}", err=True)


def _record(event: ClusterEvent) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": event.kind.value, "at": iso(event.at_us)}
    if isinstance(event, JobEvent):
        error = event.error
        record |= {
            "job": str(event.id),
            "handler": event.handler,
            "lane": event.lane,
            "priority": None if event.priority is None else event.priority.label,
            "attempt": event.attempt,
            "token": event.token,
            "outcome": event.outcome or None,
            "bucket_id": None if event.bucket_id is None else text(event.bucket_id),
            "waited_us": event.waited_us,
            "ran_us": event.ran_us,
            "tags": list(event.tags),
            "error": None if error is None else {"type": error.type, "message": error.message, "reason": error.reason},
        }
    elif isinstance(event, BucketEvent):
        record |= {"bucket_id": text(event.bucket_id), "state": event.state, "reason": event.reason}
    elif isinstance(event, ScheduleEvent):
        job = None if event.job_id is None else str(event.job_id)
        record |= {"schedule": event.schedule, "outcome": event.outcome, "job": job}
    elif isinstance(event, OperatorEvent):
        record |= {"action": event.action, "actor": event.actor, "subject": event.subject, "detail": event.detail}
    return {**record, "cursor": event.cursor}


def _line(event: ClusterEvent) -> str:
    record = _record(event)
    words = [record["at"], f"{record['kind']:14}"]
    if isinstance(event, JobEvent):
        words += [record["job"], event.handler, event.outcome]
        if event.ran_us is not None:
            words.append(f"ran {rounded_us(event.ran_us)}")
        if record["error"] is not None:
            words.append(short_error(record["error"]))
    else:
        names = ("bucket_id", "state", "schedule", "outcome", "job", "actor", "action", "subject", "reason")
        words += [str(record[name]) for name in names if record.get(name)]
    return clean(" ".join(filter(None, words)))
