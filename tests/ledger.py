"""Ledgers of evidence that adds up over commits: simulated seeds, and acknowledged jobs through faults.

One line for each run, with the commit that it played. ``python -m tests.simulation --keep`` and ``--save`` of ``tests.chaos``
and ``tests.lab`` write them; ``python -m tests.ledger`` and ``make release-check`` print the sums. Runs that found something
are kept, too: a sum of good runs alone says nothing.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from benchmarks.support.report import commit

TESTS = Path(__file__).parent
SEEDS = TESTS / "simulation" / "results" / "seeds.json"
ACKNOWLEDGED = TESTS / "chaos" / "acknowledged.json"
SEEDS_WANTED = 1_000_000
ACKNOWLEDGED_WANTED = 10_000_000
_R = TypeVar("_R", bound=msgspec.Struct)


class SeedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Seeds that were played at one commit.

    Attributes:
        day: ISO date.
        first: the first seed.
        last: the last one, inclusive.
        seeds: histories with faults among them.
        faultless_seeds: histories without.
        violations: histories in which a promise was broken.
        seeds_per_cpu_second: histories with faults.
    """

    commit: str
    day: str
    first: int
    last: int
    seeds: int
    faultless_seeds: int
    violations: int
    seeds_per_cpu_second: float


class FaultRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run of real servers under faults.

    Attributes:
        day: ISO date.
        program: the module that played it.
        form: mixed, kills or rolling; with the form of the stores where that is not a single server.
        seed: of its schedule of faults.
        lost: acknowledged jobs without an outcome that no fault excuses.
        excused: those that their level does not promise to keep through a fault that was played.
        violations: kinds of broken promises, and what was left undone.
        mended: the commit that mended all that the run found, and what it was; empty: nothing was found, or it is open.
    """

    commit: str
    day: str
    program: str
    form: str
    seed: int
    load_seconds: float
    acknowledged: int
    lost: int
    excused: int
    violations: int
    mended: str = ""


class NotKept(Exception):
    """A run that cannot be counted; the text says why, and what helps."""


def today() -> str:
    """The day in UTC, as ISO date."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def committed() -> str:
    """The commit of the tree.

    Raises:
        NotKept: the product has changes that are in no commit, or there is no repository.
    """
    found = commit()
    if found == "unknown" or found.endswith("+changes"):
        raise NotKept(f"a run is kept for a commit, and this tree is {found}: commit the product's changes first")
    return found


def read(path: Path, kind: type[_R]) -> list[_R]:
    """The lines of a ledger, oldest first; none when there is no file."""
    return msgspec.json.decode(path.read_bytes(), type=list[kind]) if path.exists() else []  # type: ignore[valid-type]


def append(path: Path, line: msgspec.Struct) -> None:
    """Add a line; one run is one line of the file, so that two branches merge."""
    lines = [*read(path, type(line)), line]
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(json.dumps(msgspec.to_builtins(each)) for each in lines)
    path.write_text(f"[\n{rows}\n]\n", encoding="utf-8")


def next_seed(runs: Iterable[SeedRun]) -> int:
    """The first seed that no kept run has played."""
    return max((run.last for run in runs), default=0) + 1


def check_new(runs: Iterable[SeedRun], at: str, first: int, last: int) -> None:
    """Refuse seeds that were counted at the same commit before.

    Raises:
        NotKept: some of them were.
    """
    for run in runs:
        if run.commit == at and first <= run.last and last >= run.first:
            raise NotKept(
                f"seeds {run.first:,} to {run.last:,} of commit {at} are kept already: leave --first out, "
                f"and the run goes on from seed {next_seed(runs):,}"
            )


def seed_run(figures: Mapping[str, Any], at: str, first: int, last: int) -> SeedRun:
    """The line of a report of the simulation."""
    names = ("seeds", "faultless_seeds", "violations", "seeds_per_cpu_second")
    return SeedRun(commit=at, day=today(), first=first, last=last, **{name: figures[name] for name in names})


def fault_run(program: str, report: Mapping[str, Any], day: str) -> FaultRun:
    """The line of a report of ``tests.chaos`` or ``tests.lab``."""
    form = report["form"] if report["stores"] == "single" else f"{report['form']}, {report['stores']}"
    return FaultRun(
        commit=report["versions"]["commit"],
        day=day,
        program=program,
        form=f"{form}, long faults" if report["long_faults"] else form,
        seed=report["seed"],
        load_seconds=report["load_seconds"],
        acknowledged=report["acknowledged"],
        lost=report["lost"],
        excused=sum(report["excused"].values()),
        violations=len(report["violations"]) + len(report["left_after_drain"]),
    )


def seeds_summary(runs: Sequence[SeedRun]) -> tuple[str, bool]:
    """The sum in words, and whether the goal is reached without a violation."""
    total = sum(run.seeds + run.faultless_seeds for run in runs)
    violations = sum(run.violations for run in runs)
    commits = len({run.commit for run in runs})
    text = f"{total:,} of {SEEDS_WANTED:,} seeds at {commits} commits, {violations:,} with a violation"
    return text, total >= SEEDS_WANTED and violations == 0


def faults_summary(runs: Sequence[FaultRun]) -> tuple[str, bool]:
    """The sum in words, and whether the goal is reached and no job was lost."""
    total, lost, excused = (
        (sum(counts) for counts in zip(*((run.acknowledged, run.lost, run.excused) for run in runs), strict=True))
        if runs
        else (0, 0, 0)
    )
    broken = sum(run.violations for run in runs if not run.mended)
    mended = sum(run.violations for run in runs if run.mended)
    commits = len({run.commit for run in runs})
    text = (
        f"{total:,} of {ACKNOWLEDGED_WANTED:,} acknowledged jobs at {commits} commits, {lost:,} lost, "
        f"{excused:,} excused by a fault that their level does not cover, {broken:,} broken promises, {mended:,} mended"
    )
    return text, total >= ACKNOWLEDGED_WANTED and lost == 0 and broken == 0


def main() -> int:
    """Both sums, and what each commit has; 1 while a goal is open."""
    held = True
    for title, lines, (summary, reached) in (
        ("simulated seeds", _by_commit(read(SEEDS, SeedRun)), seeds_summary(read(SEEDS, SeedRun))),
        ("jobs through faults", _by_commit(read(ACKNOWLEDGED, FaultRun)), faults_summary(read(ACKNOWLEDGED, FaultRun))),
    ):
        sys.stdout.write(f"{title}: {summary}\n{lines}")
        held = held and reached
    return 0 if held else 1


def _by_commit(runs: Sequence[SeedRun] | Sequence[FaultRun]) -> str:
    counts: dict[str, list[int]] = {}
    for run in runs:
        good = counts.setdefault(f"{run.commit} ({run.day})", [0, 0])
        count = run.seeds + run.faultless_seeds if isinstance(run, SeedRun) else run.acknowledged
        good[0] += count
        good[1] += run.violations
    return "".join(f"  {name}  {count:>11,}  violations {bad:,}\n" for name, (count, bad) in counts.items())


if __name__ == "__main__":
    sys.exit(main())
