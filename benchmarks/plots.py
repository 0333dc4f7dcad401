"""``python -m benchmarks.plots``: the kept reports as SVG and as the tables of ``docs/performance.md``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import click

from benchmarks.support import performance_tables
from benchmarks.support.report import REPOSITORY, RESULTS, progress
from jobmaster.pipeline.report import svg
from jobmaster.pipeline.report.svg import HEIGHT, WIDTH

PLOTS = REPOSITORY / "docs" / "performance"
PAGE = REPOSITORY / "docs" / "performance.md"
SIZING = REPOSITORY / "docs" / "sizing.md"
_LEFT, _RIGHT, _BAR, _GAP, _TOP = 190, 110, 20, 8, 48
_OURS, _THEIRS, _BARE = "#1f6f8b", "#c9a26b", "#9aa5ab"
_COLOURS = (_OURS, "#b8553a", "#5a8f4e", "#7a5aa6")
_STYLE = (
    f"svg {{ {'; '.join(f'--c{at}: {colour}' for at, colour in enumerate(_COLOURS))}; font: 12px sans-serif }}"
    " .grid { stroke: #e3e1dc } line.goal { stroke: #b8553a; stroke-dasharray: 5 4 } text.goal { fill: #b8553a }"
)
Bar = tuple[str, float, str]


def _document(title: str, note: str, height: int, elements: Sequence[str]) -> str:
    """A file of SVG; the elements lie below its two head lines."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {_TOP + height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{WIDTH}" height="{_TOP + height}" fill="#ffffff"/>',
        f'<text x="12" y="20" style="font-size:15px;font-weight:bold">{escape(title)}</text>',
        f'<text x="12" y="37" fill="#555">{escape(note)}</text>',
        f'<g transform="translate(0 {_TOP})">',
        *elements,
        "</g>",
        "</svg>",
        "",
    ])  # fmt: skip


