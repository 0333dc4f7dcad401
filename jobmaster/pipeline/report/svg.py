"""Plots as SVG elements: lines and stacked bars over labelled axes; every mark has its value as a tooltip.

Colours are the CSS variables ``--c0`` ... and the classes ``grid`` and ``goal``; the document around the plot defines them
(``html.page`` for the report, ``benchmarks.plots`` for files).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 880, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 12, 34
_TICKS = 5
_LABEL_WIDTH = 80
"""Pixels of the widest label of the x axis."""
COLOURS = 8
"""How many variables ``--c0`` ... the document defines."""

Format = Callable[[float], str]


class Plot(NamedTuple):
    """SVG elements of ``WIDTH`` x ``HEIGHT`` pixels."""

    elements: Sequence[str] = ()
    """Empty: there is nothing to show."""
    names: Sequence[str] = ()
    """For the legend, in the order of the colours."""


class Axis(NamedTuple):
    """The scale of one axis."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        """Share of the axis, 0 to 1."""
        low, high, here = (
            (math.log(max(one, 1e-9)) for one in (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        return (here - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[float]:
        """Round values along the axis."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            step = max(1, (last - first) // _TICKS)
            return [10.0**power for power in range(first, last + 1, step) if self.low <= 10.0**power <= self.high]
        rough = (self.high - self.low) / _TICKS or 1.0
        unit = 10.0 ** math.floor(math.log10(rough))
        width = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
        start = math.ceil(self.low / width) * width
        return [start + width * at for at in range(int((self.high - start) / width + 1e-9) + 1)]


def lines(
    series: Mapping[str, Sequence[tuple[float, float | None]]],
    *,
    format_x: Format,
    format_y: Format,
    log: bool = False,
    log_x: bool = False,
    goals: Mapping[str, float] | None = None,
    marks: Mapping[str, float] | None = None,
    labels_x: Sequence[float] | None = None,
) -> Plot:
    """One line per name.

    Args:
        series: points ``(x, y)`` in order of x; a ``None`` is a gap.
        log, log_x: logarithmic scale of y, of x.
        goals: dashed horizontal lines, by name.
        marks: dashed vertical lines, by name.
        labels_x: values of x to label, as far as the labels do not overlap; ``None``: evenly spaced.
    """
    points = [(x, y) for line in series.values() for x, y in line if y is not None]
    if not points:
        return Plot()
    xs = [x for x, _ in points] + list((marks or {}).values())
    ys = [y for _, y in points] + list((goals or {}).values())
    low = max(min(ys) / 1.3, 1e-6) if log else 0.0
    x_axis, y_axis = Axis(min(xs), max(xs), log_x), Axis(low, max(ys) * 1.1 or 1.0, log)
    elements = [_grid(x_axis, y_axis, format_x, format_y, labels_x)]
    for at, (name, line) in enumerate(series.items()):
        colour = f"var(--c{at % COLOURS})"
        for piece in _pieces(line):
            where = " ".join(f"{_x(x_axis, x):.1f},{_y(y_axis, y):.1f}" for x, y in piece)
            elements.append(f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="2"/>')
            radius = 3.2 if len(piece) < 40 else 1.6
            elements += [
                f'<circle cx="{_x(x_axis, x):.1f}" cy="{_y(y_axis, y):.1f}" r="{radius}" fill="{colour}">'
                f"<title>{escape(name)}: {escape(format_y(y))} at {escape(format_x(x))}</title></circle>"
                for x, y in piece
            ]
    for name, level in (goals or {}).items():
        y = _y(y_axis, level)
        elements.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="goal"/>'
            f'<text x="{WIDTH - _RIGHT}" y="{y - 4:.1f}" text-anchor="end" class="goal">{escape(name)}</text>'
        )
    for name, value in (marks or {}).items():
        x = _x(x_axis, value)
        elements.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" class="goal"/>'
            f'<text x="{x - 4:.1f}" y="{_TOP + 10}" text-anchor="end" class="goal">{escape(name)}</text>'
        )
    return Plot(elements, list(series))


def stacked(
    names: Sequence[str],
    bars: Sequence[tuple[float, Sequence[float]]],
    *,
    width: float,
    format_x: Format,
    format_y: Format,
) -> Plot:
    """Bars of several parts.

    Args:
        bars: ``(x, parts)``, one part for each name.
        width: of a bar, in units of x.
    """
    if not bars or not any(sum(parts) for _, parts in bars):
        return Plot()
    x_axis = Axis(min(x for x, _ in bars), max(x for x, _ in bars) + width)
    y_axis = Axis(0.0, max(sum(parts) for _, parts in bars) * 1.08)
    elements = [_grid(x_axis, y_axis, format_x, format_y)]
    for x, parts in bars:
        left, right = _x(x_axis, x), _x(x_axis, x + width)
        bottom = 0.0
        for at, part in enumerate(parts):
            if part <= 0:
                continue
            top = bottom + part
            elements.append(
                f'<rect x="{left:.1f}" y="{_y(y_axis, top):.1f}" width="{max(right - left - 1, 0.6):.1f}" '
                f'height="{max(_y(y_axis, bottom) - _y(y_axis, top), 0.4):.1f}" fill="var(--c{at % COLOURS})">'
                f"<title>{escape(names[at])}: {escape(format_y(part))} at {escape(format_x(x))}</title></rect>"
            )
            bottom = top
    return Plot(elements, names)


def _pieces(line: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """The parts of a line between its gaps."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in line:
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    return [piece for piece in pieces if piece]


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.at(value) * (WIDTH - _LEFT - _RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - _BOTTOM - axis.at(value) * (HEIGHT - _TOP - _BOTTOM)


def _grid(
    x_axis: Axis, y_axis: Axis, format_x: Format, format_y: Format, labels_x: Sequence[float] | None = None
) -> str:
    parts = []
    for value in y_axis.ticks():
        y = _y(y_axis, value)
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(format_y(value))}</text>'
        )
    if labels_x is None:
        count = _TICKS if x_axis.high > x_axis.low else 0
        labels_x = [x_axis.low + (x_axis.high - x_axis.low) * at / _TICKS for at in range(count + 1)]
    else:
        labels_x = _apart(x_axis, sorted({*labels_x}))
    for at, value in enumerate(labels_x):
        anchor = "start" if at == 0 else "end" if at == len(labels_x) - 1 else "middle"
        parts.append(
            f'<text x="{_x(x_axis, value):.1f}" y="{HEIGHT - 10}" text-anchor="{anchor}">{escape(format_x(value))}</text>'
        )
    return "".join(parts)


def _apart(axis: Axis, values: Sequence[float]) -> list[float]:
    """Those whose labels do not overlap; the last value is always among them."""
    kept: list[float] = []
    for value in reversed(values):
        if not kept or _x(axis, kept[0]) - _x(axis, value) >= _LABEL_WIDTH:
            kept.insert(0, value)
    return kept
