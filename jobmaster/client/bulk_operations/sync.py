"""``SyncCluster.bulk``: the same for code without an event loop."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

from jobmaster.client.bulk_operations.operations import COUNTED_MAX, LIMIT, BulkName, BulkRef
from jobmaster.client.jobs.changes import ChangeOptions
from jobmaster.client.jobs.job_filters import JobFilters
from jobmaster.model.flow.bulk_operation import BulkPreview, BulkState, BulkView

if TYPE_CHECKING:
    from jobmaster.client.sync import SyncCluster


class SyncBulkOperations:
    """The bulk operations of a cluster. Made by ``SyncCluster``."""

    def __init__(self, cluster: SyncCluster) -> None:
        self._cluster = cluster

    def preview(
        self,
        kind: BulkName,
        /,
        *,
        change: ChangeOptions | None = None,
        at_most: int = COUNTED_MAX,
        **filters: Unpack[JobFilters],
    ) -> BulkPreview:
        """See ``BulkOperations.preview``."""
        return self._cluster._call(
            lambda cluster: cluster.bulk.preview(kind, change=change, at_most=at_most, **filters)
        )

    def start(
        self,
        kind: BulkName,
        /,
        *,
        change: ChangeOptions | None = None,
        reason: str = "",
        actor: str = "client",
        **filters: Unpack[JobFilters],
    ) -> BulkView:
        """See ``BulkOperations.start``."""
        return self._cluster._call(
            lambda cluster: cluster.bulk.start(kind, change=change, reason=reason, actor=actor, **filters)
        )

    def get(self, operation: BulkRef) -> BulkView:
        """See ``BulkOperations.get``."""
        return self._cluster._call(lambda cluster: cluster.bulk.get(operation))

    def list(
        self,
        *,
        state: BulkState | str | Sequence[BulkState | str] | None = None,
        before: BulkRef | None = None,
        limit: int = LIMIT,
    ) -> builtins.list[BulkView]:
        """See ``BulkOperations.list``."""
        return self._cluster._call(lambda cluster: cluster.bulk.list(state=state, before=before, limit=limit))

    def cancel(self, operation: BulkRef, *, actor: str = "client") -> BulkView:
        """See ``BulkOperations.cancel``."""
        return self._cluster._call(lambda cluster: cluster.bulk.cancel(operation, actor=actor))

    def wait(
        self,
        operation: BulkRef,
        *,
        timeout: float | None = None,
        on_progress: Callable[[BulkView], object] | None = None,
    ) -> BulkView:
        """See ``BulkOperations.wait``; ``on_progress`` is called in the thread of the event loop."""
        return self._cluster._call(
            lambda cluster: cluster.bulk.wait(operation, timeout=timeout, on_progress=on_progress)
        )
