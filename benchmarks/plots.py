"""``python -m benchmarks.plots``: the kept reports as SVG and as the tables of ``docs/performance.md``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import click

from benchmarks import figures
from benchmarks.report import REPOSITORY, RESULTS, tell

PLOTS = REPOSITORY / "docs" / "performance"
PAGE = REPOSITORY / "docs" / "performance.md"
_WIDTH, _LEFT, _RIGHT, _BAR, _GAP, _TOP = 760, 190, 110, 20, 8, 48
_LABEL = 62
_OURS, _THEIRS, _BARE = "#1f6f8b", "#c9a26b", "#9aa5ab"
_COLOURS = (_OURS, "#b8553a", "#5a8f4e", "#7a5aa6")
Bar = tuple[str, float, str]


def _svg(height: int, title: str, note: str, body: Sequence[str]) -> str:
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="12" y="37" fill="#555">{escape(note)}</text>',
        *body,
        "</svg>",
        "",
    ])  # fmt: skip


def bars(title: str, note: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars: label, value, colour."""
    longest = max(value for _, value, _ in rows)
    body = []
    for number, (label, value, colour) in enumerate(rows):
        y = _TOP + number * (_BAR + _GAP)
        width = (_WIDTH - _LEFT - _RIGHT) * value / longest
        body += [
            f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{max(width, 1):.1f}" height="{_BAR}" fill="{colour}"/>',
            f'<text x="{_LEFT + max(width, 1) + 6:.1f}" y="{y + 15}">{value:,.0f}</text>',
        ]
    return _svg(_TOP + len(rows) * (_BAR + _GAP) + 12, title, note, body)


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
        mark: a place on the axis of x, and what it is called there.
    """
    height, bottom, left, right = 320, 270, 60, 150
    xs = [x for points in series.values() for x, _ in points] + ([mark[0]] if mark else [])
    top = max(y for points in series.values() for _, y in points) * 1.15
    scale = math.log10 if logarithmic else float
    first, last = scale(min(xs)), scale(max(xs))

    def at(x: float, y: float) -> tuple[float, float]:
        share = (scale(x) - first) / ((last - first) or 1)
        return left + share * (_WIDTH - left - right), bottom - y / top * (bottom - 60)

    body = [f'<line x1="{left}" y1="{bottom}" x2="{_WIDTH - right}" y2="{bottom}" stroke="#333"/>']
    for x in _apart(sorted(set(xs)), lambda x: at(x, 0)[0]):
        body.append(f'<text x="{at(x, 0)[0]:.1f}" y="{bottom + 18}" text-anchor="middle">{x:,.0f}</text>')
    if mark:
        place = f"{at(mark[0], 0)[0]:.1f}"
        body.append(f'<line x1="{place}" y1="{bottom}" x2="{place}" y2="58" stroke="#b8553a" stroke-dasharray="5 4"/>')
        body.append(f'<text x="{place}" y="54" text-anchor="middle" fill="#b8553a">{escape(mark[1])}</text>')
    for part in range(5):
        y = top * part / 4
        body.append(f'<text x="{left - 8}" y="{at(min(xs), y)[1] + 4:.1f}" text-anchor="end">{y:.3g}</text>')
    for (name, points), colour in zip(series.items(), _COLOURS, strict=False):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        end_x, end_y = at(*points[-1])
        body.append(f'<text x="{end_x + 8:.1f}" y="{end_y + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return _svg(height, title, note, body)


def _apart(xs: Sequence[float], place: Callable[[float], float]) -> list[float]:
    """Those whose labels do not lie over each other; the last is always among them."""
    kept: list[float] = []
    for x in reversed(xs):
        if not kept or place(kept[-1]) - place(x) >= _LABEL:
            kept.append(x)
    return kept


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
    """Draw the kept reports, and write their figures into docs/performance.md."""
    for path in draw(results, target):
        tell(f"drew {path}")
    if PAGE.is_file():
        PAGE.write_text(
            figures.rewritten(PAGE.read_text(encoding="utf-8"), figures.text(results, target)), encoding="utf-8"
        )
        tell(f"wrote the figures of {PAGE}")


if __name__ == "__main__":
    main()
