"""``python -m benchmarks.pipeline [--rows N] [--days N] [--save]``: the data pipeline on this machine, on private servers."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from benchmarks.pipeline import archive_rollup, export_beside, read_write, rollup_increment
from benchmarks.support.report import output_options, progress, show
from jobmaster.embedded import EmbeddedCluster, EmbeddedOptions

PARTS = ("history", "moving", "increment", "export")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", default=2_000_000, show_default=True, help="Jobs of one day.")
@click.option("--days", default=1, show_default=True, help="Days to archive, roll up and audit.")
@click.option("--old-rows", type=int, help="Archived jobs below a day of new ones. Default: --rows.")
@click.option("--turns", default=5, show_default=True, help="Of submits alone and beside an export.")
@click.option("--submits", default=1000, show_default=True, help="Of each turn.")
@click.option("--jar", type=click.Path(path_type=Path, exists=True), help="JDBC driver. Default: that of Debian.")
@click.option(
    "--only",
    type=click.Choice(PARTS),
    help="Archive, roll-up and audit; reading and writing; the roll-up of a day over old ones; submits beside an export.",
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
    found: dict[str, Any] = {"rows": rows}
    if only is None:
        for part in PARTS:
            found |= _in_a_process(part)
    else:
        with tempfile.TemporaryDirectory(prefix="jobmaster-bench-") as name:
            directory = Path(name)
            directory.chmod(0o755)
            parts: dict[str, Callable[[], dict[str, Any]]] = {
                "history": lambda: _history(directory, rows, days),
                "moving": lambda: read_write.measure(directory, rows, jar),
                "increment": lambda: _increment(directory, old_rows or rows),
                "export": lambda: export_beside.measure(rows, turns, submits),
            }
            progress(f"{only} of {rows:,} rows")
            found |= parts[only]()
    show("pipeline", found, as_json=as_json, save=save)


def _in_a_process(part: str) -> dict[str, Any]:
    """The figures of one part. A Java virtual machine loads a driver's jar only at its start, and a driver's memory is
    that of its process.
    """
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--save", "--json")]
    command = [sys.executable, "-m", "benchmarks.pipeline", *arguments, "--only", part, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _history(directory: Path, rows: int, days: int) -> dict[str, Any]:
    with EmbeddedCluster(directory / "data", EmbeddedOptions(durable=False)) as servers:
        return archive_rollup.measure(servers.dsn, servers.url, directory, rows, days)


def _increment(directory: Path, old_rows: int) -> dict[str, Any]:
    with EmbeddedCluster(directory / "increment", EmbeddedOptions(durable=False)) as servers:
        return rollup_increment.measure(servers.dsn, servers.url, directory, old_rows)


if __name__ == "__main__":
    sys.exit(main())
