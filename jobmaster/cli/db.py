"""``jobmaster db``: create and upgrade the schema of the master database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_json, emit_rows, iso

if TYPE_CHECKING:
    from jobmaster.master.migrations import MigrationStatus
    from jobmaster.settings.model import ClusterSettings

EXIT_REFUSED = 77
COLUMNS = (
    Column("MIGRATION", "migration"),
    Column("STATE", "state"),
    Column("APPLIED", "applied_at"),
    Column("BY", "by"),
)


@click.group("db")
def db_group() -> None:
    """Create and upgrade the schema of the master database."""


@db_group.command("migrate")
@pass_invocation
def migrate(invocation: Invocation) -> None:
    """Apply what is missing, and make the partitions of the next days. Safe to repeat, and to run twice at once.

    \b
    Example:
      jobmaster db migrate --config cluster.yaml
    """
    from jobmaster.wiring import migrate_master

    applied = run_async(migrate_master(invocation.settings, invocation.note))
    if invocation.json:
        emit_json({"schema": invocation.settings.schema_name(), "applied": applied})


@db_group.command("status")
@pass_invocation
@click.pass_context
def status(ctx: click.Context, invocation: Invocation) -> None:
    """Show every migration. Exit code 77 when this program would refuse the schema.

    \b
    Example:
      jobmaster db status -o json
    """
    lines = run_async(master_status(invocation.settings))
    rows = [
        {
            "migration": f"{line.number:04d}_{line.name}",
            "state": str(line.standing),
            "applied_at": iso(line.applied_us),
            "by": line.by,
        }
        for line in lines
    ]
    emit_rows(rows, COLUMNS, as_json=invocation.json, empty="no migrations")
    if any(row["state"] != "applied" for row in rows):
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
    from jobmaster.master.migrations import script

    settings = invocation.settings
    click.echo(script(settings.schema_name(), settings.cluster, from_), nl=False)


async def master_status(settings: ClusterSettings) -> list[MigrationStatus]:
    """How every migration stands."""
    from jobmaster.master.migrate import status
    from jobmaster.wiring import addresses

    return await status(dsn=addresses(settings).dsn, schema=settings.schema_name(), settings=settings.master)
