"""The page of the report: its style, and its parts as HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from jobmaster.pipeline.report.svg import COLOURS, NARROW, WIDE, Canvas, Format, Plot

_STYLE = """
:root { --bg:#fbfaf8; --fg:#23252b; --dim:#6b6f7a; --line:#e3e1dc; --card:#fff; --bad:#b3261e; --good:#2f7d4f;
  --c0:#2f6f9f; --c1:#d1603d; --c2:#8a8f98; --c3:#c9a227; --c4:#4f9d69; --c5:#7a5ea8; --c6:#b0567a; --c7:#3f8f8f; }
@media screen and (prefers-color-scheme: dark) { :root { --bg:#17181c; --fg:#e6e6e3; --dim:#9a9ea8; --line:#2e3037;
  --card:#1e2025; --bad:#f2857d; --good:#7ccf9c; --c0:#6fb1e0; --c1:#ee8b68; --c2:#9aa0aa; --c3:#e3c352; --c4:#7cc795;
  --c5:#a98fd6; --c6:#df8bab; --c7:#74c3c3; } }
* { box-sizing:border-box } body { margin:0; background:var(--bg); color:var(--fg); font:15px/1.5 system-ui,sans-serif }
main { max-width:960px; margin:0 auto; padding:32px 20px 64px } h1 { font-size:26px; margin:0 0 4px }
h2 { font-size:18px; margin:36px 0 4px } h3 { font-size:15px; margin:18px 0 4px } p { margin:4px 0 10px }
.dim, p.none { color:var(--dim) } section { background:var(--card); border:1px solid var(--line); border-radius:10px;
  padding:14px 18px; margin:12px 0; overflow-x:auto } svg { width:100%; height:auto; display:block }
svg text { font-size:11px; fill:var(--dim) } .grid { stroke:var(--line) } line.goal { stroke:var(--c1); stroke-dasharray:5 4 }
text.goal { fill:var(--c1) } .legend span { margin-right:16px; font-size:13px; white-space:nowrap }
.legend i { display:inline-block; width:10px; height:10px; border-radius:2px; margin-right:6px }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; font-size:14px }
th { text-align:left; font-weight:500; padding:4px 10px 4px 0 } thead th { color:var(--dim); font-weight:400; font-size:13px }
thead th:not(:first-child) { padding:4px 0 4px 10px }
td { text-align:right; padding:4px 0 4px 10px } tbody tr { border-top:1px solid var(--line) } td.text { text-align:left }
.ranking th { width:34%; overflow-wrap:anywhere } .ranking td.bar { width:50%; text-align:left }
.ranking i { display:block; height:12px; background:var(--c0); border-radius:3px; min-width:1px } .ranking tr { border:0 }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(140px,1fr)); gap:12px; margin:18px 0 }
.tile { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:10px 14px }
.tile b { display:block; font-size:22px; font-weight:600; white-space:nowrap }
.bad { color:var(--bad) } .good { color:var(--good) }
pre { overflow-x:auto; font-size:13px; margin:0 } a { color:var(--c0) } svg.narrow { display:none }
.nav { font-size:14px } .nav a { margin-right:14px; white-space:nowrap } th { overflow-wrap:anywhere }
@media (max-width:600px) { main { padding:18px 10px 40px } section { padding:10px } svg.wide { display:none }
  svg.narrow { display:block } svg text { font-size:12px } .tile b { font-size:19px } th, td { white-space:nowrap }
  tbody th { white-space:normal; min-width:110px }
  .tiles { grid-template-columns:repeat(auto-fit,minmax(128px,1fr)); gap:8px } }
@media print { @page { margin:14mm } * { print-color-adjust:exact; -webkit-print-color-adjust:exact } body { background:#fff;
  font-size:11pt } main { max-width:none; padding:0 } .nav, .files { display:none } section, .tile { border-color:#bbb;
  overflow:visible } section, tr, .tiles { break-inside:avoid } h2, h3 { break-after:avoid } pre { white-space:pre-wrap }
  table { font-size:9pt } svg.wide { display:block } svg.narrow { display:none } }
"""


def page(title: str, subtitle: str, parts: Sequence[str]) -> str:
    """The whole document."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main><h1>{escape(title)}</h1>"
        f'<p class="dim">{escape(subtitle)}</p>{"".join(parts)}</main></body></html>\n'
    )


def heading(text: str, explanation: str = "") -> str:
    """Heading of a section, with its name as the place for links."""
    note = f'<p class="dim">{escape(explanation)}</p>' if explanation else ""
    return f'<h2 id="{_anchor(text)}">{escape(text)}</h2>{note}'


def navigation(headings: Sequence[str]) -> str:
    """Links to some headings of the page."""
    links = " ".join(f'<a href="#{_anchor(text)}">{escape(text)}</a>' for text in headings)
    return f'<p class="nav">{links}</p>'


def files(label: str, paths: Sequence[str]) -> str:
    """Links to files that lie beside the page."""
    links = ", ".join(f'<a href="{escape(path)}">{escape(path.rpartition("/")[2])}</a>' for path in paths)
    return f'<p class="dim files">{escape(label)}: {links}</p>'


def _anchor(text: str) -> str:
    return "-".join(text.lower().split())


def card(content: str, title: str = "") -> str:
    """Content in a box."""
    return f"<section>{f'<h3>{escape(title)}</h3>' if title else ''}{content}</section>"


def tiles(values: Sequence[tuple[str, str, str]]) -> str:
    """``(label, value, class)`` side by side; the class is ``good``, ``bad`` or nothing."""
    inner = "".join(
        f'<div class="tile"><b class="{kind}">{escape(value)}</b><span class="dim">{escape(label)}</span></div>'
        for label, value, kind in values
    )
    return f'<div class="tiles">{inner}</div>'


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; its first column names the row."""
    head = "".join(
        f"<th{'' if at == 0 else ' style=text-align:right'}>{escape(name)}</th>" for at, name in enumerate(columns)
    )
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def code(text: str) -> str:
    """Preformatted text."""
    return f"<pre>{escape(text)}</pre>"


def nothing() -> str:
    """In place of a plot or table without data."""
    return '<p class="none">nothing to show</p>'


def figure(draw: Callable[[Canvas], Plot]) -> str:
    """A plot with its legend, drawn for a window and once more for a phone."""
    plot = draw(WIDE)
    if not plot.elements:
        return nothing()
    legend = "".join(
        f'<span><i style="background:var(--c{at % COLOURS})"></i>{escape(name)}</span>'
        for at, name in enumerate(plot.names)
    )
    return f'{_svg(plot, WIDE, "wide")}{_svg(draw(NARROW), NARROW, "narrow")}<p class="legend">{legend}</p>'


def _svg(plot: Plot, canvas: Canvas, kind: str) -> str:
    size = f'viewBox="0 0 {canvas.width} {canvas.height}"'
    return f'<svg class="{kind}" {size} role="img">{"".join(plot.elements)}</svg>'


def ranking(values: Sequence[tuple[str, float]], *, format_value: Format) -> str:
    """Names with horizontal bars, in the given order."""
    if not values:
        return nothing()
    most = max(value for _, value in values) or 1.0
    rows = "".join(
        f'<tr><th>{escape(name)}</th><td class="bar"><i style="width:{100 * value / most:.1f}%"></i></td>'
        f"<td>{escape(format_value(value))}</td></tr>"
        for name, value in values
    )
    return f'<table class="ranking">{rows}</table>'
