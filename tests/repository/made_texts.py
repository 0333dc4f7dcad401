"""Parts of the pages that are made from the code: diagrams of the transition tables, invariants, metrics, ratios to others.

``python -m tests.repository.made_texts`` writes them anew; ``test_docs`` compares what is kept with what would be written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from jobmaster.audit.invariants import INVARIANTS
from jobmaster.model.archive import ArchiveState
from jobmaster.model.bucket import BucketState
from jobmaster.model.job import FINAL_STATES, JobState
from jobmaster.specification import archive_transitions, bucket_transitions, job_transitions
from jobmaster.telemetry import METRICS, Telemetry
from tests.repository.documentation.comparison import measured_table
from tests.repository.documentation.state_charts import Chart, svg

ROOT = Path(__file__).parents[2]
_PART = re.compile(r"(?P<begin><!-- made from the code: (?P<name>[a-z ]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
_OF_ITS_OWN = {"build_info"}
"""Metrics that ``Telemetry`` knows by itself."""


CHARTS = {
    "life-of-a-job": Chart(
        "The life of a job's row",
        tuple(job_transitions.TRANSITIONS.items()),
        FINAL_STATES | {JobState.MOVED},
        "no row",
        job_transitions.TOKEN_BUMPS,
        "token + 1",
    ),
    "life-of-a-bucket": Chart(
        "The life of a bucket",
        tuple(bucket_transitions.TRANSITIONS.items()),
        frozenset({BucketState.READY_TO_DELETE}),
        "no row",
        bucket_transitions.EPOCH_BUMPS,
        "epoch + 1",
    ),
    "life-of-a-range": Chart(
        "The life of a range that leaves the master",
        tuple(archive_transitions.TRANSITIONS.items()),
        frozenset({ArchiveState.DROPPED}),
        "attached",
    ),
}
"""Files of ``docs/images`` -> the transition table that each shows."""


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
    "invariants": invariant_table,
    "metrics": metric_table,
    "measured beside others": measured_table,
}
PAGES = tuple(ROOT / "docs" / name for name in ("architecture.md", "comparison.md", "operations.md"))


def made(page: str) -> str:
    """The page with every made part as it has to be; ``KeyError`` when a part is unknown."""
    return _PART.sub(lambda part: f"{part['begin']}\n{PARTS[part['name']]()}\n\n{part['end']}", page)


def parts_of(page: str) -> list[str]:
    """Names of the made parts of a page."""
    return [part["name"] for part in _PART.finditer(page)]


def charts() -> dict[Path, str]:
    """The files of the charts, as they have to be."""
    return {ROOT / "docs" / "images" / f"{name}.svg": svg(chart) for name, chart in CHARTS.items()}


if __name__ == "__main__":
    for path, text in charts().items():
        path.write_text(text, encoding="utf-8")
    for path in PAGES:
        path.write_text(made(path.read_text(encoding="utf-8")), encoding="utf-8")
