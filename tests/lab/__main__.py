"""``python -m tests.lab --minutes 3 --seed 7 --json``: the cluster of ``tests.chaos`` on several hosts, whose links fail."""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path

import click

from tests import ledger
from tests.chaos.__main__ import log_line, show
from tests.chaos.checks.collect import write
from tests.chaos.cluster.chaos_cluster import RunOptions
from tests.chaos.run import interruptible, is_clean, run
from tests.lab.faults.catalogue import KINDS
from tests.lab.faults.targets import HOSTS
from tests.lab.laboratory import LabCluster
from tests.lab.network import LabUnavailable, Network
from tests.lab.page import RESULTS
from tests.lab.servers import LabMutant


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--minutes", type=click.FloatRange(0.1, 24 * 60), default=3.0, show_default=True, help="How long under load."
)
@click.option("--seed", default=7, show_default=True, help="One seed, one schedule of faults.")
@click.option("--rate", default=600.0, show_default=True, help="Jobs offered a second.")
@click.option(
    "--bound", default=180.0, show_default=True, help="Seconds after healing in which every job must be over."
)
@click.option(
    "--fault", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Only this kind; may be repeated."
)
@click.option(
    "--mutant",
    type=click.Choice([mutant.value for mutant in LabMutant]),
    help="Let disks, or PostgreSQL, sync nothing: the checker must find it.",
)
@click.option("--keep", is_flag=True, help="Keep the directory with all logs also after a good run.")
@click.option(
    "--save",
    is_flag=True,
    help="Keep the report of a good run for docs/guarantees.md (then: python -m tests.lab.page).",
)
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object on the last line.")
def main(
    minutes: float,
    seed: int,
    rate: float,
    bound: float,
    kinds: tuple[str, ...],
    mutant: str | None,
    keep: bool,
    save: bool,
    as_json: bool,
) -> None:
    """Faults of links, hosts, disks and clocks. Exit code 1: a violation, 2: the hosts cannot be made; needs root."""
    interruptible()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            Network(Path(scratch) / "network", HOSTS[:2]).close()
    except LabUnavailable as error:
        log_line(f"the laboratory cannot be made here: {error}")
        sys.exit(2)
    options = RunOptions(
        seconds=minutes * 60, seed=seed, rate=rate, bound_seconds=bound, kinds=kinds, disks=False, keep=keep
    )
    make = functools.partial(LabCluster, mutant=LabMutant(mutant) if mutant else None)
    report = {**run(options, log_line, make, KINDS), "hosts": list(HOSTS), "mutant": mutant or ""}
    if save and not mutant:
        ledger.append(ledger.ACKNOWLEDGED, ledger.fault_run("tests.lab", report, ledger.today()))
    if save and not mutant and is_clean(report):
        RESULTS.mkdir(exist_ok=True)
        write(RESULTS / f"seed-{seed}.json", {key: value for key, value in report.items() if key != "kept"})
    show(report, as_json=as_json)
    if not is_clean(report):
        log_line(f"VIOLATIONS: {report['violations'] or report['left_after_drain']}; all is kept in {report['kept']}")
        sys.exit(1)


if __name__ == "__main__":
    main()
