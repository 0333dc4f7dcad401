"""Roles of the master's database with no more rights than the statements of each part of a cluster ask for.

The statements of a role are listed here, its rights are read from them (``privileges``). What changes a job for a producer (a
unique key that replaces a job, a signal) is a function that runs with its maker's rights, so a producer cannot change
a row of ``job`` itself. Source of the idea: the checklist of least privilege of PostgreSQL's own documentation (``GRANT``,
``CREATE FUNCTION``: "Writing SECURITY DEFINER Functions Safely").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache

from jobmaster.master.driver.statements import names, quoted, statement
from jobmaster.master.schema.privileges import EXECUTE, LOCK, SELECT, UPDATE, USAGE, needs_of
from jobmaster.model.errors import ConfigError

NAME_BYTES_MAX = 63
"""PostgreSQL cuts longer names."""


class Role(StrEnum):
    """A role in the schema of a cluster. The name of the role is that of the schema, ``_`` and this word."""

    OWNER = "owner"
    """Migrates and retires: the schema and everything in it is its own."""
    AGENT = "agent"
    PRODUCER = "producer"
    """Submits jobs and follows them. Cancels and changes none."""
    VIEWER = "viewer"
    """Reads everything."""
    OPERATOR = "operator"
    """Submits, reads, and does what the command line does with a running cluster."""


_EVERY_PROGRAM = ("schema/applied", "schema/cluster", "schema/schema_exists", "schema/local_settings", "schema/server")
_READS = (
    *_EVERY_PROGRAM, "queries/*", "jobs/peek", "job_logs/read", "batches/callbacks", "batches/list", "batches/progress",
    "workflows/get", "workflows/list", "workflows/steps", "signals/kept", "signals/waiting", "limits/list", "breakers/list",
    "bulk/find", "bulk/list",
    "pauses/in_force", "pauses/followers", "locks/held", "once/list", "schedules/list", "schedules/fires",
    "export/horizon",
)  # fmt: skip
"""What every program may ask for about jobs and what surrounds them."""
_SUBMITS = (
    *_READS, "intake/*", "uniqueness/*", "jobs/id_range", "events/changed", "batches/add_range", "batches/close",
    "batches/open", "batches/take_over", "batches/touch", "workflows/start", "signals/hold_waiting", "signals/send",
    "locks/acquire", "locks/release", "locks/renew", "once/*", "maintenance/ensure_partitions",
)  # fmt: skip
_BULK = (
    "pipeline/adopt_batch", "pipeline/before_copy", "pipeline/begin_write", "pipeline/claim_keys", "pipeline/count_inserted",
    "pipeline/end_write", "pipeline/lanes", "pipeline/mark_adopted", "pipeline/open_batch", "pipeline/open_source",
    "pipeline/peek_batch", "pipeline/open_stream_batch", "pipeline/end_stream_batch", "pipeline/rate_limit",
    "pipeline/sources",
    "pipeline/write_result", "pipeline/writes", "pipeline/run_progress", "pipeline/report_driver", "pipeline/is_paused",
    "pipeline/take_room", "pipeline/measure_backlog", "pipeline/backfills", "pipeline/open_backfill",
    "pipeline/pause_backfill", "pipeline/resume_backfill", "pipeline/finish_files", "pipeline/finished_files",
    "pipeline/take_place", "pipeline/known_sources", "maintenance/note_operations",
)  # fmt: skip
"""Writes of Spark, and the commands about them."""
_MANAGED = (
    "requests/*", "changes/*", "batches/*", "workflows/*", "signals/*", "limits/*", "breakers/*", "pauses/*", "locks/*",
    "schedules/*", "buckets/*", "members/*", "stores/*", "unserved/*", "bulk/start", "bulk/cancel",
)  # fmt: skip
_LISTS = (*_READS, "reports/*", "export/*", "events/*", "archive/manifest", "archive/retirement", "archive/holders")
STATEMENTS: Mapping[Role, tuple[str, ...]] = {
    Role.AGENT: (
        *_SUBMITS, *_MANAGED, "onboarding/*", "outcomes/*", "maintenance/*", "jobs/*", "job_logs/*", "leadership/*",
        "rescue/*", "bulk/*", "transactions/*", "reports/unserved",
    ),
    Role.PRODUCER: (*_SUBMITS, *_BULK),
    Role.VIEWER: _LISTS,
    Role.OPERATOR: (*_SUBMITS, *_LISTS, *_MANAGED, "pipeline/*", "onboarding/release", "maintenance/note_operations"),
}  # fmt: skip
"""Names of statements, with ``*``. The owner has every right."""

DEFINERS = frozenset({"ensure_partitions", "hold_waiting", "send_signal", "submit_unique"})
"""Functions that run with the owner's rights where there are roles: they make tables, or change jobs for producers. (Without
roles they run with their caller's, which saves nothing and costs nothing.)"""

