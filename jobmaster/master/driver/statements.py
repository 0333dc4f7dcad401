"""The SQL of the master: one statement a file, with a header that names its parameters, its columns and its fence.

The header is checked against a real server by ``tests/integration/postgres``; here only the text is of interest. A
statement keeps its name as a leading comment, so that an operator finds it in ``pg_stat_activity``.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import NamedTuple

_HEADER_LINE = re.compile(r"^--\s*(?:(?P<key>[a-z_]+):)?\s*(?P<text>.*)$")
_SCHEMA = "@schema."


class Statement(NamedTuple):
    """One file of ``sql/``."""

    name: str
    """``group/file``."""
    header: tuple[tuple[str, str], ...]
    """``(key, text)`` in order; a key may come again (``in``)."""
    body: str
    """SQL; names that must work outside our own search path are written ``@schema.name``."""

    @property
    def text(self) -> str:
        """For our own connections, whose search path is the cluster's schema."""
        return f"/* jobmaster {self.name} */\n" + self.body.replace(_SCHEMA, "")

    def qualified(self, schema: str) -> str:
        """For a connection that is not ours: every marked name is qualified with the schema."""
        body = self.body.replace(_SCHEMA, quoted(schema) + ".").replace("@schema", quoted(schema))
        return f"/* jobmaster {self.name} */\n" + body


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


@cache
def statement(name: str) -> Statement:
    """The statement ``group/file``, with its header."""
    source = resources.files("jobmaster.master").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    header: list[tuple[str, str]] = []
    lines = source.splitlines()
    count = 0
    for line in lines:
        if (match := _HEADER_LINE.match(line)) is None:
            break
        count += 1
        if match["key"]:
            header.append((match["key"], match["text"]))
        elif header:
            key, text = header[-1]
            header[-1] = (key, f"{text} {match['text']}")
    return Statement(name, tuple(header), "\n".join(lines[count:]).strip())


@cache
def names() -> tuple[str, ...]:
    """Every statement, as ``group/file``."""
    folder = resources.files("jobmaster.master").joinpath("sql")
    return tuple(
        sorted(
            f"{group.name}/{file.name.removesuffix('.sql')}"
            for group in folder.iterdir()
            if group.is_dir()
            for file in group.iterdir()
            if file.name.endswith(".sql")
        )
    )


@cache
def sql(name: str) -> str:
    """Text of a statement for our own connections."""
    return statement(name).text
