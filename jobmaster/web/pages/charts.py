"""Small charts as SVG, drawn on the server: they need no script and no style attribute, which the pages' policy forbids."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from jobmaster.client.jobs.timeline import REFUSED_EVENT, TimelineLine
from jobmaster.model.job import AttemptOutcome, JobState
from jobmaster.units import rounded_us

SPARK_WIDTH, SPARK_HEIGHT = 120.0, 28.0
_BAD = frozenset(
    {AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT, AttemptOutcome.LOST, JobState.FAILED, JobState.EXPIRED}
)


def sparkline(values: Sequence[float], label: str) -> Markup:
    """A line of the last values over its area, from zero to the greatest.

    Args:
        label: what a screen reader says of it.
    """
    if len(values) < 2:
        values = [*values, *values] or [0.0, 0.0]
    top = max(*values, 1e-9)
    step = SPARK_WIDTH / (len(values) - 1)
    points = " ".join(
        f"{number * step:.1f},{SPARK_HEIGHT - 2 - (SPARK_HEIGHT - 4) * value / top:.1f}"
        for number, value in enumerate(values)
    )
    return Markup(
        '<svg viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        '<polygon class="spark-area" points="0,{h} {points} {w},{h}"/>'
        '<polyline class="spark" points="{points}"/></svg>'
    ).format(w=f"{SPARK_WIDTH:g}", h=f"{SPARK_HEIGHT:g}", label=label, points=points)


def meter(share: float, label: str, warn: float = 0.7, bad: float = 0.9) -> Markup:
    """A bar that is filled to a share of 0 to 1; it warns above ``warn`` and ``bad``."""
    share = min(max(share, 0.0), 1.0)
    kind = "bad" if share >= bad else "warn" if share >= warn else ""
    return Markup(
        '<svg class="meter" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="{label}">'
        '<rect class="ground" width="100" height="8" rx="3"/>'
        '<rect class="fill {kind}" width="{width}" height="8" rx="3"/></svg>'
    ).format(label=label, kind=kind, width=f"{100 * share:.1f}")


def columns(bars: Sequence[tuple[str, Sequence[tuple[str, int]]]], label: str, mark: int | None = None) -> Markup:
    """Columns of stacked parts.

    Args:
        bars: label of each column, and its parts from the bottom up: the class that colours a part, and its size.
        label: what a screen reader says of the chart.
        mark: number of the column before which a dashed line stands.
    """
    width, height, foot = 760.0, 190.0, 24.0
    top = max([sum(size for _, size in parts) for _, parts in bars] or [0]) or 1
    step = width / max(len(bars), 1)
    pieces = [Markup('<line class="axis" x1="0" x2="{w}" y1="{y}" y2="{y}"/>').format(w=width, y=height)]
    for number, (name, parts) in enumerate(bars):
        y = height
        for kind, size in parts:
            tall = (height - 22) * size / top
            y -= tall
            pieces.append(
                Markup('<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="{h}"/>').format(
                    kind=kind,
                    x=f"{number * step + step * 0.14:.1f}",
                    y=f"{y:.1f}",
                    w=f"{step * 0.72:.1f}",
                    h=f"{tall:.1f}",
                )
            )
        middle = f"{number * step + step / 2:.1f}"
        total = sum(size for _, size in parts)
        if total:
            pieces.append(
                Markup('<text x="{x}" y="{y}" text-anchor="middle">{total}</text>').format(
                    x=middle, y=f"{y - 5:.1f}", total=f"{total:,}".replace(",", "\u202f")
                )
            )
        pieces.append(
            Markup('<text x="{x}" y="{y}" text-anchor="middle">{name}</text>').format(
                x=middle, y=height + 16, name=name
            )
        )
    if mark is not None:
        pieces.append(Markup('<line class="mark" x1="{x}" x2="{x}" y1="8" y2="{y}"/>').format(x=mark * step, y=height))
    return Markup('<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">{body}</svg>').format(
        w=f"{width:g}", h=f"{height + foot:g}", label=label, body=Markup("").join(pieces)
    )


def run_chart(lines: Sequence[TimelineLine], created_us: int, now_us: int) -> Markup:
    """The runs of a job on an axis of time: a bar for each run whose duration is known, a stroke for every other event."""
    width, row = 760.0, 20.0
    open_end = lines[-1].event == JobState.PROCESSING
    last_us = max(*(line.at_us for line in lines), now_us if open_end else 0, created_us + 1)
    first_us = min(created_us, *(line.at_us - (line.ran_us or 0) for line in lines))
    scale = (width - 4) / (last_us - first_us)
    height = 26 + row * 2
    pieces = [
        Markup('<line class="axis" x1="0" x2="{w}" y1="{y}" y2="{y}"/>').format(w=width, y=height - 20),
        Markup('<text x="0" y="{y}">submitted</text>').format(y=height - 5),
        Markup('<text x="{x}" y="{y}" text-anchor="end">{text}</text>').format(
            x=width, y=height - 5, text=f"{rounded_us(last_us - created_us)} later"
        ),
    ]
    for line in lines:
        x = (line.at_us - first_us) * scale
        began = x - (line.ran_us or 0) * scale
        kind = "bar bad" if line.event in _BAD else "bar soft" if line.event == REFUSED_EVENT else "bar"
        if line.event == JobState.PROCESSING:
            began, x = x, (now_us - first_us) * scale
        thick = line.ran_us or line.event == JobState.PROCESSING
        pieces.append(
            Markup(
                '<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="{h}" rx="{round}"><title>{title}</title></rect>'
            ).format(
                kind=kind,
                x=f"{began:.1f}",
                y=8 if thick else 4,
                w=f"{max(x - began, 3):.1f}" if thick else 2,
                h=row if thick else row + 8,
                round=3 if thick else 0,
                title=line.event if line.token is None else f"{line.event}, token {line.token}",
            )
        )
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-label="the runs on an axis of time">{body}</svg>'
    ).format(w=f"{width:g}", h=f"{height:g}", body=Markup("").join(pieces))