_SQL_FUNCTIONS: Mapping[Role, tuple[str, ...]] = {
    Role.PRODUCER: ("signal",),
    Role.OPERATOR: ("signal", "change_job"),
}
"""For programs that call them in SQL of their own."""
_LOCK_COLUMNS = {"bucket": "created_at", "job": "waited_us", "unique_key": "held_at"}
"""PostgreSQL asks for UPDATE on one column of what a row lock is taken on. These columns carry no decision."""
_OTHERS = {EXECUTE: "EXECUTE ON FUNCTION", USAGE: "USAGE ON SEQUENCE"}
_READS_ALL = (Role.VIEWER, Role.OPERATOR)


def role_name(schema: str, role: Role) -> str:
    """Name of a role of the cluster in ``schema``.

    Raises:
        ConfigError: it would be too long.
    """
    name = f"{schema}_{role.value}"
    if len(name.encode()) > NAME_BYTES_MAX:
        raise ConfigError(
            f"the role {name} would have {len(name.encode())} bytes, PostgreSQL allows {NAME_BYTES_MAX}",
            hint="give a shorter master.schema",
        )
    return name


def role_names(schema: str) -> list[str]:
    """Names of all roles of the cluster in ``schema``, also where they would be too long to exist."""
    return [f"{schema}_{role.value}" for role in Role]


@cache
def statements_of(role: Role) -> tuple[str, ...]:
    """Names of the statements that a role runs."""
    return tuple(name for name in names() if any(fnmatchcase(name, pattern) for pattern in STATEMENTS[role]))


def creation(schema: str) -> str:
    """SQL that makes the roles, without passwords; for an administrator of the server. Safe to repeat."""
    parts = [
        statement("schema/create_role").text.replace("role_example", role_name(schema, role)) + ";" for role in Role
    ]
    owner = role_name(schema, Role.OWNER)
    return "\n".join([*parts, statement("schema/may_create").text.replace("role_example", owner) + ";"])


def grants(schema: str) -> str:
    """SQL that gives the roles their rights and takes away what they had beside; for the owner of the schema. Safe to repeat,
    needed again after a migration."""
    place = quoted(schema)
    roles = {role: quoted(role_name(schema, role)) for role in STATEMENTS}
    everyone = ", ".join(roles.values())
    lines = [
        f"SET LOCAL search_path = {place};",
        f"REVOKE ALL ON SCHEMA {place} FROM PUBLIC;",
        f"GRANT USAGE ON SCHEMA {place} TO {everyone};",
        *(
            f"REVOKE ALL ON ALL {kind} IN SCHEMA {place} FROM {everyone};"
            for kind in ("TABLES", "SEQUENCES", "FUNCTIONS")
        ),
        *(f"ALTER FUNCTION {place}.{quoted(name)} SECURITY DEFINER;" for name in sorted(DEFINERS)),
        statement("schema/restrict_definers").text + ";",
        *(f"GRANT SELECT ON ALL TABLES IN SCHEMA {place} TO {roles[role]};" for role in _READS_ALL),
    ]
    for role, grantee in roles.items():
        lines += [f"GRANT {right} TO {grantee};" for right in _rights(role, place)]
    return "\n".join(lines)


def script(schema: str, *, create: bool, grant: bool) -> str:
    """What ``jobmaster db roles`` prints."""
    lines = [f"-- JobMaster: roles of schema {schema}. Run with: psql -v ON_ERROR_STOP=1 -1"]
    if create:
        lines += [
            "-- The roles have no passwords: give them with ALTER ROLE ... PASSWORD, or \\password.",
            creation(schema),
        ]
    if grant:
        lines += ["-- By the owner of the schema, after each `jobmaster db migrate`.", grants(schema)]
    return "\n".join(lines) + "\n"


def _rights(role: Role, place: str) -> Iterator[str]:
    """``SELECT, INSERT ON TABLE ...``: what the statements of a role need, in a fixed order."""
    tables: dict[str, set[str]] = defaultdict(set)
    others = {("EXECUTE ON FUNCTION", name) for name in _SQL_FUNCTIONS.get(role, ())}
    for name in statements_of(role):
        for right, of in needs_of(name, DEFINERS):
            if right in _OTHERS:
                others.add((_OTHERS[right], of))
            elif right != SELECT or role not in _READS_ALL:
                tables[of].add(right)
    for table, rights in sorted(tables.items()):
        yield f"{', '.join(_table_rights(table, rights))} ON TABLE {place}.{quoted(table)}"
    for what, name in sorted(others):
        yield f"{what} {place}.{quoted(name)}"


def _table_rights(table: str, rights: set[str]) -> Iterator[str]:
    column = _LOCK_COLUMNS.get(table)
    for right in sorted(rights):
        if right != LOCK:
            yield right
        elif UPDATE not in rights:
            yield f"UPDATE ({quoted(column)})" if column else UPDATE
