"""``python -m benchmarks.pipeline [--rows N] [--days N] [--save]``: the data pipeline on this machine, on private servers."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from benchmarks.pipeline import archive_rollup, export_beside, read_write, rollup_increment
from benchmarks.support.report import output_options, progress, show
from jobmaster.embedded import EmbeddedCluster, EmbeddedOptions


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", default=2_000_000, show_default=True, help="Jobs of one day.")
@click.option("--days", default=1, show_default=True, help="Days to archive, roll up and audit.")
@click.option("--old-rows", type=int, help="Archived jobs below a day of new ones. Default: --rows.")
@click.option("--turns", default=5, show_default=True, help="Of submits alone and beside an export.")
@click.option("--submits", default=1000, show_default=True, help="Of each turn.")
@click.option("--jar", type=click.Path(path_type=Path, exists=True), help="JDBC driver. Default: that of Debian.")
@click.option(
    "--only",
    type=click.Choice(["moving", "history", "increment", "export"]),
    help="Reading and writing; archive, roll-up and audit; the roll-up of a day over old ones; submits beside an export.",
)
@output_options
def main(
    rows: int,
    days: int,
    old_rows: int | None,
    turns: int,
    submits: int,
    jar: Path | None,
    only: str | None,
    as_json: bool,
    save: bool,
) -> None:
    """Measure the data pipeline."""
    found: dict[str, object] = {"rows": rows}
    old = old_rows or rows
    with tempfile.TemporaryDirectory(prefix="jobmaster-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        if only in (None, "history"):  # first: the memory of the driver is that of its process until then
            progress(f"archive, roll-up and audit of {days} x {rows:,} rows")
            with EmbeddedCluster(directory / "data", EmbeddedOptions(durable=False)) as servers:
                found |= archive_rollup.measure(servers.dsn, servers.url, directory, rows, days)
        if only in (None, "moving"):
            progress(f"reading and writing {rows:,} rows")
            found |= read_write.measure(directory, rows, jar)
        if only in (None, "increment"):
            progress(f"roll-up of a day over {old:,} archived jobs")
            with EmbeddedCluster(directory / "increment", EmbeddedOptions(durable=False)) as servers:
                found |= rollup_increment.measure(servers.dsn, servers.url, directory, old)
        if only in (None, "export"):
            progress(f"submits beside exports of {rows:,} rows")
            found |= export_beside.measure(rows, turns, submits)
    show("pipeline", found, as_json=as_json, save=save)


if __name__ == "__main__":
    sys.exit(main())
