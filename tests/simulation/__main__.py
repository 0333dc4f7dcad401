"""``python -m tests.simulation``: whole clusters in one thread, seed after seed; the last line is JSON with ``--json``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable

from tests import ledger
from tests.simulation.ablations import ABLATIONS
from tests.simulation.checks import coverage
from tests.simulation.history import History
from tests.simulation.page import keep, lines_of_run
from tests.simulation.runner import Caught, Report, catch_all, play_all, seeds_of

SOMETIMES_FROM = 10_000
"""From so many seeds on a branch that was never taken is a failure."""


def main() -> int:
    """0: no violation (and every ablation caught); 1 otherwise."""
    given = _arguments()
    if given.replay is not None:
        return _replay(given.replay)
    first = given.first or 1
    if given.keep:
        try:
            at, first = _to_keep(given.first, given.seeds)
        except ledger.NotKept as error:
            sys.stderr.write(f"error: {error}\n")
            return 2
    figures: dict[str, object] = {}
    held = True
    if given.ablations:
        caught = _ablations(given.jobs)
        figures["ablations"] = {
            each.name: {"caught": each.seeds > 0, "seeds_to_detection": each.seeds or None, "violation": each.violation}
            for each in caught
        }
        held = all(each.seeds for each in caught)
        if given.write:
            keep(
                "simulation ablations",
                [(c.name, ABLATIONS[c.name].about, f"{c.seeds:,}", c.violation.split(":")[0]) for c in caught],
            )
    else:
        seeds = seeds_of(first, given.seeds)
        report = play_all(seeds, given.jobs, _progress(given.seeds))
        sys.stderr.write("\n")
        figures = report.figures() | {"first": first}
        if given.keep:
            ledger.append(ledger.SEEDS, ledger.seed_run(figures, at, seeds[0], seeds[-1]))
        table = coverage.table(report.hits)
        missing = coverage.never(report.hits)
        figures |= {"coverage": table, "never_taken": missing}
        held = not report.violating and not (missing and given.seeds >= SOMETIMES_FROM)
        _tell(report, table)
        if given.write:
            keep("simulation run", lines_of_run(figures))
            keep("simulation coverage", [(branch, f"{count:,}") for branch, count in table.items()])
    if given.json:
        sys.stdout.write(json.dumps(figures) + "\n")
    return 0 if held else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "--seeds", type=int, default=200, help="histories with faults; a third as many without come on top"
    )
    parser.add_argument("--first", type=int, help="the first seed; default: 1, with --keep the first that was not kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument(
        "--ablations", action="store_true", help="leave out every guard and count the seeds that it takes"
    )
    parser.add_argument("--replay", type=int, metavar="SEED", help="print the whole trace of one seed")
    parser.add_argument("--write", action="store_true", help="keep the tables in docs/simulation.md")
    parser.add_argument("--keep", action="store_true", help="count the seeds in results/seeds.json, for this commit")
    parser.add_argument("--json", action="store_true", help="last line: the figures as JSON")
    given = parser.parse_args()
    if given.keep and given.ablations:
        parser.error("--keep counts seeds with every guard; --ablations leaves guards out")
    return given


def _to_keep(first: int | None, seeds: int) -> tuple[str, int]:
    """The commit and the first seed of a run that is to be counted."""
    kept = ledger.read(ledger.SEEDS, ledger.SeedRun)
    begin = first if first is not None else ledger.next_seed(kept)
    at = ledger.committed()
    ledger.check_new(kept, at, begin, seeds_of(begin, seeds)[-1])
    return at, begin


def _replay(seed: int) -> int:
    result = History(seed).run(text=True)
    sys.stdout.write(f"{result.text}\n")
    sys.stdout.write(
        f"seed {seed}: {result.events} events, {result.faults} faults, {result.jobs} jobs, {result.seconds:.2f} s of virtual "
        f"time, trace {result.digest}\n"
    )
    for violation in result.violations:
        sys.stdout.write(f"VIOLATION {violation}\n")
    return 1 if result.violations else 0


def _progress(seeds: int) -> Callable[[Report], None]:
    told: set[int] = set()

    def show(report: Report) -> None:
        for result in report.violating:
            if result.seed not in told:
                told.add(result.seed)
                sys.stderr.write(f"\rseed {result.seed}: {result.violations[0]}\n")
        done = sum(not result.faultless for result in report.results)
        sys.stderr.write(f"\r{done:,} of {seeds:,} seeds, {len(report.violating)} violated ")
        sys.stderr.flush()

    return show


def _tell(report: Report, table: dict[str, int]) -> None:
    for branch, count in table.items():
        sys.stdout.write(f"{count:>9,}  {branch}\n")
    for result in report.violating[:20]:
        sys.stdout.write(f"seed {result.seed}: {result.violations[0]}   (--replay {result.seed})\n")


def _ablations(jobs: int) -> list[Caught]:
    found: list[Caught] = []
    for caught in catch_all(list(ABLATIONS), jobs):
        how = (
            f"{caught.seeds:>6,} seeds   {caught.seed:>6}   {caught.violation}"
            if caught.seeds
            else f"NOT CAUGHT   {caught.violation}"
        )
        sys.stdout.write(f"{caught.name:32} {how}\n")
        sys.stdout.flush()
        found.append(caught)
    order = list(ABLATIONS)
    return sorted(found, key=lambda caught: order.index(caught.name))


if __name__ == "__main__":
    sys.exit(main())
