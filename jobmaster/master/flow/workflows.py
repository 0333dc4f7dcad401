"""Workflows: their start, and what people do with them. Triggers of ``job`` do the rest (migration 0030)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from jobmaster.codec import decode_error
from jobmaster.master.driver.connection import Row, StatementRunner
from jobmaster.model.flow.workflow import NewWorkflow, RunsOn, StepState, StepView, WorkflowState, WorkflowView


class Workflows:
    """``jobmaster.ports.WorkflowsPort`` on PostgreSQL."""

    def __init__(self, data: StatementRunner) -> None:
        self._data = data

    async def start(self, workflow: NewWorkflow) -> bool | None:
        """Store a workflow; its steps without parents become jobs. False: the id is known, and nothing was stored. ``None``:
        it is known with another name or other steps."""
        columns: list[Any] = [list(column) for column in zip(*workflow.steps, strict=True)]
        columns[3] = ["{" + ",".join(map(str, parents)) + "}" for parents in columns[3]]
        undoes = RunsOn.UNDO in columns[2]
        rows = await self._data.write(
            "workflows/start", workflow.id, workflow.name, undoes, workflow.args_bytes, *columns, ids=[workflow.id]
        )
        started: bool | None = rows[0]["started"]
        return started

    async def cancel(self, workflow_id: bytes, actor: str) -> tuple[bool, Sequence[bytes]]:
        """Begin nothing more of a workflow, and request the cancellation of the jobs of its steps that run.

        Returns: False when it is not running any more, or is cancelled or compensates already; and the jobs, whose owners may
            be notified, also when it was cancelled before.
        """
        rows = await self._data.write("workflows/cancel", workflow_id, actor, ids=[workflow_id])
        return rows[0]["cancelled"], rows[0]["jobs"]

    async def retry(self, workflow_id: bytes, actor: str) -> bool:
        """A workflow that has failed goes on from the steps that failed; False: it has not, or was undone."""
        rows = await self._data.write("workflows/retry", workflow_id, actor, ids=[workflow_id])
        return bool(rows[0]["resumed"])

    async def get(self, workflow_id: bytes) -> WorkflowView | None:
        """A workflow without its steps."""
        rows = await self._data.read("workflows/get", workflow_id)
        return _workflow(rows[0]) if rows else None

    async def list(
        self,
        limit: int,
        *,
        states: Sequence[WorkflowState] | None = None,
        name: str | None = None,
        before: bytes | None = None,
    ) -> list[WorkflowView]:
        """Workflows without their steps, the newest first."""
        wanted = [state.value for state in dict.fromkeys(WorkflowState if states is None else states)]
        rows = await self._data.read("workflows/list", wanted, name, before, limit)
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
        error=row["error"] or _reason(row["job_error"]),
    )


def _reason(error: bytes | None) -> str:
    """The error of a job in one line."""
    if not error:
        return ""
    info = decode_error(error)
    kind = info.type.rpartition(".")[2]
    return f"{kind}: {info.message}" if kind and info.message else kind or info.message
