"""Submits that share the fate of the caller's own transaction on the master's database."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from jobmaster.client.options import SubmitOptions
from jobmaster.client.outbox.outbox import TransactionOutbox
from jobmaster.client.receipts import JobReceipt
from jobmaster.handlers import Call
from jobmaster.model.errors import InputError, JobMasterError
from jobmaster.rules.placement import Route

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster

R = TypeVar("R")

_log = logging.getLogger(__name__)


class ClusterTransaction:
    """``async with cluster.transaction(connection) as tx``: commits with the block, rolls back when it raises; after the
    commit the agents that serve the jobs are notified, so they start at once instead of at the next onboarding scan."""

    def __init__(self, cluster: Cluster, connection: Any) -> None:
        # A connection of psycopg has a method of this name, too, with another meaning.
        if not hasattr(connection, "transaction") or hasattr(connection, "pgconn"):
            raise InputError(
                f"transaction() needs an asyncpg connection, not {type(connection).__name__}",
                hint="with another driver, submit(..., connection=) joins the transaction and notifies the agents itself",
            )
        self._cluster = cluster
        self._connection = connection
        self._transaction: Any = None
        self._hints: set[tuple[str, int]] = set()
        self.outbox = TransactionOutbox(self)
        """Messages to other systems: ``await tx.outbox.send("webhooks", {...})``."""

    @overload
    async def submit(self, call: Call[R], /, **options: Unpack[SubmitOptions]) -> JobReceipt[R]: ...

    @overload
    async def submit(
        self, handler: Callable[..., Any] | str, args: Any = None, /, **options: Unpack[SubmitOptions]
    ) -> JobReceipt[Any]: ...

    async def submit(
        self, handler: Call[Any] | Callable[..., Any] | str, args: Any = None, /, **options: Unpack[SubmitOptions]
    ) -> JobReceipt[Any]:
        """``Cluster.submit`` inside this transaction: the receipt's level is ``transaction``."""
        if self._transaction is None:
            raise InputError(
                "the transaction is not open", hint="use it as `async with cluster.transaction(conn) as tx`"
            )
        receipt, request = await self._cluster._submit_within(self._connection, handler, args, options)
        if self._cluster._route_of(request) is not Route.HELD or not request.job.due_us:
            self._hints.add((request.job.lane, request.job.priority))
        return receipt

    async def __aenter__(self) -> Self:
        self._transaction = self._connection.transaction()
        await self._transaction.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transaction, self._transaction = self._transaction, None
        if kind is not None:
            await transaction.rollback()
            return
        await transaction.commit()
        for lane, priority in self._hints:
            await self._hint(lane, priority)

    async def _hint(self, lane: str, priority: int) -> None:
        """The rows are committed: a hint that fails costs a second, not a job."""
        try:
            await self._cluster._hint_after_commit(lane, priority)
        except JobMasterError as failure:
            _log.debug("no hint for lane %s, priority %s: %s", lane, priority, failure)
