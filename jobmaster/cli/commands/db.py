"""``jobmaster db``: create and upgrade the schema of the master database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import DURATION
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import reader_of, run_async
from jobmaster.cli.tables import Column, emit_data, emit_rows
from jobmaster.model.job_view import iso

if TYPE_CHECKING:
    from jobmaster.master.schema.migrations import MigrationStatus
    from jobmaster.settings.model import ClusterSettings

EXIT_REFUSED = 77
COLUMNS = (
    Column("MIGRATION", "migration"),
    Column("STATE", "state"),
    Column("PROGRAMS", "programs"),
    Column("APPLIED", "applied_at"),
    Column("BY", "by"),
)


@click.group("db")
def db_group() -> None:
    """Create and upgrade the schema of the master database."""


@db_group.command("migrate")
@pass_invocation
def migrate(invocation: Invocation) -> None:
    """Apply missing migrations, and create the partitions of the next days. Safe to repeat, and to run twice at once.

    \b
    Example:
      jobmaster db migrate --config cluster.yaml
    """
    from jobmaster.wiring import migrate_master

    applied = run_async(migrate_master(invocation.settings, invocation.note))
    emit_data({"schema": invocation.settings.schema_name(), "applied": applied}, invocation.output)


@db_group.command("status")
@pass_invocation
@click.pass_context
def status(ctx: click.Context, invocation: Invocation) -> None:
    """Show every migration. Exit code 77 when this program would refuse the schema.

    PROGRAMS names the oldest programs that may run on a schema with that migration, by the last migration they know. Run the
    new program's `db status` before it migrates: it shows whether the running agents and producers may continue. The last
    line, on standard error, is the state of the retention of jobs.

    \b
    Example:
      jobmaster db status -o json
    """
    lines, retention = run_async(_status_and_retention(invocation.settings))
    rows = [
        {
            "migration": f"{line.number:04d}_{line.name}",
            "state": str(line.standing),
            "programs": f">= {line.programs:04d}",
            "applied_at": iso(line.applied_us),
            "by": line.by,
        }
        for line in lines
    ]
    emit_rows(rows, COLUMNS, invocation.output, empty="no migrations")
    if retention:
        invocation.note(f"retention of jobs: {retention}")
    if any(row["state"] not in ("applied", "newer") for row in rows):
        ctx.exit(EXIT_REFUSED)


@db_group.command("sql")
@click.option("--from", "from_", type=click.IntRange(0), default=0, help="Only migrations after this number.")
@pass_invocation
def sql(invocation: Invocation, from_: int) -> None:
    """Print the SQL of the migrations, for databases that may only be changed by hand. Needs no server.

    \b
    Example:
      jobmaster db sql | psql -v ON_ERROR_STOP=1 -1
    """
    from jobmaster.master.schema.migrations import script

    settings = invocation.settings
    click.echo(script(settings.schema_name(), settings.cluster, from_), nl=False)


@db_group.command("roles")
@click.option("--part", type=click.Choice(["all", "create", "grant"]), default="all", help="Only this part of the SQL.")
@pass_invocation
def roles(invocation: Invocation, part: str) -> None:
    """Print the SQL of least-privilege roles: owner, agent, producer, viewer, operator. Needs no server.

    Their rights are read from the statements that each of them runs. `create` is for an administrator of the server,
    before the first migration; `grant` is for the owner of the schema. `jobmaster db migrate` repeats the grants where the
    roles exist.

    \b
    Examples:
      jobmaster db roles --part create | psql -v ON_ERROR_STOP=1 -1
      jobmaster db roles | psql -v ON_ERROR_STOP=1 -1
    """
    from jobmaster.master.schema.roles import script

    click.echo(script(invocation.settings.schema_name(), create=part != "grant", grant=part != "create"), nl=False)


@db_group.command("retire")
@click.option("--older-than", type=DURATION, required=True, help="Ranges wholly older than 30d, 12h ...")
@click.option("--discard", is_flag=True, help="Drop them too, without a copy of their jobs anywhere.")
@click.option("--lost-store", "lost_stores", multiple=True, help="A store that is lost for good; may be repeated.")
@pass_invocation
def retire(invocation: Invocation, older_than: float, discard: bool, lost_stores: tuple[str, ...]) -> None:
    """Detach old ranges of jobs; --discard drops them, too.

    A retired range costs the running cluster nothing, and its jobs stay in the views for people. Unfinished jobs stay in the
    master's tables. `jobmaster pipeline archive` copies such ranges to files, verifies the copy and then drops them;
    --discard drops them without a copy, including ranges that were retired before and are not archived yet. In an archived
    cluster it also deletes the rows of jobs that moved to another cluster that long ago.

    \b
    Examples:
      jobmaster db retire --older-than 30d
      jobmaster db retire --older-than 90d --discard
    """
    done = run_async(_retire_and_note(invocation, older_than, discard, lost_stores))
    if not emit_data(done, invocation.output):
        moved = f", {done['moved']} rows of moved jobs deleted" if done["moved"] else ""
        click.echo(f"{len(done['retired'])} ranges retired, {len(done['discarded'])} dropped{moved}")


async def _retire_and_note(
    invocation: Invocation, older_than: float, discard: bool, lost_stores: tuple[str, ...]
) -> dict[str, Any]:
    from jobmaster.cli.operator_log import note_acts

    done = await _retire(invocation, older_than, discard, lost_stores)
    names = dict.fromkeys([*done["retired"], *done["discarded"]])
    acts: dict[str, dict[str, object]] = {
        name: {"retired": name in done["retired"], "discarded": name in done["discarded"]} for name in names
    }
    if done["moved"]:
        acts["moved jobs"] = {"deleted": done["moved"]}
    await note_acts(invocation.settings, "db retire", acts)
    return done


async def _retire(
    invocation: Invocation, older_than: float, discard: bool, lost_stores: tuple[str, ...]
) -> dict[str, Any]:
    from jobmaster.retention.retire import Retiring
    from jobmaster.wiring import open_archive

    archive = await open_archive(invocation.settings)
    try:
        async with Retiring.opened(invocation.settings, archive, older_than, lost_stores) as retiring:
            retired = [name async for name in retiring.all(invocation.note)]
            dropped = [name async for name in retiring.discarded(invocation.note)] if discard else []
            moved = await retiring.forget_moved(invocation.note) if discard else 0
            return {"retired": retired, "discarded": dropped, "moved": moved}
    finally:
        await archive.close()


async def _status_and_retention(settings: ClusterSettings) -> tuple[list[MigrationStatus], str]:
    from jobmaster.doctor.life import retention_finding
    from jobmaster.wiring import schema_status

    lines = await schema_status(settings)
    if any(line.standing not in ("applied", "newer") for line in lines):
        return lines, ""
    async with reader_of(settings) as reader:
        return lines, (await retention_finding(settings, reader)).detail
