"""A ``JobContext`` for a test that calls a handler as the function that it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from jobmaster.clock import new_id
from jobmaster.handlers import JobContext
from jobmaster.model import ids
from jobmaster.model.errors import InputError
from jobmaster.model.job import Headers, Priority
from jobmaster.model.suggestion import did_you_mean

_OWN = ("job_id", "tags", "metadata", "connection")


def job_context(
    *,
    job_id: UUID | bytes | str | None = None,
    tags: Sequence[str] = (),
    metadata: Mapping[str, str] | None = None,
    connection: Any = None,
    **over: Any,
) -> JobContext:
    """A context as the first attempt of a job has it: ``await resize(job_context(attempt=2), "a.png")``.

    Args:
        job_id: default: a new one.
        tags, metadata: of the job.
        connection: what ``ctx.transaction()`` gives, an asyncpg connection; the transaction is committed with the block.
        over: fields of ``JobContext`` in place of the defaults.

    Raises:
        InputError: there is no such field.
    """
    known = [name for name in JobContext.__struct_fields__ if name not in ("runtime", "headers", "job_id_bytes")]
    for name in over:
        if name not in known:
            near = did_you_mean(name, [*known, *_OWN])
            raise InputError(f"a job's context has no field {name!r}", hint=near or f"it has {', '.join(known)}")
    values: dict[str, Any] = {
        "job_id_bytes": new_id() if job_id is None else ids.parse(job_id),
        "token": 2,
        "handler": "test",
        "lane": "default",
        "priority": Priority.MEDIUM,
        "attempt": 1,
        "max_attempts": 3,
        "headers": Headers(tags=tuple(tags), metadata=dict(metadata or {})),
        "runtime": None if connection is None else _OnConnection(connection),
    }
    if "priority" in over:
        over["priority"] = Priority.parse(over["priority"])
    return JobContext(**{**values, **over})


class _OnConnection:
    """``ctx.transaction()`` on the connection of a test."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def confirmation(self) -> str:
        raise _not_confirmable()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction that ends with the block."""
        async with self._connection.transaction():
            yield self._connection

    async def send_message(self, handler: str, arguments: dict[str, object], key: str | None) -> None:
        raise InputError(
            "a context of job_context() has no outbox",
            hint="use run_handler(call(...)), or the fixture jobs, which has a cluster",
        )

    async def confirm(self, result: object = None) -> None:
        raise _not_confirmable()


def _not_confirmable() -> InputError:
    return InputError("a context of job_context() cannot be confirmed", hint="use run_handler(call(...))")
