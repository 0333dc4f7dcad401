"""``python -m benchmarks.pipeline [--rows N] [--days N] [--save]``: the data pipeline on this machine, on private servers."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from benchmarks.pipeline import archive_rollup, read_write
from benchmarks.support.report import output_options, progress, show
from jobmaster.embedded import EmbeddedCluster, EmbeddedOptions


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", default=2_000_000, show_default=True, help="Jobs of one day.")
@click.option("--days", default=1, show_default=True, help="Days to archive, roll up and audit.")
@click.option(
    "--only", type=click.Choice(["moving", "history"]), help="Reading and writing, or archive, roll-up and audit."
)
@output_options
def main(rows: int, days: int, only: str | None, as_json: bool, save: bool) -> None:
    """Measure the data pipeline."""
    found: dict[str, object] = {"rows": rows}
    with tempfile.TemporaryDirectory(prefix="jobmaster-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        if only != "history":
            progress(f"reading and writing {rows:,} rows")
            found |= read_write.measure(directory, rows)
        if only != "moving":
            progress(f"archive, roll-up and audit of {days} x {rows:,} rows")
            with EmbeddedCluster(directory / "data", EmbeddedOptions(durable=False)) as servers:
                found |= archive_rollup.measure(servers.dsn, servers.url, directory, rows, days)
    show("pipeline", found, as_json=as_json, save=save)


if __name__ == "__main__":
    sys.exit(main())
