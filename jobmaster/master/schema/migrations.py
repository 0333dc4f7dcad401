"""The numbered migrations that come with this program, and how they compare with those that a schema has.

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
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

from jobmaster.distribution import upgrade_command
from jobmaster.master.driver.statements import quoted, statement
from jobmaster.model.errors import CodeError, SchemaMismatch

_INDEX = re.compile(r"^CREATE INDEX (?P<name>\w+) ON (?P<table>\w+) (?P<rest>[^;]+);", re.MULTILINE)
_TABLE = re.compile(r"^CREATE (?:OR REPLACE )?(?:TABLE|VIEW) (\w+)", re.MULTILINE)
_PARTITIONED = ("job", "attempt")
_BUILD_AHEAD = (
    "-- {name} is built while writers to {table} wait. `jobmaster db migrate` builds it on each large partition before,\n"
    "-- with CREATE INDEX CONCURRENTLY. By hand: the same statement on each of them; this one then attaches what it finds."
)
_PROGRAMS = re.compile(r"^-- programs: >= (?P<number>\d{4})$", re.MULTILINE)
_FILE = re.compile(r"^(?P<number>\d{4})_(?P<name>[a-z0-9_]+)\.sql$")


class Migration(NamedTuple):
    """One file of ``master_schema/migrations``."""

    number: int
    name: str
    sql: str
    checksum: str
    """sha256 of the file, hexadecimal."""
    programs: int
    """Programs that know the migrations up to this number may run on a schema that has this one. Its own number, unless its
    file has a line such as ``-- programs: >= 0012``: it only adds what older programs do not look at."""

    @property
    def label(self) -> str:
        return f"{self.number:04d}_{self.name}"


class AppliedMigration(NamedTuple):
    """One row of ``schema_migration``."""

    number: int
    name: str
    checksum: str
    applied_us: int
    by: str
    programs: int | None = None
    """``Migration.programs``; ``None``: its own number."""


class MigrationState(StrEnum):
    """State of one migration in a schema."""

    APPLIED = "applied"
    PENDING = "pending"
    EDITED = "edited"
    """Applied with another content than this program has."""
    NEWER = "newer"
    """Applied by a newer program, and this one may run on it."""
    UNKNOWN = "unknown"
    """Applied by a newer program, and this one must not run on it."""
    SKIPPED = "skipped"
    """Not applied although a later one is."""


class MigrationStatus(NamedTuple):
    """One line of ``jobmaster db status``."""

    number: int
    name: str
    standing: MigrationState
    applied_us: int | None
    by: str | None
    programs: int
    """``Migration.programs``."""


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations of this program in order; numbers are 1, 2, 3 ... without a gap."""
    found = []
    for file in _folder().iterdir():
        if match := _FILE.match(file.name):
            found.append(migration_of(int(match["number"]), match["name"], file.read_bytes()))
    found.sort()
    return tuple(found)


def _folder() -> Traversable:
    """The migrations: inside the package where it is installed, at the top of the tree in an editable install."""
    package = resources.files("jobmaster")
    installed = package / "master_schema" / "migrations"
    return installed if installed.is_dir() else Path(str(package)).parent / "master_schema" / "migrations"


def migration_of(number: int, name: str, content: bytes) -> Migration:
    """A migration by its file.

    Raises:
        CodeError: it allows programs that are not older.
    """
    text = content.decode()
    said = _PROGRAMS.search(text)
    programs = int(said["number"]) if said else number
    if said and not 0 < programs < number:
        raise CodeError(f"migration {number:04d}_{name} names programs {programs:04d}, which are not older than itself")
    return Migration(number, name, text, hashlib.sha256(content).hexdigest(), programs)


