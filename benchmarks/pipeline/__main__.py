"""``python -m benchmarks.pipeline [--rows N] [--days N] [--save]``: the data pipeline on this machine, on private servers."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from benchmarks.pipeline import archive_rollup, read_write, rollup_increment
from benchmarks.support.report import output_options, progress, show
from jobmaster.embedded import EmbeddedCluster, EmbeddedOptions


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", default=2_000_000, show_default=True, help="Jobs of one day.")
@click.option("--days", default=1, show_default=True, help="Days to archive, roll up and audit.")
@click.option(
    "--only",
    type=click.Choice(["moving", "history", "increment"]),
    help="Reading and writing; archive, roll-up and audit; or the roll-up of a day over many old ones.",
)
@output_options
def main(rows: int, days: int, only: str | None, as_json: bool, save: bool) -> None:
    """Measure the data pipeline."""
    found: dict[str, object] = {"rows": rows}
    with tempfile.TemporaryDirectory(prefix="jobmaster-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        if only in (None, "moving"):
            progress(f"reading and writing {rows:,} rows")
            found |= read_write.measure(directory, rows)
        if only in (None, "history"):
            progress(f"archive, roll-up and audit of {days} x {rows:,} rows")
            with EmbeddedCluster(directory / "data", EmbeddedOptions(durable=False)) as servers:
                found |= archive_rollup.measure(servers.dsn, servers.url, directory, rows, days)
        if only in (None, "increment"):
            progress(f"roll-up of {rows // rollup_increment.NEW_SHARE:,} rows over {rows:,} old ones")
            with EmbeddedCluster(directory / "increment", EmbeddedOptions(durable=False)) as servers:
                found |= rollup_increment.measure(servers.dsn, servers.url, directory, rows)
    show("pipeline", found, as_json=as_json, save=save)


if __name__ == "__main__":
    sys.exit(main())
