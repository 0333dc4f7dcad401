"""Workflows: their start, and what people do with them. Triggers of ``job`` do the rest (migration 0030)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from jobmaster.master.driver.connection import Row, StatementRunner
from jobmaster.model.workflow import NewWorkflow, RunsOn, StepState, StepView, WorkflowState, WorkflowView


class Workflows:
    """``jobmaster.ports.WorkflowsPort`` on PostgreSQL."""

    def __init__(self, data: StatementRunner) -> None:
        self._data = data

    async def start(self, workflow: NewWorkflow) -> bool:
        """Store a workflow; its steps without parents become jobs. False: the id is known, and nothing was stored."""
        columns: list[Any] = [list(column) for column in zip(*workflow.steps, strict=True)]
        columns[3] = ["{" + ",".join(map(str, parents)) + "}" for parents in columns[3]]
        undoes = RunsOn.UNDO in columns[2]
        rows = await self._data.write(
            "workflows/start", workflow.id, workflow.name, undoes, workflow.args_bytes, *columns, ids=[workflow.id]
        )
        return bool(rows[0]["started"])

    async def cancel(self, workflow_id: bytes, actor: str) -> bool:
        """Begin nothing more of a workflow; False when it is not running any more, or compensates already."""
        rows = await self._data.write("workflows/cancel", workflow_id, actor, ids=[workflow_id])
        return bool(rows[0]["cancelled"])

    async def retry(self, workflow_id: bytes, actor: str) -> bool:
        """A workflow that has failed goes on from the steps that failed; False: it has not, or was undone."""
        rows = await self._data.write("workflows/retry", workflow_id, actor, ids=[workflow_id])
        return bool(rows[0]["resumed"])

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
        wanted = None if states is None else [state.value for state in states]
        rows = await self._data.read("workflows/list", None if ids is None else list(ids), wanted, name, before, limit)
        return [_workflow(row) for row in rows]

    async def steps(self, workflow_id: bytes) -> tuple[StepView, ...]:
        """The steps of a workflow, by number."""
        return tuple(_step(row) for row in await self._data.read("workflows/steps", workflow_id))


def _workflow(row: Row) -> WorkflowView:
    return WorkflowView(
        id=UUID(bytes=row["id"]),
        name=row["name"],
        state=WorkflowState(row["state"]),
        started_us=row["started_us"],
        ended_us=row["ended_us"],
        steps_total=row["steps"],
        steps_ended=row["ended_steps"],
        steps_failed=row["failed_steps"],
    )


def _step(row: Row) -> StepView:
    return StepView(
        number=row["step"],
        name=row["name"],
        state=StepState(row["state"]),
        runs_on=RunsOn(row["runs_on"]),
        parents=tuple(row["parents"]),
        handler=row["handler"],
        job=None if row["job_id"] is None else UUID(bytes=row["job_id"]),
        tries=row["tries"],
        error=row["error"] or "",
    )
