"""``python -m benchmarks.pipeline [--rows N] [--days N] [--json]``: the data pipeline on this machine, on private servers."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import click

from benchmarks.pipeline import archiving, moving
from benchmarks.report import machine
from jobmaster.embedded import EmbeddedCluster, EmbeddedOptions


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", default=2_000_000, show_default=True, help="Jobs of one day.")
@click.option("--days", default=1, show_default=True, help="Days to archive, roll up and audit.")
@click.option(
    "--only", type=click.Choice(["moving", "history"]), help="Reading and writing, or archive, roll-up and audit."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(rows: int, days: int, only: str | None, as_json: bool) -> None:
    """Measure the data pipeline."""
    found: dict[str, object] = {"benchmark": "pipeline", "rows": rows}
    with tempfile.TemporaryDirectory(prefix="jobmaster-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        if only != "history":
            found |= moving.measure(directory, rows)
        if only == "moving":
            show(found, as_json)
            return
        with EmbeddedCluster(directory / "data", EmbeddedOptions(durable=False)) as servers:
            found |= archiving.measure(servers.dsn, servers.url, directory, rows, days)
    show(found, as_json)


def show(found: dict[str, object], as_json: bool) -> None:
    """One JSON object, or lines for people."""
    found["machine"] = machine()
    if as_json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:32} {json.dumps(value) if isinstance(value, dict) else value}")


if __name__ == "__main__":
    sys.exit(main())
