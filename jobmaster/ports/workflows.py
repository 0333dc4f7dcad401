"""Ports of the master for workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobmaster.model.flow.workflow import NewWorkflow, StepView, WorkflowState, WorkflowView
from jobmaster.model.ids import Fence
from jobmaster.model.job import FinalRow
from jobmaster.ports.master_answers import FinishedSteps, StepScope


class StepOutcomes(Protocol):
    """For the outcome writer of an agent."""

    async def finish_steps(self, fence: Fence, rows: Sequence[FinalRow], scope: StepScope) -> FinishedSteps:
        """``record_final`` of outcomes of steps of workflows; next steps that fit become ASSIGNED to the bucket, at most as
        many as have ended."""
        ...


class WorkflowsPort(Protocol):
    """For clients. What follows the end of a step is decided in the master, in the statement that ends its job."""

    async def start(self, workflow: NewWorkflow) -> bool | None:
        """Store a workflow; its steps without parents become jobs. False: the id is known, and nothing was stored. ``None``:
        it is known with another name or other steps."""
        ...

    async def cancel(self, workflow_id: bytes, actor: str) -> tuple[bool, Sequence[bytes]]:
        """Begin nothing more of a workflow, and request the cancellation of the jobs of its steps that run.

        Returns: False when it is not running any more, or is cancelled or compensates already; and the jobs, whose owners may
            be notified, also when it was cancelled before.
        """
        ...

    async def retry(self, workflow_id: bytes, actor: str) -> bool:
        """A workflow that has failed goes on from the steps that failed; False: it has not, or was undone."""
        ...

    async def get(self, workflow_id: bytes) -> WorkflowView | None:
        """A workflow without its steps."""
        ...

    async def list(
        self,
        limit: int,
        *,
        states: Sequence[WorkflowState] | None = None,
        name: str | None = None,
        before: bytes | None = None,
    ) -> list[WorkflowView]:
        """Workflows without their steps, the newest first."""
        ...

    async def steps(self, workflow_id: bytes) -> tuple[StepView, ...]:
        """The steps of a workflow, by number."""
        ...
