"""A cluster in memory has no workflows: what follows the end of a step is decided by PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from jobmaster.model.errors import InputError
from jobmaster.model.flow.workflow import NewWorkflow, StepView, WorkflowState, WorkflowView


class MemoryWorkflows:
    """``jobmaster.ports.WorkflowsPort`` that refuses every call, after the client has checked the workflow."""

    async def start(self, workflow: NewWorkflow) -> bool:
        """Refused."""
        _refuse()

    async def cancel(self, workflow_id: bytes, actor: str) -> tuple[bool, Sequence[bytes]]:
        """Refused."""
        _refuse()

    async def retry(self, workflow_id: bytes, actor: str) -> bool:
        """Refused."""
        _refuse()

    async def get(self, workflow_id: bytes) -> WorkflowView | None:
        """There are none."""
        return None

    async def list(
        self,
        limit: int,
        *,
        states: Sequence[WorkflowState] | None = None,
        name: str | None = None,
        before: bytes | None = None,
    ) -> list[WorkflowView]:
        """There are none."""
        return []

    async def steps(self, workflow_id: bytes) -> tuple[StepView, ...]:
        """There are none."""
        return ()


def _refuse() -> NoReturn:
    raise InputError(
        "a cluster in memory runs no workflow: the master decides what follows a step",
        hint="use the fixture jobmaster_cluster, which has real servers; what the steps do can be tested with run_handler",
    )
