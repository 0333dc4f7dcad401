"""``python -m tests.chaos --minutes 3 --seed 7 --json``: a whole cluster under faults, and what became of every job."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from tests import ledger
from tests.chaos.checks.collect import write
from tests.chaos.cluster.chaos_cluster import RunForm, RunOptions
from tests.chaos.cluster.replicated_store import StoreForm
from tests.chaos.faults.catalogue import KINDS
from tests.chaos.page import RESULTS
from tests.chaos.processes.child import Mutant
from tests.chaos.run import interruptible, is_clean, run


def log_line(said: str) -> None:
    """Progress, on standard error."""
    click.echo(said, err=True)


def show(report: dict[str, Any], *, as_json: bool) -> None:
    """One JSON object on the last line, or lines for people."""
    if as_json:
        click.echo(json.dumps(report))
        return
    for key, value in report.items():
        click.echo(f"{key:24} {json.dumps(value) if isinstance(value, dict | list) else value}")


def _name(options: RunOptions) -> str:
    """Of a report that is kept."""
    if options.stores is not StoreForm.SINGLE:
        return options.stores.value
    return "long" if options.long_faults else options.form.value


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--minutes", type=click.FloatRange(0.1, 24 * 60), default=3.0, show_default=True, help="How long under load."
)
@click.option("--seed", default=7, show_default=True, help="One seed, one schedule of faults.")
@click.option("--rate", default=2300.0, show_default=True, help="Jobs offered a second.")
@click.option(
    "--bound", default=120.0, show_default=True, help="Seconds after healing in which every job must be over."
)
@click.option("--rounds-of-kill", "kills", default=0, help="Instead: so many rounds of SIGKILL at random moments.")
@click.option("--rolling", default=0, help="Instead: so many rolling restarts under load.")
@click.option(
    "--fault", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Only this kind; may be repeated."
)
@click.option(
    "--stores",
    type=click.Choice([form.value for form in StoreForm]),
    default=StoreForm.SINGLE.value,
    show_default=True,
    help="One of the two stores: one server, a primary that Sentinels watch, or a Valkey Cluster; with faults of its own.",
)
@click.option("--long-faults", is_flag=True, help="Besides: faults that last several leases, one after the other.")
@click.option(
    "--mutant",
    default="",
    type=click.Choice(["", *(mutant.value for mutant in Mutant)]),
    help="Leave a guard out of every agent.",
)
@click.option("--no-disks", is_flag=True, help="No file systems of their own for the servers.")
@click.option("--keep", is_flag=True, help="Keep the directory with all logs also after a good run.")
@click.option(
    "--save",
    is_flag=True,
    help="Keep the report of a good run for docs/guarantees.md (then: python -m tests.chaos.page), and count any run in "
    "acknowledged.json (python -m tests.ledger).",
)
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object on the last line.")
def main(
    minutes: float,
    seed: int,
    rate: float,
    bound: float,
    kills: int,
    rolling: int,
    kinds: tuple[str, ...],
    stores: str,
    long_faults: bool,
    mutant: str,
    no_disks: bool,
    keep: bool,
    save: bool,
    as_json: bool,
) -> None:
    """Chaos. Exit code 1 on any violation; then the directory with all logs is kept and named."""
    interruptible()
    options = RunOptions(
        seconds=minutes * 60,
        seed=seed,
        rate=rate,
        bound_seconds=bound,
        kinds=kinds,
        mutant=mutant,
        disks=not no_disks,
        keep=keep,
        form=RunForm.KILLS if kills else RunForm.ROLLING if rolling else RunForm.MIXED,
        rounds=kills or rolling,
        long_faults=long_faults,
        stores=StoreForm(stores),
    )
    report = run(options, log_line)
    if save:
        ledger.append(ledger.ACKNOWLEDGED, ledger.fault_run("tests.chaos", report, ledger.today()))
    if save and is_clean(report):
        RESULTS.mkdir(exist_ok=True)
        write(
            RESULTS / f"{_name(options)}.json",
            {key: value for key, value in report.items() if key != "kept"},
        )
    show(report, as_json=as_json)
    if not is_clean(report):
        log_line(
            f"VIOLATIONS: {report['violations'] or report['left_after_drain']}; everything is kept in {report['kept']}"
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
