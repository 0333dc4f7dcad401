"""Batches in plain code."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack
from uuid import UUID

from jobmaster.client.batches.batch import Batch
from jobmaster.client.batches.batches import LIMIT, BatchRef
from jobmaster.client.batches.options import BatchOptions, check_batch_options
from jobmaster.client.bulk import BulkSummary, Items
from jobmaster.client.options import BulkOptions, SubmitOptions
from jobmaster.handlers import Call
from jobmaster.model.errors import InputError
from jobmaster.model.flow.batch import BatchState, BatchView

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.client.sync import SyncCluster, SyncReceipt


class SyncBatch:
    """A batch to which jobs are added, for plain code. Made by ``SyncCluster.batch``; usable once.

    ::

        with cluster.batch("thumbnails", on_complete=call(report)) as batch:
            batch.submit_many(call(resize, path) for path in paths)
        view = batch.wait()
    """

    def __init__(self, cluster: SyncCluster, name: str, options: BatchOptions) -> None:
        check_batch_options(name, options)
        self._cluster = cluster
        self._name = name
        self._options = options
        self._made: Batch | None = None

    @property
    def _batch(self) -> Batch:
        if self._made is None:
            raise InputError("the batch is not open", hint="use it in a with statement")
        return self._made

    @property
    def id(self) -> UUID:
        """Id of the batch; no job has it."""
        return self._batch.id

    @property
    def submitted(self) -> int:
        """Jobs that were acknowledged so far."""
        return self._batch.submitted

    def submit(
        self,
        handler: Call[Any] | Callable[..., Any] | str,
        args: Mapping[str, object] | None = None,
        /,
        **options: Unpack[SubmitOptions],
    ) -> SyncReceipt[Any]:
        """See ``Batch.submit``."""
        receipt = self._cluster._call(lambda cluster: self._batch.submit(handler, args, **options))
        return self._cluster._receipt(receipt)

    def submit_many(
        self, items: Items, /, handler: Callable[..., Any] | str | None = None, **options: Unpack[BulkOptions]
    ) -> BulkSummary:
        """See ``Batch.submit_many``."""
        return self._cluster._call(lambda cluster: self._batch.submit_many(items, handler, **options))

    def get(self) -> BatchView:
        """See ``Batch.get``."""
        return self._cluster._call(lambda cluster: self._batch.get())

    def progress(self) -> BatchView:
        """See ``Batch.progress``."""
        return self._cluster._call(lambda cluster: self._batch.progress())

    def wait(self, timeout: float | None = None) -> BatchView:
        """See ``Batch.wait``."""
        return self._cluster._call(lambda cluster: self._batch.wait(timeout))

    def cancel(self, *, actor: str = "client") -> BatchView:
        """See ``Batch.cancel``."""
        return self._cluster._call(lambda cluster: self._batch.cancel(actor=actor))

    def close(self) -> None:
        """See ``Batch.close``."""
        self._cluster._call(lambda cluster: self._batch.close())

    def __enter__(self) -> Self:
        if self._made is not None:
            raise InputError(f"batch {self._name!r} has been used", hint="call cluster.batch() again")

        async def opened(cluster: Cluster) -> Batch:
            return await cluster.batch(self._name, **self._options).__aenter__()

        self._made = self._cluster._call(opened)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster._call(lambda cluster: self._batch.__aexit__(kind, error, trace))


class SyncBatches:
    """The batches of a cluster. Made by ``SyncCluster``."""

    def __init__(self, cluster: SyncCluster) -> None:
        self._cluster = cluster

    def get(self, batch: BatchRef | SyncBatch) -> BatchView:
        """See ``Batches.get``."""
        return self._cluster._call(lambda cluster: cluster.batches.get(_ref(batch)))

    def progress(self, batch: BatchRef | SyncBatch) -> BatchView:
        """See ``Batches.progress``."""
        return self._cluster._call(lambda cluster: cluster.batches.progress(_ref(batch)))

    def list(
        self,
        *,
        state: BatchState | str | Sequence[BatchState | str] | None = None,
        name: str | None = None,
        key: str | None = None,
        before: BatchRef | None = None,
        limit: int = LIMIT,
    ) -> builtins.list[BatchView]:
        """See ``Batches.list``."""
        return self._cluster._call(
            lambda cluster: cluster.batches.list(state=state, name=name, key=key, before=before, limit=limit)
        )

    def wait(self, batch: BatchRef | SyncBatch, *, timeout: float | None = None) -> BatchView:
        """See ``Batches.wait``."""
        return self._cluster._call(lambda cluster: cluster.batches.wait(_ref(batch), timeout=timeout))

    def cancel(self, batch: BatchRef | SyncBatch, *, actor: str = "client") -> BatchView:
        """See ``Batches.cancel``."""
        return self._cluster._call(lambda cluster: cluster.batches.cancel(_ref(batch), actor=actor))

    def retry_failed(self, batch: BatchRef | SyncBatch, *, actor: str | None = None) -> BatchView:
        """See ``Batches.retry_failed``. Returns the new batch as it is now."""

        async def retried(cluster: Cluster) -> BatchView:
            return await (await cluster.batches.retry_failed(_ref(batch), actor=actor)).get()

        return self._cluster._call(retried)


def _ref(batch: BatchRef | SyncBatch) -> BatchRef:
    return batch._batch if isinstance(batch, SyncBatch) else batch
