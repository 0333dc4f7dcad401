"""``Cluster.outbox``: messages to other systems, sent when the caller's transaction is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobmaster.client.receipts import JobReceipt
from jobmaster.handlers.outbox import check_key, handler_of, message_key
from jobmaster.model.errors import InputError

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.client.options import SubmitOptions
    from jobmaster.client.sync import SyncCluster, SyncReceipt
    from jobmaster.client.transactions import ClusterTransaction


class Outbox:
    """The outbox of a cluster. Made by ``Cluster``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def send(
        self, destination: str, payload: object = None, *, connection: Any, key: str | None = None
    ) -> JobReceipt[Any]:
        """Send a message when, and only if, the caller's transaction is committed; the receipt of the job that sends it.

        Args:
            destination: as given to ``@handlers.outbox(destination)``.
            payload: what its handler gets as ``payload``.
            connection: a connection with an open transaction on the master's database, as for ``submit``.
            key: what its handler gets as ``key``: the same in every attempt to send. The same key again, for the same
                destination and payload, is the same message. Default: a new one.

        Raises:
            InputError: there is no connection, or one of these cannot be meant.
            UnknownHandler: no agent has declared the destination.
            Conflict: the key was sent with another payload.
        """
        handler, arguments, options = _message(destination, payload, key)
        options["connection"] = _given(connection)
        return await self._cluster.submit(handler, arguments, **options)


class SyncOutbox:
    """The outbox of a cluster. Made by ``SyncCluster``."""

    def __init__(self, cluster: SyncCluster) -> None:
        self._cluster = cluster

    def send(
        self, destination: str, payload: object = None, *, connection: Any, key: str | None = None
    ) -> SyncReceipt[Any]:
        """See ``Outbox.send``."""
        handler, arguments, options = _message(destination, payload, key)
        options["connection"] = _given(connection)
        return self._cluster.submit(handler, arguments, **options)


class TransactionOutbox:
    """The outbox of one transaction: ``tx.outbox``. Made by ``ClusterTransaction``."""

    def __init__(self, transaction: ClusterTransaction) -> None:
        self._transaction = transaction

    async def send(self, destination: str, payload: object = None, *, key: str | None = None) -> JobReceipt[Any]:
        """As ``Outbox.send``, in this transaction."""
        handler, arguments, options = _message(destination, payload, key)
        return await self._transaction.submit(handler, arguments, **options)


def _message(destination: str, payload: object, key: str | None) -> tuple[str, dict[str, object], SubmitOptions]:
    """Handler, arguments and options of the job that sends a message."""
    arguments: dict[str, object] = {"key": message_key() if key is None else check_key(key), "payload": payload}
    options: SubmitOptions = {} if key is None else {"idempotency_key": key}
    return handler_of(destination), arguments, options


def _given(connection: object) -> object:
    if connection is None:
        raise InputError(
            "a message of the outbox belongs to a transaction",
            hint="give the connection of your transaction, connection=...; without one, submit a job",
        )
    return connection
