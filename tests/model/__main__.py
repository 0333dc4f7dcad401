"""``python -m tests.model``: every fault set and every ablation, as a table. ``--write`` keeps it in ``docs/protocol.md``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.model.ablations import ABLATIONS
from tests.model.bucket_protocol import BucketProtocol
from tests.model.explorer import explore
from tests.model.fault_sets import FAULT_SETS

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
PARTS = ("fault sets", "ablations")
_PART = "<!-- made by python -m tests.model: {} -->"
_END = "<!-- end -->"

Line = tuple[str, ...]


def explored(names: Sequence[str]) -> Iterator[Line]:
    """Fault set, states, seconds, result."""
    for name in names:
        report = explore(BucketProtocol(FAULT_SETS[name].scope))
        yield name, f"{report.states:,}", f"{report.seconds:.1f}", report.result()
        if report.violation is not None:
            sys.stdout.write(f"{report.violation}\n")


def ablated(names: Sequence[str]) -> Iterator[Line]:
    """Ablation, fault set, states to detection, what is broken."""
    for name in names:
        _, rules, fault_set, _, _ = ABLATIONS[name]
        report = explore(BucketProtocol(FAULT_SETS[fault_set].scope, rules))
        yield name, fault_set, f"{report.states:,}", report.result()


def kept(page: str, part: str, lines: Sequence[Line]) -> str:
    """The page with the rows of one of its tables made anew."""
    rows = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    begin = re.escape(_PART.format(part))
    table = re.compile(rf"({begin}\n\n\|.*\n\|.*\n)(?:\|.*\n)*(\n{re.escape(_END)})")
    if not table.search(page):
        raise SystemExit(f"{PAGE.name} has no table {part!r}")
    return table.sub(lambda found: f"{found[1]}{rows}{found[2]}", page)


def main() -> int:
    """Print the tables; 1 when a fault set is violated or an ablation is not detected."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--core", action="store_true", help="only the fault sets of the fast tests")
    parser.add_argument("--write", action="store_true", help="keep the tables in docs/protocol.md")
    given = parser.parse_args()
    chosen = [name for name, each in FAULT_SETS.items() if each.core or not given.core]
    sets = list(_shown("fault set", explored(chosen)))
    without = list(_shown("ablation", ablated(list(ABLATIONS))))
    total = sum(int(line[1].replace(",", "")) for line in sets)
    seconds = sum(float(line[2]) for line in sets)
    sys.stdout.write(f"{len(sets)} fault sets, {total:,} states, {seconds:.0f} s; {len(without)} ablations\n")
    if given.write:
        # How long it took is this machine's affair, and would change the page at every run.
        page = kept(PAGE.read_text(encoding="utf-8"), PARTS[0], [_row_of(line) for line in sets])
        PAGE.write_text(kept(page, PARTS[1], without), encoding="utf-8")
    held = all(line[-1] == "holds" for line in sets)
    return 0 if held and all(line[-1] == ABLATIONS[line[0]].kind for line in without) else 1


def _row_of(line: Line) -> Line:
    name, states, _, result = line
    return name, FAULT_SETS[name].about, states, result


def _shown(title: str, lines: Iterator[Line]) -> Iterator[Line]:
    sys.stdout.write(f"\n{title}\n")
    for line in lines:
        sys.stdout.write("  ".join([f"{line[0]:70}", *(f"{word:>10}" for word in line[1:])]) + "\n")
        sys.stdout.flush()
        yield line


if __name__ == "__main__":
    sys.exit(main())
