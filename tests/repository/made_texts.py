"""Parts of the pages that are made from the code: diagrams of the transition tables, invariants, metrics.

``python -m tests.repository.made_texts`` writes them anew; ``test_docs`` compares what is kept with what would be written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path

from jobmaster.audit.invariants import INVARIANTS
from jobmaster.model.bucket import BucketState
from jobmaster.model.job import FINAL_STATES, JobState
from jobmaster.specification import bucket_transitions, job_transitions
from jobmaster.telemetry import METRICS, Telemetry

ROOT = Path(__file__).parents[2]
_PART = re.compile(r"(?P<begin><!-- made from the code: (?P<name>[a-z ]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
_WORDS_IN_A_ROW = 3
_OF_ITS_OWN = {"build_info"}
"""Metrics that ``Telemetry`` knows by itself."""


def diagram(
    transitions: Iterable[tuple[tuple[StrEnum | None, StrEnum], StrEnum]],
    bumps: Iterable[StrEnum],
    bump_word: str,
    final: Iterable[StrEnum],
) -> str:
    """A transition table as a mermaid state diagram: one arrow per pair of states, its events on it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (source, event), target in transitions:
        word = f"{event.value} ({bump_word})" if event in set(bumps) else event.value
        arrows.setdefault((source.value if source else "[*]", target.value), []).append(word)
    lines = ["```mermaid", "stateDiagram-v2"]
    for (start, end), words in arrows.items():
        rows = [", ".join(words[n : n + _WORDS_IN_A_ROW]) for n in range(0, len(words), _WORDS_IN_A_ROW)]
        lines.append(f"    {start} --> {end}: {'<br>'.join(rows)}")
    lines += [f"    {state.value} --> [*]" for state in sorted(final, key=lambda one: one.value)]
    return "\n".join([*lines, "```"])


def job_diagram() -> str:
    """The life of a job's row."""
    return diagram(
        job_transitions.TRANSITIONS.items(), job_transitions.TOKEN_BUMPS, "token + 1", FINAL_STATES | {JobState.MOVED}
    )


def bucket_diagram() -> str:
    """The life of a bucket."""
    table = bucket_transitions.TRANSITIONS.items()
    return diagram(table, bucket_transitions.EPOCH_BUMPS, "epoch + 1", [BucketState.READY_TO_DELETE])


def invariant_table() -> str:
    """The invariants, and where each is checked."""
    lines = ["| | invariant | checked | in the whole history |", "| --- | --- | --- | --- |"]
    for one in INVARIANTS:
        checked = f"`{one.statement}.sql`" if one.statement else "in code, master and stores together"
        history = ", ".join(f"`{check.name}`" for check in one.history)
        lines.append(f"| {one.number} | {one.sentence} | {checked} | {history} |")
    return "\n".join(lines)


def metric_table() -> str:
    """Every metric with a source, and the names of those without one."""
    idle = idle_metrics()
    lines = ["| metric | kind | label | what it says |", "| --- | --- | --- | --- |"]
    for key, metric in METRICS.items():
        if key not in idle:
            lines.append(f"| `{metric.served}` | {metric.kind.value} | {metric.label or ''} | {metric.help} |")
    if idle:
        names = ", ".join(f"`{METRICS[key].served}`" for key in METRICS if key in idle)
        lines += ["", f"Declared, and fed by nothing yet (they stay at 0): {names}."]
    return "\n".join(lines)


def idle_metrics() -> set[str]:
    """Keys of metrics that no other module uses."""
    folders = (ROOT / "jobmaster", ROOT / "agents")
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in folders
        for path in folder.rglob("*.py")
        if path.name != "telemetry.py"
    )
    prefixes = tuple(re.findall(r"read_from\(\s*f\"(\w+)\{", code))
    return {
        key
        for key in METRICS
        if not key.startswith(prefixes)
        and key not in _OF_ITS_OWN
        and not isinstance(vars(Telemetry).get(key), property)  # the sum of another metric
        and not re.search(rf"telemetry\.{key}\b|read_(?:from|series)\(\s*\"{key}\"", code)
    }


PARTS: dict[str, Callable[[], str]] = {
    "life of a job": job_diagram,
    "life of a bucket": bucket_diagram,
    "invariants": invariant_table,
    "metrics": metric_table,
}
PAGES = (ROOT / "docs" / "architecture.md", ROOT / "docs" / "operations.md")


def made(page: str) -> str:
    """The page with every made part as it has to be; ``KeyError`` when a part is unknown."""
    return _PART.sub(lambda part: f"{part['begin']}\n{PARTS[part['name']]()}\n\n{part['end']}", page)


def parts_of(page: str) -> list[str]:
    """Names of the made parts of a page."""
    return [part["name"] for part in _PART.finditer(page)]


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(made(path.read_text(encoding="utf-8")), encoding="utf-8")
