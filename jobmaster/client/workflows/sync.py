"""``SyncCluster.workflows``: the same for code without an event loop."""

from __future__ import annotations

import builtins
from collections.abc import Collection
from typing import TYPE_CHECKING, Any
from uuid import UUID

from jobmaster.client.workflows.definition import Flow
from jobmaster.client.workflows.workflows import WorkflowRef, Workflows
from jobmaster.handlers import Call
from jobmaster.model.flow.workflow import WorkflowState, WorkflowView

if TYPE_CHECKING:
    from jobmaster.client.sync import SyncCluster


class SyncWorkflows:
    """The workflows of a cluster. Made by ``SyncCluster``."""

    def __init__(self, cluster: SyncCluster) -> None:
        self._cluster = cluster

    def start(self, name: str, flow: Flow | Call[Any], *, workflow_id: UUID | None = None) -> UUID:
        """See ``Workflows.start``."""
        return self._cluster._call(lambda cluster: cluster.workflows.start(name, flow, workflow_id=workflow_id))

    @staticmethod
    def new_id() -> UUID:
        """See ``Workflows.new_id``."""
        return Workflows.new_id()

    def get(self, workflow: WorkflowRef) -> WorkflowView:
        """See ``Workflows.get``."""
        return self._cluster._call(lambda cluster: cluster.workflows.get(workflow))

    def list(
        self,
        *,
        state: WorkflowState | str | Collection[WorkflowState | str] | None = None,
        name: str | None = None,
        before: WorkflowRef | None = None,
        limit: int = 100,
    ) -> builtins.list[WorkflowView]:
        """See ``Workflows.list``."""
        return self._cluster._call(
            lambda cluster: cluster.workflows.list(state=state, name=name, before=before, limit=limit)
        )

    def wait(self, workflow: WorkflowRef, *, timeout: float | None = None) -> WorkflowView:
        """See ``Workflows.wait``."""
        return self._cluster._call(lambda cluster: cluster.workflows.wait(workflow, timeout=timeout))

    def cancel(self, workflow: WorkflowRef, *, actor: str = "client") -> WorkflowView:
        """See ``Workflows.cancel``."""
        return self._cluster._call(lambda cluster: cluster.workflows.cancel(workflow, actor=actor))

    def retry(self, workflow: WorkflowRef, *, actor: str = "client") -> WorkflowView:
        """See ``Workflows.retry``."""
        return self._cluster._call(lambda cluster: cluster.workflows.retry(workflow, actor=actor))
