"""What a statement of the master needs of the database, read from its text.

A function that runs with its caller's rights (``SECURITY INVOKER``) adds what its own text needs. One that runs with its
maker's rights (``SECURITY DEFINER``) adds only the right to call it. The reader knows the forms in which the statements of
this program are written, not all of SQL; in ``tests/system/operation/test_least_privilege.py`` the server checks every
statement under the roles that are made from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from jobmaster.master.driver.statements import statement
from jobmaster.master.schema.migrations import migrations

SELECT, INSERT, UPDATE, DELETE = "SELECT", "INSERT", "UPDATE", "DELETE"
LOCK = "LOCK"
"""A row lock. PostgreSQL asks for UPDATE on any one column."""
USAGE = "USAGE"
"""Of a sequence."""
EXECUTE = "EXECUTE"

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_RELATION = re.compile(
    r"^CREATE (?:OR REPLACE )?(?:UNLOGGED )?(?:TABLE|VIEW)(?: IF NOT EXISTS)? (?!ON\b)(\w+)", re.MULTILINE
)
_FUNCTION = re.compile(
    r"^CREATE (?:OR REPLACE )?FUNCTION (?P<name>\w+)\((?P<head>.*?)\bAS \$\$(?P<body>.*?)\$\$",
    re.MULTILINE | re.DOTALL,
)
_NAME = r"(?:ONLY\s+)?(?:@schema\.)?(\w+)"
_READ = re.compile(rf"\b(?:FROM|JOIN|USING|TABLE)\s+{_NAME}|,\s*{_NAME}(?=\s+(?:AS\s+)?\w+\s*(?:,|WHERE|JOIN|\n|\)|$))")
_WRITES = (
    (re.compile(rf"\bINSERT\s+INTO\s+{_NAME}"), INSERT),
    (re.compile(rf"(?<!FOR )(?<!FOR NO KEY )(?<!DO )\bUPDATE\s+{_NAME}"), UPDATE),
    (re.compile(rf"\bDELETE\s+FROM\s+{_NAME}"), DELETE),
)
_DO_UPDATE = re.compile(r"\bDO\s+UPDATE\b")
_ROW_LOCK = re.compile(r"\bFOR\s+(?:NO\s+KEY\s+)?(?:UPDATE|SHARE|KEY\s+SHARE)\b")
_SEQUENCE = re.compile(r"\bnextval\('(\w+)'\)")
_CALL = re.compile(r"(?:@schema\.)?\b(\w+)\(")


class Function(NamedTuple):
    """A function of the schema, as the last migration has made it."""

    body: str
    definer: bool
    """It runs with the rights of its maker."""


Needs = frozenset[tuple[str, str]]
"""``(right, name)``: of a table, a sequence or a function."""


@cache
def relations() -> frozenset[str]:
    """Tables and views of the schema."""
    found = {name for migration in migrations() for name in _RELATION.findall(_COMMENT.sub("", migration.sql))}
    return frozenset(found | {"schema_migration"})


@cache
def functions() -> dict[str, Function]:
    """Functions of the schema by name."""
    return {
        match["name"]: Function(match["body"], "SECURITY DEFINER" in match["head"])
        for migration in migrations()
        for match in _FUNCTION.finditer(_COMMENT.sub("", migration.sql))
    }


@cache
def needs_of(name: str, definers: frozenset[str]) -> Needs:
    """What the statement ``group/file`` needs.

    Args:
        definers: functions that run with their maker's rights beside those that are declared so.
    """
    found: set[tuple[str, str]] = set()
    seen: set[str] = set()
    texts = [statement(name).body]
    while texts:
        text = _COMMENT.sub("", texts.pop())
        found.update(_rights(text))
        for called in set(_CALL.findall(text)) & functions().keys() - seen:
            seen.add(called)
            if functions()[called].definer or called in definers:
                found.add((EXECUTE, called))
            else:
                texts.append(functions()[called].body)
    return frozenset(found)


def _rights(text: str) -> Iterator[tuple[str, str]]:
    """Rights on tables and sequences that one text asks for; every table that it writes is read, too."""
    tables = relations()
    reads = {one or other for one, other in _READ.findall(text)} & tables
    for pattern, right in _WRITES:
        for match in pattern.finditer(text):
            if match[1] in tables:
                reads.add(match[1])
                yield right, match[1]
    for match in _DO_UPDATE.finditer(text):
        yield UPDATE, _WRITES[0][0].findall(text[: match.start()])[-1]
    for match in _ROW_LOCK.finditer(text):
        for one, other in _READ.findall(_same_level(text, match.start())):
            if (one or other) in tables:
                yield LOCK, one or other
    for table in reads:
        yield SELECT, table
    for sequence in _SEQUENCE.findall(text):
        yield USAGE, sequence


def _same_level(text: str, end: int) -> str:
    """What stands before ``end`` inside the same parentheses, without what is in deeper ones."""
    depth, kept = 0, []
    for character in reversed(text[:end]):
        if character == ")":
            depth += 1
        elif character == "(":
            if depth == 0:
                break
            depth -= 1
        elif depth == 0:
            kept.append(character)
    return "".join(reversed(kept))