def bars(title: str, note: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars: label, value, colour."""
    longest = max(value for _, value, _ in rows)
    elements = []
    for number, (label, value, colour) in enumerate(rows):
        y = number * (_BAR + _GAP)
        width = (WIDTH - _LEFT - _RIGHT) * value / longest
        elements += [
            f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{max(width, 1):.1f}" height="{_BAR}" fill="{colour}"/>',
            f'<text x="{_LEFT + max(width, 1) + 6:.1f}" y="{y + 15}">{value:,.0f}</text>',
        ]
    return _document(title, note, len(rows) * (_BAR + _GAP) + 12, elements)


def lines(
    title: str,
    note: str,
    series: dict[str, list[tuple[float, float]]],
    *,
    logarithmic: bool,
    mark: tuple[float, str] | None = None,
) -> str:
    """One line per series over a common axis of x; y from zero.

    Args:
        mark: a place on the axis of x, and its name.
    """
    marks = {mark[1]: mark[0]} if mark else {}
    xs = [x for points in series.values() for x, _ in points] + list(marks.values())
    x = svg.Scale(lambda value: f"{value:,.0f}", log=logarithmic, labels=xs)
    plot = svg.lines(series, x, svg.Scale(lambda value: f"{value:.3g}"), marks=marks)
    legend = [
        f'<text x="{_LEFT + 150 * at}" y="{HEIGHT + 12}" fill="{colour}">{escape(name)}</text>'
        for at, (name, colour) in enumerate(zip(plot.names, _COLOURS, strict=False))
    ]
    return _document(title, note, HEIGHT + 24, [*plot.elements, *legend])


def _note(report: dict[str, Any]) -> str:
    machine = report["machine"]
    return f"{machine['cores']} cores, Python {machine['python']}, commit {report['commit']}, {report['taken_at'][:10]}"


def of_drain(report: dict[str, Any]) -> str:
    """Ours beside the floor and the raw COPY."""
    rows: list[Bar] = [
        ("JobMaster", report["jobs_per_second"], _OURS),
        ("floor", report["floor_jobs_per_second"], _BARE),
        ("COPY alone", report["raw_copy_rows_per_second"], _BARE),
    ]
    return bars("End to end, no-op jobs, outcomes committed in the master: jobs per second", _note(report), rows)


def of_peers(report: dict[str, Any]) -> str:
    """Everybody's drain with one and two processes, on a scale of its own for the slow ones' sake: the number counts."""
    rows: list[Bar] = []
    for count in report["processes"]:
        ours = next(iter(report["rates"].values()))[str(count)]["ours"]
        rows.append((f"JobMaster, {count} proc.", ours, _OURS))
        theirs = sorted(report["rates"].items(), key=lambda item: -item[1][str(count)]["theirs"])
        rows += [(f"{name}, {count} proc.", found[str(count)]["theirs"], _THEIRS) for name, found in theirs]
    return bars("Drain of no-op jobs, same servers, in turns: jobs per second", _note(report), rows)


def of_submit(report: dict[str, Any]) -> str:
    """Callers at each durability, and in bulk."""
    rows: list[Bar] = []
    for (durability, single), colour in zip(report["single"].items(), _COLOURS, strict=False):
        rows += [(f"{durability}, {count} callers", rate, colour) for count, rate in single.items()]
        rows.append((f"{durability}, bulk", report["bulk_jobs_per_second"][durability], colour))
    return bars("Submit from one process: jobs per second", _note(report), rows)


def of_growth(report: dict[str, Any], axis: str, title: str) -> str:
    """Cost over one axis."""
    points = [(float(point["x"]), float(point["cost_us_per_job"])) for point in report[axis]]
    return lines(f"{title}: CPU microseconds per job", _note(report), {"cost": points}, logarithmic=True)


def of_fleet(report: dict[str, Any]) -> str | None:
    """Start latency of the thousand agents against what is offered, up to where it breaks."""
    ramps = [line for line in report["scenarios"] if line["scenario"] == "ramp" and len(line["points"]) > 2]
    if not ramps:
        return None
    line = max(ramps, key=lambda one: (one["agents"], -one["handler_ms"], -one["long_share"]))
    points = [point for point in line["points"] if not point["broken"]]
    series = {
        name: [(float(point["offered"]), float(point[key])) for point in points]
        for name, key in (("p50", "start_p50_ms"), ("p99", "start_p99_ms"))
    }
    mark = (
        (float(line["breaks_at"]), f"breaks: {line['breaks_first'].replace('_', ' ')}") if line["breaks_at"] else None
    )
    size = f"{line['agents']:,} agents, {line['stores']} stores, {line['master_cores']} cores for the master"
    title = "Simulated: milliseconds from submit to start, by jobs a second offered"
    return lines(title, f"{size}; commit {report['commit']}", series, logarithmic=True, mark=mark)


_GROWTH = {
    "held_rows": "Onboarding beside more and more HELD rows, the master's share",
    "partitions": "Onboarding with more partitions attached, the master's share",
    "pinned_snapshot": "Onboarding batch after batch under a pinned snapshot, the master's share",
    "buckets": "Drain with more buckets, agents and servers together",
    "agents": "Drain with more agent processes, agents and servers together",
}


def draw(results: Path, target: Path) -> list[Path]:
    """Every plot whose report is there."""
    made = {}
    for name, plot in (("drain", of_drain), ("peers", of_peers), ("submit", of_submit)):
        if (path := results / f"{name}.json").is_file():
            made[name] = plot(json.loads(path.read_text(encoding="utf-8")))
    if (path := results / "growth.json").is_file():
        report = json.loads(path.read_text(encoding="utf-8"))
        made |= {f"growth_{axis}": of_growth(report, axis, title) for axis, title in _GROWTH.items() if axis in report}
    if (path := results / "fleet.json").is_file():
        drawn = of_fleet(json.loads(path.read_text(encoding="utf-8")))
        made |= {"fleet": drawn} if drawn is not None else {}
    target.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (target / f"{name}.svg").write_text(text, encoding="utf-8")
    return [target / f"{name}.svg" for name in made]


@click.command()
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
@click.option("--target", type=click.Path(path_type=Path), default=PLOTS, show_default=True)
def main(results: Path, target: Path) -> None:
    """Draw the kept reports, and write their figures into docs/performance.md and docs/sizing.md."""
    for path in draw(results, target):
        progress(f"drew {path}")
    figures = {PAGE: performance_tables.text(results, target), SIZING: performance_tables.sizing_text(results)}
    for page, text in figures.items():
        if page.is_file():
            page.write_text(performance_tables.rewritten(page.read_text(encoding="utf-8"), text), encoding="utf-8")
            progress(f"wrote the figures of {page}")


if __name__ == "__main__":
    main()
