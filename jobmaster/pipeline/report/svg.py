"""Plots as SVG elements: lines, stacked bars and a grid of cells, over labelled axes; every mark has its value as a tooltip.

Colours are the CSS variables ``--c0`` ... and the classes ``grid`` and ``goal``; the document around the plot defines them
(``html.page`` for the report, ``benchmarks.plots`` for files).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 12, 34
_TICKS = 5
_PIXELS_A_DOT = 20
"""Width that a point needs for a large dot."""
_LABEL_WIDTH = 80
"""Pixels of the widest label of the x axis."""
COLOURS = 8
"""How many variables ``--c0`` ... the document defines."""

Format = Callable[[float], str]


class Canvas(NamedTuple):
    """Size of a plot in its own pixels."""

    width: int
    height: int

    @property
    def labels(self) -> int:
        """How many labels the x axis has room for."""
        return max(2, (self.width - _LEFT - _RIGHT) // (_LABEL_WIDTH + 20))


WIDTH, HEIGHT = 880, 260
WIDE, NARROW = Canvas(WIDTH, HEIGHT), Canvas(380, 250)
"""For a window, and for a phone, where the texts of a wide plot could not be read."""


class Plot(NamedTuple):
    """SVG elements on a canvas."""

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

    def ticks(self, smallest: float = 0.0) -> list[float]:
        """Round values along the axis.

        Args:
            smallest: distance of two values at least; 1 for an axis of whole numbers.
        """
        if self.log:
            return _log_ticks(self.low, self.high)
        rough = max((self.high - self.low) / _TICKS, smallest) or 1.0
        unit = 10.0 ** math.floor(math.log10(rough))
        width = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * (1 - 1e-9))
        start = math.ceil(self.low / width) * width
        return [start + width * at for at in range(int((self.high - start) / width + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, and between them 2 and 5, or 1 to 9, or steps within one of these, so that there are some labels."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = -(-(last - first) // (_TICKS + 2)) or 1
    for factors in ((1,), (1, 2, 5), range(1, 10)):
        step = step if len(factors) == 1 else 1
        found = [factor * 10.0**power for power in range(first, last + 1, step) for factor in factors]
        found = [value for value in found if low <= value <= high]
        if len(found) > 2:
            return found
    return Axis(low, high).ticks()


DURATIONS_US = tuple(
    float(value)
    for unit, counts in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (1_000, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (1_000_000, (1, 2, 5, 10, 20, 30)),
        (60_000_000, (1, 2, 5, 10, 20, 30)),
        (3_600_000_000, (1, 2, 4, 8, 12)),
        (86_400_000_000, (1, 2, 4, 7, 14, 30, 60, 120, 365)),
    )
    for value in (count * unit for count in counts)
)
"""Durations that people read at a glance, microseconds: labels of a logarithmic axis."""


def duration_ticks(low: float, high: float) -> list[float]:
    """Some of ``DURATIONS_US`` in a range, evenly spaced; with fewer than two of them, round values between."""
    found = [value for value in DURATIONS_US if low <= value <= high]
    if len(found) < 2:
        return _log_ticks(low, high)
    return found[:: -(-len(found) // (_TICKS + 2))]


def whole_ticks(low: float, high: float) -> list[float]:
    """Round whole numbers in a range, for an axis that counts."""
    return Axis(low, high).ticks(smallest=1.0)


class Labels(NamedTuple):
    """Labels of the x axis: places and their texts."""

    places: Sequence[tuple[float, str]]


class Scale(NamedTuple):
    """How one axis is drawn."""

    format: Format
    """Text of a value."""
    log: bool = False
    """Logarithmic."""
    labels: Sequence[float] | Labels | None = None
    """Of the x axis: values to label, as far as the labels do not overlap; ``None``: evenly spaced."""
    ticks: Callable[[float, float], list[float]] | None = None
    """Of the y axis: places of labels between two values; ``None``: round values."""


def lines(
    series: Mapping[str, Sequence[tuple[float, float | None]]],
    x: Scale,
    y: Scale,
    *,
    goals: Mapping[str, float] | None = None,
    marks: Mapping[str, float] | None = None,
    canvas: Canvas = WIDE,
) -> Plot:
    """One line per name.

    Args:
        series: points ``(x, y)`` in order of x; a ``None`` is a gap.
        goals: dashed horizontal lines, by name.
        marks: dashed vertical lines, by name.
    """
    points = [(at, value) for line in series.values() for at, value in line if value is not None]
    if not points:
        return Plot()
    xs = [at for at, _ in points] + list((marks or {}).values())
    ys = [value for _, value in points] + list((goals or {}).values())
    low = max(min(ys) / 1.3, 1e-6) if y.log else min(0.0, *ys)
    frame = _Frame(canvas, Axis(min(xs), max(xs), x.log), Axis(low, max(ys) * 1.1 or 1.0, y.log))
    elements = [frame.grid(x, y)]
    for number, (name, line) in enumerate(series.items()):
        colour = f"var(--c{number % COLOURS})"
        for piece in _pieces(line):
            where = " ".join(f"{frame.x(at):.1f},{frame.y(value):.1f}" for at, value in piece)
            elements.append(f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="2"/>')
            radius = 3.2 if len(piece) * _PIXELS_A_DOT < canvas.width else 1.6
            elements += [
                f'<circle cx="{frame.x(at):.1f}" cy="{frame.y(value):.1f}" r="{radius}" fill="{colour}">'
                f"<title>{escape(name)}: {escape(y.format(value))} at {escape(x.format(at))}</title></circle>"
                for at, value in piece
            ]
    elements += frame.dashed(goals or {}, marks or {})
    return Plot(elements, list(series))


def stacked(
    names: Sequence[str],
    bars: Sequence[tuple[float, Sequence[float]]],
    x: Scale,
    y: Scale,
    *,
    width: float,
    canvas: Canvas = WIDE,
) -> Plot:
    """Bars of several parts, which count something.

    Args:
        bars: ``(x, parts)``, one part for each name.
        width: of a bar, in units of x.
    """
    if not bars or not any(sum(parts) for _, parts in bars):
        return Plot()
    x_axis = Axis(min(at for at, _ in bars), max(at for at, _ in bars) + width)
    frame = _Frame(canvas, x_axis, Axis(0.0, max(sum(parts) for _, parts in bars) * 1.08))
    elements = [frame.grid(x, y._replace(ticks=y.ticks or whole_ticks))]
    for at, parts in bars:
        left, right = frame.x(at), frame.x(at + width)
        bottom = 0.0
        for number, part in enumerate(parts):
            if part <= 0:
                continue
            top = bottom + part
            elements.append(
                f'<rect x="{left:.1f}" y="{frame.y(top):.1f}" width="{max(right - left - 1, 0.6):.1f}" '
                f'height="{max(frame.y(bottom) - frame.y(top), 0.4):.1f}" fill="var(--c{number % COLOURS})">'
                f"<title>{escape(names[number])}: {escape(y.format(part))} at {escape(x.format(at))}</title></rect>"
            )
            bottom = top
    return Plot(elements, names)


def cells(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[int, int], tuple[float, str]],
    canvas: Canvas = WIDE,
) -> Plot:
    """A grid of cells, the darker the greater their value.

    Args:
        columns: labels; as many as there is room for are shown.
        values: by row and column: the value, and its text. A place without one stays empty.
    """
    if not values:
        return Plot()
    most = max(value for value, _ in values.values()) or 1.0
    across, down = (canvas.width - _LEFT - _RIGHT) / len(columns), (canvas.height - _TOP - _BOTTOM) / len(rows)
    elements = [
        f'<text x="{_LEFT - 8}" y="{_TOP + down * (at + 0.5) + 4:.1f}" text-anchor="end">{escape(name)}</text>'
        for at, name in enumerate(rows)
    ]
    every = -(-len(columns) // (2 * canvas.labels))
    elements += [
        f'<text x="{_LEFT + across * at:.1f}" y="{canvas.height - 10}">{escape(name)}</text>'
        for at, name in enumerate(columns)
        if at % every == 0
    ]
    elements += [
        f'<rect x="{_LEFT + across * column:.1f}" y="{_TOP + down * row:.1f}" width="{across - 1:.1f}" '
        f'height="{down - 1:.1f}" fill="var(--c0)" fill-opacity="{0.06 + 0.94 * value / most:.2f}">'
        f"<title>{escape(text)}</title></rect>"
        for (row, column), (value, text) in sorted(values.items())
    ]
    return Plot(elements)


class _Frame(NamedTuple):
    """Two axes on a canvas."""

    canvas: Canvas
    x_axis: Axis
    y_axis: Axis

    def x(self, value: float) -> float:
        return _LEFT + self.x_axis.at(value) * (self.canvas.width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return self.canvas.height - _BOTTOM - self.y_axis.at(value) * (self.canvas.height - _TOP - _BOTTOM)

    def grid(self, x_scale: Scale, y_scale: Scale) -> str:
        parts = []
        axis, before = self.y_axis, None
        for value in axis.ticks() if y_scale.ticks is None else y_scale.ticks(axis.low, axis.high):
            y, text = self.y(value), y_scale.format(value)
            if text == before:
                continue  # as precise as the texts are, these are one value
            before = text
            parts.append(
                f'<line x1="{_LEFT}" x2="{self.canvas.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
                f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
            )
        if isinstance(x_scale.labels, Labels):
            labels = list(x_scale.labels.places)
        else:
            labels = [(value, x_scale.format(value)) for value in self._places(x_scale.labels)]
        for value, text in labels:
            x = self.x(value)
            # A label at an end of the axis would leave the canvas.
            share = (x - _LEFT) / (self.canvas.width - _LEFT - _RIGHT)
            anchor = "start" if share < 0.04 else "end" if share > 0.96 else "middle"
            parts.append(
                f'<text x="{x:.1f}" y="{self.canvas.height - 10}" text-anchor="{anchor}">{escape(text)}</text>'
            )
        return "".join(parts)

    def _places(self, wanted: Sequence[float] | None) -> list[float]:
        if wanted is not None:
            return self._apart(sorted({*wanted}))
        axis, count = self.x_axis, min(_TICKS, self.canvas.labels)
        steps = count if axis.high > axis.low else 0
        return [axis.low + (axis.high - axis.low) * at / count for at in range(steps + 1)]

    def _apart(self, values: Sequence[float]) -> list[float]:
        """Those whose labels do not overlap; the last value is always among them."""
        kept: list[float] = []
        for value in reversed(values):
            if not kept or self.x(kept[0]) - self.x(value) >= _LABEL_WIDTH:
                kept.insert(0, value)
        return kept

    def dashed(self, goals: Mapping[str, float], marks: Mapping[str, float]) -> list[str]:
        right, bottom = self.canvas.width - _RIGHT, self.canvas.height - _BOTTOM
        elements = []
        for name, level in goals.items():
            y = self.y(level)
            elements.append(
                f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" class="goal"/>'
                f'<text x="{right}" y="{y - 4:.1f}" text-anchor="end" class="goal">{escape(name)}</text>'
            )
        for name, value in marks.items():
            x = self.x(value)
            elements.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}" class="goal"/>'
                f'<text x="{x - 4:.1f}" y="{_TOP + 10}" text-anchor="end" class="goal">{escape(name)}</text>'
            )
        return elements


def _pieces(line: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """The parts of a line between its gaps."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in line:
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    return [piece for piece in pieces if piece]
