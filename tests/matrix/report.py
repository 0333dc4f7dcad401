"""The results of the cells: one line each, kept in ``results/matrix.json`` and shown in ``docs/releasing.md``.

``python -m tests.matrix.report`` makes the table of the page anew; a test compares.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from tests.chaos.page import made

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).parent / "results" / "matrix.json"
PAGE = ROOT / "docs" / "releasing.md"
PRODUCT = ("jobmaster", "agents", "master_schema", "pyproject.toml")
"""What a cell installs and runs; a commit of other files leaves results valid."""


class Outcome(StrEnum):
    """What became of a cell."""

    OK = "ok"
    FAILED = "FAILED"
    NOT_RUN = "not run"


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line.

    Attributes:
        cell: its name.
        reason: why it failed or was not run.
        ran: what was run, by part: versions as the programs print them, and where they are from.
        seconds: with the making of its environment, where no earlier cell had made it.
        commit: the last commit that changed what was run.
        day: ISO date.
    """

    cell: str
    outcome: Outcome
    reason: str = ""
    ran: dict[str, str] = {}
    seconds: float = 0.0
    commit: str = ""
    day: str = ""


def product_commit() -> str:
    """The last commit that changed the product; with ``+changes`` where the tree has others, ``unknown`` without git."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments, "--", *PRODUCT]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("log", "-1", "--format=%h", "--abbrev=12") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def line_of(result: CellResult) -> str:
    """The result as text."""
    what = ", ".join(f"{value}" for value in result.ran.values())
    shown = f"{result.outcome}: {result.reason}" if result.reason else f"{result.outcome}  {what}"
    return f"{result.cell:<28}{result.seconds:>6.1f} s  {shown}"


def read() -> list[CellResult]:
    """The kept results."""
    return msgspec.json.decode(KEPT.read_bytes(), type=list[CellResult]) if KEPT.exists() else []


def keep(results: Iterable[CellResult], order: Sequence[str]) -> None:
    """Put results in the place of older ones of the same cells; cells that are gone are dropped."""
    lines = {result.cell: result for result in (*read(), *results)}
    KEPT.parent.mkdir(exist_ok=True)
    rows = [msgspec.json.encode(lines[cell]).decode() for cell in order if cell in lines]
    KEPT.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


def summary(results: Sequence[CellResult], names: Sequence[str], commit: str) -> tuple[str, bool]:
    """The kept report in words, and whether every cell that can be run here passed, all at one commit.

    Args:
        names: the cells that there are.
        commit: the last commit that changed the product of today.
    """
    found = {result.cell: result for result in results}
    counts = Counter(result.outcome for result in found.values())
    missing = [name for name in names if name not in found]
    other = sorted({f"{result.commit} ({result.day})" for result in found.values() if result.commit != commit})
    parts = [f"{counts[Outcome.OK]} ok"]
    for outcome in (Outcome.FAILED, Outcome.NOT_RUN):
        if those := [result.cell for result in found.values() if result.outcome is outcome]:
            parts.append(f"{outcome}: {', '.join(those)}")
    if missing:
        parts.append(f"never run: {', '.join(missing)}")
    if other:
        parts.append(f"of another product: {', '.join(other)}")
    elif found:
        parts.append(f"at {commit}, {max(result.day for result in found.values())}")
    return "; ".join(parts), not missing and not other and not counts[Outcome.FAILED] and bool(found)


def table(results: Sequence[CellResult]) -> str:
    """The kept results as Markdown."""
    if not results:
        return "None is kept."
    lines = ["| cell | result | what was run | commit, day |", "| --- | --- | --- | --- |"]
    for result in results:
        what = ", ".join(f"{part}: {value}" for part, value in result.ran.items())
        shown = f"{result.outcome}: {result.reason}" if result.reason else str(result.outcome)
        lines.append(f"| {result.cell} | {shown.replace('|', '/')} | {what} | `{result.commit}`, {result.day} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with its table made anew."""
    return made(text, "tests.matrix.report", {"matrix": lambda: table(read())})


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
