"""``SyncCluster.inspect``: the same for code without an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack
from uuid import UUID

from jobmaster.client.inspect.failures import GROUPS
from jobmaster.client.inspect.inspection import LISTED
from jobmaster.client.jobs.job_filters import JobFilters
from jobmaster.model.flow.uniqueness import UniqueKeyView
from jobmaster.model.inspection.explanation import Explanation
from jobmaster.model.inspection.failures import Failures
from jobmaster.model.inspection.views import (
    AgentView,
    BucketEvent,
    Buckets,
    HostView,
    OperatorAct,
    Overview,
    RescueView,
)

if TYPE_CHECKING:
    from jobmaster.client.sync import SyncCluster, SyncJobRef


class SyncInspection:
    """What operators see of a cluster. Made by ``SyncCluster``."""

    def __init__(self, cluster: SyncCluster) -> None:
        self._cluster = cluster

    def explain(self, job: SyncJobRef) -> Explanation:
        """See ``Inspection.explain``."""
        plain: Any = getattr(job, "_receipt", job)
        return self._cluster._call(lambda cluster: cluster.inspect.explain(plain))

    def failures(self, *, limit: int = GROUPS, **filters: Unpack[JobFilters]) -> Failures:
        """See ``Inspection.failures``."""
        return self._cluster._call(lambda cluster: cluster.inspect.failures(limit=limit, **filters))

    def agents(self, *, ended: bool = False) -> list[AgentView]:
        """See ``Inspection.agents``."""
        return self._cluster._call(lambda cluster: cluster.inspect.agents(ended=ended))

    def hosts(self) -> list[HostView]:
        """See ``Inspection.hosts``."""
        return self._cluster._call(lambda cluster: cluster.inspect.hosts())

    def buckets(self, *, retired: bool = False, depths: bool = True) -> Buckets:
        """See ``Inspection.buckets``."""
        return self._cluster._call(lambda cluster: cluster.inspect.buckets(retired=retired, depths=depths))

    def bucket_history(self, bucket: UUID | str) -> list[BucketEvent]:
        """See ``Inspection.bucket_history``."""
        return self._cluster._call(lambda cluster: cluster.inspect.bucket_history(bucket))

    def rescues(
        self, *, since: float | timedelta | None = None, unfinished: bool = False, limit: int = LISTED
    ) -> list[RescueView]:
        """See ``Inspection.rescues``."""
        return self._cluster._call(
            lambda cluster: cluster.inspect.rescues(since=since, unfinished=unfinished, limit=limit)
        )

    def operator_log(
        self,
        *,
        subject: str | None = None,
        actor: str | None = None,
        since: float | timedelta | None = None,
        limit: int = LISTED,
    ) -> list[OperatorAct]:
        """See ``Inspection.operator_log``."""
        return self._cluster._call(
            lambda cluster: cluster.inspect.operator_log(subject=subject, actor=actor, since=since, limit=limit)
        )

    def overview(self, *, agents: Sequence[AgentView] | None = None, buckets: Buckets | None = None) -> Overview:
        """See ``Inspection.overview``."""
        return self._cluster._call(lambda cluster: cluster.inspect.overview(agents=agents, buckets=buckets))

    def unique_keys(
        self, handler: str | None = None, key: str | None = None, *, limit: int = LISTED
    ) -> list[UniqueKeyView]:
        """See ``Inspection.unique_keys``."""
        return self._cluster._call(lambda cluster: cluster.inspect.unique_keys(handler, key, limit=limit))