def compare(applied: Sequence[AppliedMigration], known: Sequence[Migration]) -> list[MigrationStatus]:
    """Every migration of either side, by number."""
    there = {row.number: row for row in applied}
    last = max(there, default=0)
    newest = max((migration.number for migration in known), default=0)
    lines = []
    for migration in known:
        row = there.pop(migration.number, None)
        if row is None:
            standing = MigrationState.SKIPPED if migration.number < last else MigrationState.PENDING
            lines.append(MigrationStatus(migration.number, migration.name, standing, None, None, migration.programs))
        else:
            standing = MigrationState.APPLIED if row.checksum == migration.checksum else MigrationState.EDITED
            lines.append(
                MigrationStatus(row.number, migration.name, standing, row.applied_us, row.by, migration.programs)
            )
    for row in there.values():
        programs = row.number if row.programs is None else row.programs
        standing = MigrationState.NEWER if programs <= newest else MigrationState.UNKNOWN
        lines.append(MigrationStatus(row.number, row.name, standing, row.applied_us, row.by, programs))
    return sorted(lines)


def refuse_strangers(lines: Sequence[MigrationStatus], schema: str) -> None:
    """``SchemaMismatch`` unless every applied migration is one of this program's, unedited and without a gap, or allows
    this program."""
    for standing, sentence, hint in (
        (
            MigrationState.UNKNOWN,
            "was made by a newer program (migration {})",
            f"upgrade this program: {upgrade_command()}",
        ),
        (
            MigrationState.EDITED,
            "was migrated with another content of {} than this program has",
            "run the program version that made it, or restore the file",
        ),
        (
            MigrationState.SKIPPED,
            "lacks migration {} although a later one was applied",
            "restore the schema from a backup",
        ),
    ):
        labels = [f"{line.number:04d}_{line.name}" for line in lines if line.standing is standing]
        if labels:
            raise SchemaMismatch(f"schema {schema} of the master {sentence.format(', '.join(labels))}", hint=hint)


def refuse_pending(lines: Sequence[MigrationStatus], schema: str) -> None:
    """``SchemaMismatch`` when the schema is too old for this program."""
    pending = [line for line in lines if line.standing is MigrationState.PENDING]
    if pending:
        what = f"lacks {len(pending)} of {len(lines)} migrations" if len(pending) < len(lines) else "is empty"
        raise SchemaMismatch(f"schema {schema} of the master {what}", hint="run `jobmaster db migrate`")


def indexes_of(migration: Migration) -> list[re.Match[str]]:
    """The indexes that a migration makes: ``name``, ``table``, and the ``rest`` of each statement."""
    return list(_INDEX.finditer(migration.sql))


def table_names() -> frozenset[str]:
    """Tables and views that the migrations make."""
    return frozenset(name for migration in migrations() for name in _TABLE.findall(migration.sql))


def script(schema: str, cluster: str, from_: int = 0) -> str:
    """The SQL that ``jobmaster db migrate`` would run for the migrations after number ``from_``: for operators whose
    database may be changed by hand only. The same input gives the same text."""
    parts = [f"-- JobMaster: migrations after number {from_} of schema {schema}. Run with: psql -v ON_ERROR_STOP=1 -1"]
    if from_ == 0:
        parts.append(_filled("schema/create_schema", schema))
    parts.append(f"SET LOCAL search_path = {quoted(schema)};")
    if from_ == 0:
        parts.append(_filled("schema/create_list", schema))
    parts.append(_filled("schema/complete_list", schema))
    for migration in migrations():
        if migration.number > from_:
            if from_ > 0:
                found = [one for one in indexes_of(migration) if one["table"] in _PARTITIONED]
                parts += [_BUILD_AHEAD.format(name=one["name"], table=one["table"]) for one in found]
            parts.append(migration.sql.rstrip())
            parts.append(_filled("schema/record", schema, *recorded(migration)))
    if from_ == 0:
        parts.append(_filled("schema/create_cluster", schema, cluster))
    return "\n\n".join(parts) + "\n"


def recorded(migration: Migration) -> tuple[int, str, str, int]:
    """Values of a migration's line in ``schema_migration``."""
    return migration.number, migration.name, migration.checksum, migration.programs


def _filled(name: str, schema: str, *values: str | int) -> str:
    """A statement with its parameters written out."""
    text = statement(name).qualified(schema)
    for number, value in reversed(list(enumerate(values, start=1))):
        text = text.replace(f"${number}", "'" + str(value).replace("'", "''") + "'")
    return text + ";"
