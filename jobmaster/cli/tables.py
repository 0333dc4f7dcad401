"""Plain tables and times for people. Text from outside (tags, errors) cannot steer the terminal."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import click

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LEFT, _RIGHT = "<", ">"
CELL_CHARS_MAX = 72
"""Characters of a cell on a terminal. In a pipe nothing is cut: the reading program has no other source."""
WRAP_CHARS_MIN = 32


class Column(NamedTuple):
    """One column: title, key of the row (dots for inner keys), format of the value, and alignment."""

    title: str
    key: str
    show: Callable[[Any], str] | None = None
    right: bool = False
    whole: bool = False
    """Wrapped on a terminal, never cut. For reasons in the last column."""


def emit_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], *, as_json: bool, empty: str) -> None:
    """Print rows on standard output: a JSON array, or a table. For no rows print the sentence ``empty`` on standard error."""
    if as_json:
        emit_json(list(rows))
    elif rows:
        click.echo(render(rows, columns, terminal_width()))
    else:
        click.echo(empty, err=True)


def emit_json(value: Any) -> None:
    """Print one line of JSON on standard output."""
    click.echo(json.dumps(value, ensure_ascii=False, default=str))


def emit_record(record: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one record: a JSON object, or one line for each field with a value."""
    if as_json:
        emit_json(record)
        return
    shown = {key: value for key, value in record.items() if value not in (None, "", [], {})}
    width = max((len(key) for key in shown), default=0)
    for key, value in shown.items():
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
        first, *rest = text.splitlines() or [""]
        click.echo(f"{key.ljust(width)}  {clean(first)}")
        for line in rest:
            click.echo(f"{' ' * width}  {clean(line)}")


def terminal_width() -> int | None:
    """Width of the terminal in cells (or ``$COLUMNS``); ``None`` when standard output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def render(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], width: int | None = None) -> str:
    """The table as text. The width of a column is that of its widest cell, in terminal cells.

    Args:
        width: of the terminal. ``None``: no terminal, so nothing is cut or wrapped.
    """
    cells = [[_cell(row, column, width) for column in columns] for row in rows]
    if width is not None and columns[-1].whole:
        cells = _wrapped(cells, columns, width)
    widths = [
        max(display_width(column.title), *(display_width(line[at]) for line in cells))
        for at, column in enumerate(columns)
    ]
    sides = [_RIGHT if column.right else _LEFT for column in columns]
    lines = [[column.title for column in columns], *cells]
    return "\n".join(
        "  ".join(_pad(text, width, side) for text, width, side in zip(line, widths, sides, strict=True)).rstrip()
        for line in lines
    )


def _wrapped(cells: list[list[str]], columns: Sequence[Column], width: int) -> list[list[str]]:
    """The rows with their last cell wrapped into the width that the other columns leave."""
    others = [
        max(display_width(column.title), *(display_width(line[at]) for line in cells))
        for at, column in enumerate(columns[:-1])
    ]
    room = max(width - sum(others) - 2 * len(others), WRAP_CHARS_MIN)
    lines = []
    for *left, last in cells:
        first, *more = textwrap.wrap(last, room) or [""]
        lines.append([*left, first])
        lines += [[*("" for _ in left), line] for line in more]
    return lines


def _cell(row: Mapping[str, Any], column: Column, width: int | None) -> str:
    value: Any = row
    for key in column.key.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is None:
        return "-"
    text = clean(column.show(value) if column.show else str(value))
    if width is None or column.whole or len(text) <= CELL_CHARS_MAX:
        return text
    return text[: CELL_CHARS_MAX - 3] + "..."


def _pad(text: str, width: int, side: str) -> str:
    room = " " * (width - display_width(text))
    return room + text if side == _RIGHT else text + room


def display_width(text: str) -> int:
    """Width of a text in terminal cells: East Asian wide characters have two, combining characters none."""
    if text.isascii():
        return len(text)
    width = 0
    for char in text:
        if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Mn", "Me"):
            continue
        width += 2 if unicodedata.east_asian_width(char) in "WF" else 1
    return width


def clean(text: str) -> str:
    """The text with characters that are not printable as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


# ---------------------------------------------------------------- times


def iso(us: int | None) -> str | None:
    """Microseconds since 1970 as ISO 8601 in UTC; ``None`` for ``None`` and for 0 (which means "at once")."""
    if not us:
        return None
    try:
        return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{us}us"


def iso_at(moment: datetime | None) -> str | None:
    """A time (aware, UTC) as ISO 8601."""
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def thousands(value: float) -> str:
    """``1 234 567``."""
    return f"{value:,}".replace(",", " ")
