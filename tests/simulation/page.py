"""Tables that the commands keep in ``docs/simulation.md``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

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
