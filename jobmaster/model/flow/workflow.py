"""A workflow: steps that run after one another, as it is stored and as a person sees it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from jobmaster.model.job_view import moment


class WorkflowState(StrEnum):
    """State of a workflow."""

    RUNNING = "RUNNING"
    FAILING = "FAILING"
    """A step has failed; compensations begin when the steps that run have ended."""
    CANCELLING = "CANCELLING"
    """It was cancelled; steps still run."""
    COMPENSATING = "COMPENSATING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        """Nothing more happens, unless a person retries it."""
        return self in FINAL_WORKFLOW_STATES


FINAL_WORKFLOW_STATES = frozenset({WorkflowState.SUCCEEDED, WorkflowState.FAILED, WorkflowState.CANCELLED})


class StepState(StrEnum):
    """State of a step. A step that has a job has the end of its job."""

    PENDING = "PENDING"
    """Its parents have not ended."""
    STARTED = "STARTED"
    """It has a job."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"
    SKIPPED = "SKIPPED"
    """A branch that was not taken, or a failure that did not happen."""
    BLOCKED = "BLOCKED"
    """It never ran, because a step before it failed."""


class RunsOn(StrEnum):
    """What makes a step run, once its parents have ended."""

    SUCCESS = "success"
    """No parent failed, and one succeeded."""
    FAILURE = "failure"
    """A parent failed, was cancelled or expired."""
    END = "end"
    """However they ended."""
    UNDO = "undo"
    """The compensation of its parent, when the workflow fails."""


class NewStep(NamedTuple):
    """A step on its way into the master, in the order of the columns of ``workflows/start``."""

    number: int
    name: str
    runs_on: str
    parents: tuple[int, ...]
    choice: str | None
    """JSON of ``{"step", "path", "in", "else"}``."""
    handler: str
    priority: int
    lane: str
    args: bytes
    refs: str
    """JSON of ``[[position, step, path]...]``, the last position first."""
    headers: bytes
    delay_us: int
    kept: bool


class NewWorkflow(NamedTuple):
    """A workflow on its way into the master."""

    id: bytes
    name: str
    args_bytes: int
    """Limit of the arguments of a step with the results in them."""
    steps: tuple[NewStep, ...]


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """A step as it was when it was read."""

    number: int
    name: str
    state: StepState
    runs_on: RunsOn
    parents: tuple[int, ...]
    """Numbers of the steps before it; of a compensation, the step that it undoes."""
    handler: str
    job: UUID | None
    """Its latest job."""
    tries: int
    """Jobs that it has had: one, and one more for each retry of the workflow."""
    error: str = ""
    """Why it failed, in one line, while its job is in the master."""


class WorkflowView(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow as it was when it was read. Times are microseconds since 1970 by the master's clock."""

    id: UUID
    name: str
    state: WorkflowState
    started_us: int
    ended_us: int | None
    steps_total: int
    """Without compensations."""
    steps_ended: int
    steps_failed: int
    steps: tuple[StepView, ...] = ()
    """Of ``get``; a list of workflows has none."""

    @property
    def started_at(self) -> datetime | None:
        """Time of the start, aware, in UTC."""
        return moment(self.started_us)

    @property
    def ended_at(self) -> datetime | None:
        """Time of the end, aware, in UTC; ``None``: it has not ended."""
        return moment(self.ended_us)

    def step(self, name: str) -> StepView:
        """The step of a name; ``KeyError`` when there is none."""
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)
