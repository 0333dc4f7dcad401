"""Port of the master for workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobmaster.model.workflow import NewWorkflow, StepView, WorkflowState, WorkflowView


class WorkflowsPort(Protocol):
    """For clients. What follows the end of a step is decided in the master, in the statement that ends its job."""

    async def start(self, workflow: NewWorkflow) -> bool:
        """Store a workflow; its steps without parents become jobs. False: the id is known, and nothing was stored."""
        ...

    async def cancel(self, workflow_id: bytes, actor: str) -> bool:
        """Begin nothing more of a workflow; False when it is not running any more, or compensates already."""
        ...

    async def retry(self, workflow_id: bytes, actor: str) -> bool:
        """A workflow that has failed goes on from the steps that failed; False: it has not, or was undone."""
        ...

    async def list(
        self,
        limit: int,
        *,
        ids: Sequence[bytes] | None = None,
        states: Sequence[WorkflowState] | None = None,
        name: str | None = None,
        before: bytes | None = None,
    ) -> list[WorkflowView]:
        """Workflows without their steps, the newest first."""
        ...

    async def steps(self, workflow_id: bytes) -> tuple[StepView, ...]:
        """The steps of a workflow, by number."""
        ...
