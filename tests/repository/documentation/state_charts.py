"""Charts of the transition tables as SVG: a column for each state, a row for each event, an arrow from the states that it
leaves to the one that it enters. Such a chart needs no layout, shows every transition, and two arrows never cross.

A browser draws them without a script, on the site as in a repository.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from html import escape
from typing import NamedTuple

_COLUMN, _ROW, _LABELS, _TOP, _MARGIN = 104, 26, 190, 58, 12
_HEAD = 7
"""Half of an arrow's head."""
_RING = 8
"""Radius of the circle around a state that an event leaves as it is."""
_STYLE = """
text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #23303a }
text.state { font-weight: 600; font-size: 11px; text-anchor: middle }
text.event { text-anchor: end }
tspan.bump { fill: #a4452c; font-size: 10px }
rect.page { fill: #ffffff }
rect.box { fill: #e8f1f4; stroke: #1f6f8b }
rect.final { fill: #f3efe6; stroke: #8a6d3b; stroke-width: 2 }
rect.none { fill: none; stroke: #8895a0; stroke-dasharray: 4 3 }
rect.band { fill: #f4f6f7 }
line.life { stroke: #b9c4cb; stroke-dasharray: 2 4 }
path.arrow { stroke: #1f6f8b; stroke-width: 1.6; fill: none }
path.head { fill: #1f6f8b }
circle { fill: #ffffff; stroke: #1f6f8b; stroke-width: 1.6 }
@media (prefers-color-scheme: dark) {
  text { fill: #dfe6ea } tspan.bump { fill: #f0a58f } rect.page { fill: #14191d } rect.box { fill: #1d3842 }
  rect.final { fill: #3a3120 } rect.band { fill: #1a2126 } line.life { stroke: #4a5862 } circle { fill: #14191d }
}
""".strip()


class Chart(NamedTuple):
    """What is drawn."""

    title: str
    transitions: Sequence[tuple[tuple[StrEnum | None, StrEnum], StrEnum]]
    final: frozenset[StrEnum]
    no_state: str
    """Head of the column for ``None``."""
    bumps: frozenset[StrEnum] = frozenset()
    bump_word: str = ""


class _Move(NamedTuple):
    event: StrEnum
    target: StrEnum
    sources: tuple[StrEnum | None, ...]


def moves_of(chart: Chart) -> list[_Move]:
    """The rows: events with a common target, in the order of the table."""
    found: dict[tuple[StrEnum, StrEnum], list[StrEnum | None]] = {}
    for (source, event), target in chart.transitions:
        found.setdefault((event, target), []).append(source)
    return [_Move(event, target, tuple(sources)) for (event, target), sources in found.items()]


def columns_of(chart: Chart) -> list[StrEnum | None]:
    """States in the order in which the table reaches them, the final ones last; the missing state first."""
    seen: dict[StrEnum | None, None] = {}
    for (source, _), target in chart.transitions:
        seen.setdefault(source)
        seen.setdefault(target)
    return sorted(seen, key=lambda state: (state is not None, state in chart.final))


def svg(chart: Chart) -> str:
    """The chart as a file."""
    columns, moves = columns_of(chart), moves_of(chart)
    at = {state: _LABELS + _COLUMN * number + _COLUMN // 2 for number, state in enumerate(columns)}
    width = _LABELS + _COLUMN * len(columns) + _MARGIN
    height = _TOP + _ROW * len(moves) + _MARGIN
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" width="{width}">',
        f"<title>{escape(chart.title)}</title>",
        f"<desc>{escape(' '.join(_sentence(move, chart) for move in moves))}</desc>",
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
    ]
    elements += [
        f'<rect class="band" x="0" y="{_TOP + _ROW * number}" width="{width}" height="{_ROW}"/>'
        for number in range(0, len(moves), 2)
    ]
    for state in columns:
        elements += _column(chart, state, at[state], height)
    for number, move in enumerate(moves):
        elements += _row(chart, move, at, _TOP + _ROW * number + _ROW // 2)
    return "\n".join([*elements, "</svg>", ""])


def _sentence(move: _Move, chart: Chart) -> str:
    sources = ", ".join(chart.no_state if source is None else source.value for source in move.sources)
    return f"{move.event.value}: {sources} to {move.target.value}."


def _column(chart: Chart, state: StrEnum | None, x: int, height: int) -> Iterable[str]:
    kind = "none" if state is None else "final" if state in chart.final else "box"
    words = (chart.no_state if state is None else state.value).replace("_TO_", "_TO\n").split("\n")
    yield f'<line class="life" x1="{x}" y1="42" x2="{x}" y2="{height - _MARGIN}"/>'
    yield f'<rect class="{kind}" x="{x - _COLUMN // 2 + 4}" y="10" width="{_COLUMN - 8}" height="32" rx="5"/>'
    for number, word in enumerate(words):
        y = 30 if len(words) == 1 else 23 + 13 * number
        yield f'<text class="state" x="{x}" y="{y}">{escape(word)}</text>'


def _row(chart: Chart, move: _Move, at: dict[StrEnum | None, int], y: int) -> Iterable[str]:
    right = _LABELS - 8
    bump = f'<tspan class="bump"> {escape(chart.bump_word)}</tspan>' if move.event in chart.bumps else ""
    yield f'<text class="event" x="{right}" y="{y + 4}">{escape(move.event.value)}{bump}</text>'
    end, sources = at[move.target], [at[source] for source in move.sources]
    ring = _RING if end in sources else 0
    for edge, sign in ((min(sources), 1), (max(sources), -1)):
        if (end - edge) * sign > 0:
            tip = end - sign * ring
            yield f'<path class="arrow" d="M{edge} {y}H{tip - sign * _HEAD}"/>'
            yield f'<path class="head" d="M{tip} {y}l{-sign * 2 * _HEAD} {-_HEAD + 2}v{2 * _HEAD - 4}z"/>'
    if ring:  # it may stay where it is
        yield f'<circle cx="{end}" cy="{y}" r="{ring}"/>'
    for source in sources:
        yield f'<circle cx="{source}" cy="{y}" r="3.5"/>'
