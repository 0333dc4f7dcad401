"""Plots as SVG text. Colours are variables of the page, so they follow light and dark; every mark says its value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 880, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 12, 34
_TICKS = 5
COLOURS = 8
"""Variables ``--c0`` ... of the page."""

Format = Callable[[float], str]


class Axis(NamedTuple):
    """How values become places."""

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
        """Round values along it."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            step = max(1, (last - first) // _TICKS)
            return [10.0**power for power in range(first, last + 1, step) if self.low <= 10.0**power <= self.high]
        rough = (self.high - self.low) / _TICKS or 1.0
        unit = 10.0 ** math.floor(math.log10(rough))
        width = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
        start = math.ceil(self.low / width) * width
        return [start + width * at for at in range(int((self.high - start) / width + 1e-9) + 1)]


def nothing() -> str:
    """In place of a plot without data."""
    return '<p class="none">nothing to show</p>'


def lines(
    series: Mapping[str, Sequence[tuple[float, float | None]]],
    *,
    format_x: Format,
    format_y: Format,
    log: bool = False,
    goals: Mapping[str, float] | None = None,
) -> str:
    """Values over something, one line a name; ``None`` is a gap. ``goals`` are dashed levels."""
    points = [(x, y) for line in series.values() for x, y in line if y is not None]
    if not points:
        return nothing()
    levels = list((goals or {}).values())
    ys = [y for _, y in points] + levels
    low = max(min(ys) / 1.3, 1e-6) if log else 0.0
    x_axis, y_axis = Axis(min(x for x, _ in points), max(x for x, _ in points)), Axis(low, max(ys) * 1.1 or 1.0, log)
    body = [_grid(x_axis, y_axis, format_x, format_y)]
    for at, (name, line) in enumerate(series.items()):
        colour = f"var(--c{at % COLOURS})"
        for piece in _pieces(line):
            where = " ".join(f"{_x(x_axis, x):.1f},{_y(y_axis, y):.1f}" for x, y in piece)
            body.append(f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="2"/>')
            radius = 3.2 if len(piece) < 40 else 1.6
            body += [
                f'<circle cx="{_x(x_axis, x):.1f}" cy="{_y(y_axis, y):.1f}" r="{radius}" fill="{colour}">'
                f"<title>{escape(name)}: {escape(format_y(y))} at {escape(format_x(x))}</title></circle>"
                for x, y in piece
            ]
    for name, level in (goals or {}).items():
        y = _y(y_axis, level)
        body.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="goal"/>'
            f'<text x="{WIDTH - _RIGHT}" y="{y - 4:.1f}" text-anchor="end" class="goal">{escape(name)}</text>'
        )
    return _svg(body) + _legend(list(series))


def stacked(
    names: Sequence[str],
    bars: Sequence[tuple[float, Sequence[float]]],
    *,
    width: float,
    format_x: Format,
    format_y: Format,
) -> str:
    """Bars of several parts; ``width`` is that of a bar, in units of x."""
    if not bars or not any(sum(parts) for _, parts in bars):
        return nothing()
    x_axis = Axis(min(x for x, _ in bars), max(x for x, _ in bars) + width)
    y_axis = Axis(0.0, max(sum(parts) for _, parts in bars) * 1.08)
    body = [_grid(x_axis, y_axis, format_x, format_y)]
    for x, parts in bars:
        left, right = _x(x_axis, x), _x(x_axis, x + width)
        bottom = 0.0
        for at, part in enumerate(parts):
            if part <= 0:
                continue
            top = bottom + part
            body.append(
                f'<rect x="{left:.1f}" y="{_y(y_axis, top):.1f}" width="{max(right - left - 1, 0.6):.1f}" '
                f'height="{max(_y(y_axis, bottom) - _y(y_axis, top), 0.4):.1f}" fill="var(--c{at % COLOURS})">'
                f"<title>{escape(names[at])}: {escape(format_y(part))} at {escape(format_x(x))}</title></rect>"
            )
            bottom = top
    return _svg(body) + _legend(names)


def ranking(values: Sequence[tuple[str, float]], *, format_value: Format) -> str:
    """Horizontal bars, as they come."""
    if not values:
        return nothing()
    most = max(value for _, value in values) or 1.0
    rows = "".join(
        f'<tr><th>{escape(name)}</th><td class="bar"><i style="width:{100 * value / most:.1f}%"></i></td>'
        f"<td>{escape(format_value(value))}</td></tr>"
        for name, value in values
    )
    return f'<table class="ranking">{rows}</table>'


def _pieces(line: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """The line, cut at its gaps."""
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


def _grid(x_axis: Axis, y_axis: Axis, format_x: Format, format_y: Format) -> str:
    parts = []
    for value in y_axis.ticks():
        y = _y(y_axis, value)
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(format_y(value))}</text>'
        )
    for at in range(_TICKS + 1):
        value = x_axis.low + (x_axis.high - x_axis.low) * at / _TICKS
        anchor = "start" if at == 0 else "end" if at == _TICKS else "middle"
        parts.append(
            f'<text x="{_x(x_axis, value):.1f}" y="{HEIGHT - 10}" text-anchor="{anchor}">{escape(format_x(value))}</text>'
        )
        if x_axis.high <= x_axis.low:
            break
    return "".join(parts)


def _svg(body: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(body)}</svg>'


def _legend(names: Sequence[str]) -> str:
    items = "".join(
        f'<span><i style="background:var(--c{at % COLOURS})"></i>{escape(name)}</span>' for at, name in enumerate(names)
    )
    return f'<p class="legend">{items}</p>'
