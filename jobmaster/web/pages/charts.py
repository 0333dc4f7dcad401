"""Small charts as SVG, drawn on the server: they need no script and no style attribute, which the pages' policy forbids."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from markupsafe import Markup

from jobmaster.client.jobs.timeline import REFUSED_EVENT, TimelineLine
from jobmaster.model.flow.workflow import RunsOn, StepState, WorkflowView
from jobmaster.model.job import AttemptOutcome, JobState
from jobmaster.units import rounded_us

SPARK_WIDTH, SPARK_HEIGHT = 120.0, 28.0
_BAD = frozenset(
    {AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT, AttemptOutcome.LOST, JobState.FAILED, JobState.EXPIRED}
)


_SIGNS = {
    StepState.SUCCEEDED: "\u2713",
    StepState.FAILED: "\u2715",
    StepState.EXPIRED: "\u2715",
    StepState.STARTED: "\u25b6",
}


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


def columns(
    bars: Sequence[tuple[str | datetime | None, Sequence[tuple[str, int]]]],
    label: str,
    mark: int | None = None,
    sums: bool = True,
) -> Markup:
    """Columns of stacked parts.

    Args:
        bars: label of each column (a time is written in UTC, and by a script in the zone of the browser), and its parts
            from the bottom up: the class that colours a part, and its size.
        label: what a screen reader says of the chart.
        mark: number of the column before which a dashed line stands.
        sums: write the sum of each column above it.
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
        if total and sums:
            pieces.append(
                Markup('<text x="{x}" y="{y}" text-anchor="middle">{total}</text>').format(
                    x=middle, y=f"{y - 5:.1f}", total=f"{total:,}".replace(",", "\u202f")
                )
            )
        pieces.append(
            Markup('<text x="{x}" y="{y}" text-anchor="middle"{time}>{name}</text>').format(
                x=middle,
                y=height + 16,
                time=Markup(' data-minute="{}"').format(name.isoformat()) if isinstance(name, datetime) else "",
                name=f"{name:%H:%M}" if isinstance(name, datetime) else name or "",
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


def workflow_graph(workflow: WorkflowView, levels: Sequence[Sequence[int]]) -> Markup:
    """The steps of a workflow as boxes in columns, with a line from each step to those that run after it.

    Args:
        levels: numbers of the steps, column by column.
    """
    wide, tall, gap_x, gap_y = 168.0, 44.0, 46.0, 14.0
    steps = {step.number: step for step in workflow.steps}
    place = {
        number: (column * (wide + gap_x), row * (tall + gap_y))
        for column, numbers in enumerate(levels)
        for row, number in enumerate(numbers)
    }
    pieces = []
    for number, (x, y) in place.items():
        for parent in steps[number].parents:
            if parent in place:
                from_x, from_y = place[parent][0] + wide, place[parent][1] + tall / 2
                to_y, half = y + tall / 2, gap_x / 2
                path = f"M{from_x:g} {from_y:g}C{from_x + half:g} {from_y:g} {x - half:g} {to_y:g} {x:g} {to_y:g}"
                kind = "edge undo" if steps[number].runs_on is RunsOn.UNDO else "edge"
                pieces.append(Markup('<path class="{kind}" d="{path}"/>').format(kind=kind, path=path))
    for number, (x, y) in place.items():
        step = steps[number]
        pieces.append(
            Markup(
                '<g class="step {state}"><rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6"/>'
                '<text x="{tx}" y="{name_y}">{name}</text><text class="under" x="{tx}" y="{state_y}">{said}</text></g>'
            ).format(
                state=step.state.value, x=f"{x:g}", y=f"{y:g}", w=f"{wide:g}", h=f"{tall:g}", tx=f"{x + 10:g}",
                name_y=f"{y + 18:g}", state_y=f"{y + 35:g}", name=_fitted(step.name or step.handler, 22),
                said=f"{_SIGNS.get(step.state, '')} {step.state.value.lower()}".strip(),
            )
        )  # fmt: skip
    width = len(levels) * (wide + gap_x) - gap_x + 2
    height = max((len(numbers) for numbers in levels), default=1) * (tall + gap_y)
    label = f"{len(steps)} steps; the table below has the same"
    return Markup(
        '<svg class="graph" width="{w}" height="{h}" viewBox="-1 -1 {vw} {vh}" role="img" aria-label="{label}">{body}</svg>'
    ).format(
        w=f"{width:g}",
        h=f"{height:g}",
        vw=f"{width + 2:g}",
        vh=f"{height + 2:g}",
        label=label,
        body=Markup("").join(pieces),
    )


def _fitted(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}\u2026"
