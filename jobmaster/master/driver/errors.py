"""Errors of the driver, mapped once, at the border.

What decides is not what broke but what may have happened: a statement that the server refused, rolled back or
never received has done nothing; one whose answer was lost may have been committed.
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from jobmaster.model.errors import (
    AccessRefused,
    ConfigError,
    Conflict,
    InputError,
    JobMasterError,
    OutcomeUnknown,
    Refused,
    SchemaMismatch,
    Unavailable,
    ValueRefused,
)
from jobmaster.settings.masking import mask_secrets

_PASSWORD = (asyncpg.InvalidAuthorizationSpecificationError,)  # and InvalidPasswordError below it
_PARAMETER = (
    asyncpg.UndefinedObjectError,
    asyncpg.InvalidParameterValueError,
    asyncpg.CantChangeRuntimeParamError,
)
"""Answers to a start-up message: a parameter of the DSN that the server does not know or take."""
_PREPARED = (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError)
_SCHEMA = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedObjectError,
    asyncpg.InvalidSchemaNameError,
)
_ROLLED_BACK = (
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InsufficientResourcesError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,
)
_UNFIT_ROW = (asyncpg.CheckViolationError, asyncpg.NotNullViolationError, asyncpg.ProgramLimitExceededError)
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    OSError,
    TimeoutError,
    EOFError,
)
DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    EOFError,
)
"""Errors that the driver raises."""

OWN_CONFLICT = "JM001"
"""State of errors that functions of the schema raise with a sentence and a hint for people."""

MIGRATE_HINT = "run `jobmaster db migrate`"


def connecting(error: Exception, place: str, *, accepted: bool = False) -> JobMasterError:
    """What it means that a connection could not be opened.

    Args:
        accepted: the server has accepted this program before. Then a refused password is an outage that ends when the
            password is corrected; a program that works meanwhile (with a store, with an open connection) must not give up.
    """
    if (pooler := _pooler(error)) is not None:
        return pooler
    if isinstance(error, _PASSWORD):
        said = f"the master database {place} does not accept this user or password"
        hint = "mend the user and password of master.dsn, or pg_hba.conf on the server"
        if accepted:
            return Unavailable(f"{said} any more: {error}", hint=hint)
        return Refused(f"{said}: {error}", hint=hint)
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return Refused(f"the master database {place} does not exist", hint="create it, or mend the name in master.dsn")
    if isinstance(error, _PARAMETER):
        return Refused(
            f"the master database {place} does not take a parameter: {error}",
            hint="correct the part after the ? in master.dsn",
        )
    if isinstance(error, asyncpg.ClientConfigurationError):
        return ConfigError(
            f"the driver cannot use the DSN of the master database {place}: {mask_secrets(str(error))}",
            hint="mend master.dsn, or the PG... variables of the environment",
        )
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return Unavailable(
            f"no host of the master database {place} is of the kind that is wanted: {error}",
            hint="is one of them the primary? target_session_attrs in master.dsn sets the kind",
        )
    if isinstance(error, TimeoutError):
        return Unavailable(f"the master database {place} did not answer in time")
    return Unavailable(f"the master database {place} cannot be reached: {_said(error)}")


def _pooler(error: Exception) -> AccessRefused | None:
    """A pooler between us and the master, by what PgBouncer and those built on it answer; ``None``: no sign of one.

    They refuse the settings that our connections start with. Configured to ignore those, they send the statements of one
    connection to several servers, where the prepared ones are unknown or exist already.
    """
    said = str(error)
    if not isinstance(error, _PREPARED) and "unsupported startup parameter" not in said:
        return None
    return AccessRefused(
        f"a pooler such as PgBouncer stands between this program and the master: {said.splitlines()[0]}",
        hint="connect directly: point master.dsn at PostgreSQL itself, which sees few connections (master.pool_size); only a "
        "producer may keep a pooler in transaction mode, with master.pooler: transaction",
    )


def calling(error: Exception, what: str, *, writes: bool, ids: Sequence[bytes] = ()) -> JobMasterError:
    """What it means that a statement failed.

    Args:
        what: name of the statement.
        writes: whether it may have changed something.
        ids: the jobs it was about.
    """
    if (pooler := _pooler(error)) is not None:
        return pooler
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return Unavailable(f"the master database is read-only: {error}", hint="point master.dsn at the primary")
    if getattr(error, "sqlstate", None) == OWN_CONFLICT:
        return Conflict(str(error).splitlines()[0], hint=getattr(error, "hint", None))
    if isinstance(error, _SCHEMA):
        return SchemaMismatch(f"the master's schema does not fit this program: {error}", hint=MIGRATE_HINT)
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        hint = "grant the rights to the user of master.dsn"
        return AccessRefused(f"the master does not allow {what}: {error}", hint=hint)
    if isinstance(error, _ROLLED_BACK):
        timed_out = isinstance(error, asyncpg.QueryCanceledError)
        blocked = isinstance(error, asyncpg.LockNotAvailableError)
        message = f"the master gave up {what}, nothing was changed: {error}"
        return Unavailable(message, timed_out=timed_out, blocked=blocked)
    if isinstance(error, (asyncpg.DataError, ValueError)):  # the driver's own check before sending is a ValueError
        kind = InputError if what.startswith(("intake/insert", "signals/hold", "uniqueness/")) else ValueRefused
        return kind(f"{what}: the master does not take a value: {error}")
    if isinstance(error, _UNFIT_ROW):
        return ValueRefused(f"{what}: the master does not take a row: {error}")
    if isinstance(error, _LOST):
        timed_out = isinstance(error, TimeoutError)
        said = "the master's answer did not come" if timed_out else "the connection was lost"
        if writes:
            return OutcomeUnknown(f"{what}: {said} ({_said(error)})", id_bytes=ids, timed_out=timed_out)
        return Unavailable(f"{what}: {said} ({_said(error)})", timed_out=timed_out)
    return Refused(f"the master refused {what}: {_said(error)}")


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
