"""The tables of the laboratory in ``docs/guarantees.md``.

``python -m tests.lab.page`` makes them anew from the catalogue and from the reports in ``tests/lab/results``, which
``--save`` keeps; a test compares.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.chaos.page import PAGE, compared, made
from tests.lab.faults.catalogue import KINDS

RESULTS = Path(__file__).parent / "results"
MODULE = "tests.lab.page"


def _reports() -> dict[str, dict[str, Any]]:
    return {path.stem.replace("-", " "): json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def fault_table() -> str:
    """Every kind of fault, and how often it was injected in the kept runs."""
    reports = _reports().values()
    lines = [
        "| kind | what happens | levels that do not promise to survive it | in these runs |",
        "| --- | --- | --- | --- |",
    ]
    for name, kind in KINDS.items():
        uncovered = ", ".join(f"`{level}`" for level in sorted(kind.uncovered)) or "none: all must"
        times = sum(report["faults"].get(name, 0) for report in reports)
        impossible = next((report["unavailable"][name] for report in reports if name in report["unavailable"]), "")
        lines.append(f"| `{name}` | {kind.description} | {uncovered} | {times or impossible or 0} |")
    return "\n".join(lines)


PARTS = {"faults": fault_table, "runs": lambda: compared(_reports()) if _reports() else "None is kept."}


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8"), MODULE, PARTS), encoding="utf-8")
