"""Tables that the commands keep in ``docs/simulation.md``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.support.report import commit, machine

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"
_PART = "<!-- made by python -m tests.simulation --write: {} -->"
_END = "<!-- end -->"


def keep(part: str, lines: Sequence[Sequence[str]]) -> None:
    """Make the rows of one table anew."""
    page = PAGE.read_text(encoding="utf-8")
    rows = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    table = re.compile(rf"({re.escape(_PART.format(part))}\n\n\|.*\n\|.*\n)(?:\|.*\n)*(\n{re.escape(_END)})")
    if not table.search(page):
        raise SystemExit(f"{PAGE.name} has no table {part!r}")
    PAGE.write_text(table.sub(lambda found: f"{found[1]}{rows}{found[2]}", page), encoding="utf-8")


def lines_of_run(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a run was and what it found, with commit and hardware."""
    on = machine()
    seeds = f"{figures['seeds']:,} with faults from seed {figures['first']:,}, {figures['faultless_seeds']:,} without"
    return [
        ("seeds", seeds),
        ("violations", f"{figures['violations']:,}"),
        ("events, jobs, faults of a history (medians)", _medians(figures)),
        ("fewest jobs and faults of one", f"{figures['least_jobs']}, {figures['least_faults']}"),
        ("seeds with faults a CPU second", f"{figures['seeds_per_cpu_second']:g}"),
        ("commit", f"`{commit()}`"),
        ("machine", f"{on['cores']} cores ({on['cpu']}), Python {on['python']}"),
    ]


def _medians(figures: Mapping[str, Any]) -> str:
    return ", ".join(f"{figures[f'{what}_per_seed']:,}" for what in ("events", "jobs", "faults"))
