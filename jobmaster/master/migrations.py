"""The numbered migrations that come with this program, and how they compare with what a schema has seen.

Pure: no connection here. A migration is known by its number; what was applied is known by its checksum, so that an edited
file is noticed instead of making two clusters that only look the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import NamedTuple

from jobmaster.master.statements import quoted, statement
from jobmaster.model.errors import SchemaMismatch

_FILE = re.compile(r"^(?P<number>\d{4})_(?P<name>[a-z0-9_]+)\.sql$")


class Migration(NamedTuple):
    """One file of ``master_schema/migrations``."""

    number: int
    name: str
    sql: str
    checksum: str
    """sha256 of the file, hexadecimal."""

    @property
    def label(self) -> str:
        return f"{self.number:04d}_{self.name}"


class Applied(NamedTuple):
    """One row of ``schema_migration``."""

    number: int
    name: str
    checksum: str
    applied_us: int
    by: str


class Standing(StrEnum):
    """How one migration stands in a schema."""

    APPLIED = "applied"
    PENDING = "pending"
    EDITED = "edited"
    """Applied with another content than this program has."""
    UNKNOWN = "unknown"
    """Applied by a newer program."""
    SKIPPED = "skipped"
    """Not applied although a later one is."""


class MigrationStatus(NamedTuple):
    """One line of ``jobmaster db status``."""

    number: int
    name: str
    standing: Standing
    applied_us: int | None
    by: str | None


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations of this program in order; numbers are 1, 2, 3 ... without a gap."""
    found = []
    for file in resources.files("master_schema").joinpath("migrations").iterdir():
        if match := _FILE.match(file.name):
            content = file.read_bytes()
            found.append(
                Migration(int(match["number"]), match["name"], content.decode(), hashlib.sha256(content).hexdigest())
            )
    found.sort()
    return tuple(found)


def compare(applied: Sequence[Applied], known: Sequence[Migration]) -> list[MigrationStatus]:
    """Every migration that either side knows, by number."""
    there = {row.number: row for row in applied}
    last = max(there, default=0)
    lines = []
    for migration in known:
        row = there.pop(migration.number, None)
        if row is None:
            standing = Standing.SKIPPED if migration.number < last else Standing.PENDING
            lines.append(MigrationStatus(migration.number, migration.name, standing, None, None))
        else:
            standing = Standing.APPLIED if row.checksum == migration.checksum else Standing.EDITED
            lines.append(MigrationStatus(migration.number, migration.name, standing, row.applied_us, row.by))
    lines += [MigrationStatus(r.number, r.name, Standing.UNKNOWN, r.applied_us, r.by) for r in there.values()]
    return sorted(lines)


def refuse_strangers(lines: Sequence[MigrationStatus], schema: str) -> None:
    """``SchemaMismatch`` unless every applied migration is one of this program's, unedited and without a gap."""
    for standing, sentence, hint in (
        (Standing.UNKNOWN, "was made by a newer program (migration {})", "upgrade this program"),
        (
            Standing.EDITED,
            "was migrated with another content of {} than this program has",
            "run the program version that made it, or restore the file",
        ),
        (Standing.SKIPPED, "lacks migration {} although a later one was applied", "restore the schema from a backup"),
    ):
        labels = [f"{line.number:04d}_{line.name}" for line in lines if line.standing is standing]
        if labels:
            raise SchemaMismatch(f"schema {schema} of the master {sentence.format(', '.join(labels))}", hint=hint)


def refuse_pending(lines: Sequence[MigrationStatus], schema: str) -> None:
    """``SchemaMismatch`` when the schema is too old for this program."""
    pending = [line for line in lines if line.standing is Standing.PENDING]
    if pending:
        what = f"lacks {len(pending)} of {len(lines)} migrations" if len(pending) < len(lines) else "is empty"
        raise SchemaMismatch(f"schema {schema} of the master {what}", hint="run `jobmaster db migrate`")


def script(schema: str, cluster: str, from_: int = 0) -> str:
    """The SQL that ``jobmaster db migrate`` would run for the migrations after number ``from_``: for people whose
    database may be changed by hand only. The same input gives the same text."""
    parts = [f"-- JobMaster: migrations after number {from_} of schema {schema}. Run with: psql -v ON_ERROR_STOP=1 -1"]
    if from_ == 0:
        parts.append(_filled("schema/create_schema", schema))
    parts.append(f"SET LOCAL search_path = {quoted(schema)};")
    if from_ == 0:
        parts.append(_filled("schema/create_list", schema))
    for migration in migrations():
        if migration.number > from_:
            parts.append(migration.sql.rstrip())
            parts.append(_filled("schema/record", schema, migration.number, migration.name, migration.checksum))
    if from_ == 0:
        parts.append(_filled("schema/create_cluster", schema, cluster))
    return "\n\n".join(parts) + "\n"


def _filled(name: str, schema: str, *values: str | int) -> str:
    """A statement with its parameters written out."""
    text = statement(name).qualified(schema)
    for number, value in reversed(list(enumerate(values, start=1))):
        text = text.replace(f"${number}", "'" + str(value).replace("'", "''") + "'")
    return text + ";"
