"""What commands print on standard output: tables for people, and the formats of ``-o`` for programs.

Text from outside (tags, errors) cannot steer the terminal. The formats are those of kubectl, as operators know them.
"""

from __future__ import annotations

import json
import shlex
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

import click

from jobmaster.model.errors import InputError

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


# ---------------------------------------------------------------- formats


class Output(StrEnum):
    """How data is printed: the values of ``-o``."""

    TABLE = "table"
    """Columns for people, cut and wrapped on a terminal."""
    WIDE = "wide"
    """The same with every field, and nothing cut."""
    JSON = "json"
    """One line: an array for a list, an object for one item. Of a stream: a line for each item."""
    JSONL = "jsonl"
    """A line for each item."""
    YAML = "yaml"
    CSV = "csv"
    """A line of names, and a line for each item. No stream has it: its names are not known before its end."""
    NAME = "name"
    """What other commands take: an id or a name, a line for each item."""

    @property
    def for_people(self) -> bool:
        """A table, or other text for people."""
        return self in (Output.TABLE, Output.WIDE)

    @property
    def json_errors(self) -> bool:
        """Errors are printed as JSON."""
        return self in (Output.JSON, Output.JSONL)


Row = Mapping[str, Any]
Names = str | Sequence[str]
"""The field that names an item, or several of them, which are words of a command line then."""


def emit_rows(
    rows: Sequence[Row], columns: Sequence[Column], output: Output, *, empty: str, name: Names | None = None
) -> None:
    """Print a list. For an empty one print the sentence ``empty`` on standard error in the formats for people.

    Args:
        name: fields that name a row; ``None``: its id, and of rows without one what the first column shows.
    """
    if not output.for_people:
        emit_data(list(rows), output, name=name or columns[0].key)
    elif not rows:
        click.echo(empty, err=True)
    elif output is Output.WIDE:
        click.echo(render(_flat(rows), (*columns, *_other_columns(rows, columns))))
    else:
        click.echo(render(rows, columns, terminal_width()))


def emit_record(record: Row, output: Output, *, name: Names | None = None) -> None:
    """Print one item; for people one line for each field with a value, in ``WIDE`` also for the others.

    Args:
        name: fields that name it; ``None``: its id, or its first field.
    """
    if emit_data(record, output, name=name):
        return
    shown = {
        key: value for key, value in record.items() if output is Output.WIDE or value not in (None, "", [], {}, ())
    }
    width = max((len(key) for key in shown), default=0)
    for key, value in shown.items():
        text = "-" if value is None else _plain(value)
        first, *rest = text.splitlines() or [""]
        click.echo(f"{key.ljust(width)}  {clean(first)}".rstrip())
        for line in rest:
            click.echo(f"{' ' * width}  {clean(line)}")


def emit_data(value: Row | Sequence[Row], output: Output, *, name: Names | None = None) -> bool:
    """Print one item or a list in a format for programs; False in the formats for people, when nothing is printed.

    Args:
        name: fields that name an item; ``None``: its id, or its first field.
    """
    items: Sequence[Row] = [value] if isinstance(value, Mapping) else value
    match output:
        case Output.JSON:
            click.echo(_json(value))
        case Output.JSONL:
            for item in items:
                click.echo(_json(item))
        case Output.YAML:
            click.echo(_yaml(value), nl=False)
        case Output.CSV:
            _echo_csv(items)
        case Output.NAME:
            for item in items:
                if (found := _name(item, name)) is not None:
                    click.echo(clean(found))
        case _:
            return False
    return True


def emit_item(item: Row, output: Output, *, name: Names | None = None) -> bool:
    """Print the next item of a stream in a format for programs; False in the formats for people. All items together are
    lines of JSON, names, or one YAML list."""
    refuse_csv_stream(output)
    if output is Output.JSON:
        output = Output.JSONL
    value: Row | Sequence[Row] = [item] if output is Output.YAML else item
    return emit_data(value, output, name=name)


def refuse_csv_stream(output: Output) -> None:
    """To be called by a command that prints a stream before it reads or changes anything.

    Raises:
        InputError: the format is CSV.
    """
    if output is Output.CSV:
        raise InputError("csv is a format of lists, and this command prints a stream", hint="give -o jsonl")


def _echo_csv(items: Sequence[Row]) -> None:
    """Nothing for no items: their names are not known then."""
    from jobmaster.csv_text import csv_line  # with msgspec, which a probe does without

    names = [*dict.fromkeys(name for item in items for name in item)]
    if names:
        click.echo(csv_line(names), nl=False)
    for item in items:
        click.echo(csv_line(item.get(name) for name in names), nl=False)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _yaml(value: Any) -> str:
    import yaml  # few calls need it

    plain = json.loads(_json(value))  # enums, ids and tuples become what YAML has
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=sys.maxsize)
    return text


def _name(item: Row, name: Names | None) -> str | None:
    """What names an item; ``None``: it has no name."""
    if isinstance(name, str) or name is None:
        key = "id" if item.get("id") is not None else name or next(iter(item), "")
        value = field_of(item, key)
        return None if value is None else str(value)
    return " ".join(shlex.quote(str(field_of(item, key))) for key in name)


def _flat(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows with their inner fields beside the others, by their path with dots."""
    return [{**row, **dict(_leaves(row))} for row in rows]


def _leaves(row: Row, above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield above + key, value


def _other_columns(rows: Sequence[Row], columns: Sequence[Column]) -> list[Column]:
    """A column for each field that no column shows and some row has."""
    shown = tuple(column.key for column in columns)
    keys = dict.fromkeys(
        key
        for row in rows
        for key, value in _leaves(row)
        if value not in (None, "", [], {}, ()) and not any(key == one or key.startswith(f"{one}.") for one in shown)
    )
    return [Column(key.upper().replace("_", " "), key, _plain) for key in keys]


def _plain(value: Any) -> str:
    return _json(value) if isinstance(value, dict | list | tuple) else str(value)


# ---------------------------------------------------------------- tables


def terminal_width() -> int | None:
    """Width of the terminal in cells (or ``$COLUMNS``); ``None`` when standard output is no terminal."""
    if not sys.stdout.isatty():
        return None
    import shutil  # loads modules of archives, which no other command line needs

    return shutil.get_terminal_size().columns


def render(rows: Sequence[Row], columns: Sequence[Column], width: int | None = None) -> str:
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
        import textwrap

        first, *more = textwrap.wrap(last, room) or [""]
        lines.append([*left, first])
        lines += [[*("" for _ in left), line] for line in more]
    return lines


def _cell(row: Row, column: Column, width: int | None) -> str:
    value = field_of(row, column.key)
    if value is None:
        return "-"
    text = clean(column.show(value) if column.show else str(value))
    if width is None or column.whole or len(text) <= CELL_CHARS_MAX:
        return text
    return text[: CELL_CHARS_MAX - 3] + "..."


def field_of(row: Row, key: str) -> Any:
    """A field by its key, an inner one by its path with dots; ``None``: there is none."""
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


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


def iso_at(moment: datetime | None) -> str | None:
    """A time (aware, UTC) as ISO 8601."""
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def thousands(value: float) -> str:
    """``1 234 567``."""
    return f"{value:,}".replace(",", " ")
