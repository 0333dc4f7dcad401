"""Workflows with short names: made, and driven as an agent drives them."""

from __future__ import annotations

from typing import Any

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.model.flow.workflow import NewStep, NewWorkflow, StepState, WorkflowView
from jobmaster.model.ids import Fence, text
from jobmaster.model.job import FinalRow, Headers, SignalWait
from tests.integration.postgres.fixture import ERROR, LANE, PRIORITY, MasterFixture


def workflow_id() -> bytes:
    return new_id()[:12] + bytes(4)


def step(
    of: bytes, number: int, *parents: int, on: str = "success", args: bytes = b"{}", refs: str = "[]",
    choice: str | None = None, delay_us: int = 0, kept: bool = True, waits: SignalWait | None = None,
) -> NewStep:  # fmt: skip
    headers = encode_headers(Headers(workflow=(text(of), number), signal=waits))
    return NewStep(
        number, f"s{number}", on, parents, choice, "handler", PRIORITY, LANE, args, refs, headers, delay_us, kept
    )


async def start(db: MasterFixture, of: bytes, *steps: NewStep, args_bytes: int = 1000) -> None:
    assert await db.master.workflows.start(NewWorkflow(of, "order", args_bytes, steps))


async def read(db: MasterFixture, of: bytes) -> WorkflowView:
    found = await db.master.workflows.get(of)
    assert found is not None
    return found


async def states(db: MasterFixture, of: bytes) -> list[StepState]:
    return [each.state for each in await db.master.workflows.steps(of)]


async def job_of(db: MasterFixture, of: bytes, number: int) -> bytes:
    job = (await db.master.workflows.steps(of))[number - 1].job
    assert job is not None
    return job.bytes


async def fetched(db: MasterFixture, count: int = 10) -> dict[bytes, Any]:
    answer = await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, count)
    return {entry.id: entry for entry in answer.entries}


def final(fence: Fence, entry: Any, *, result: bytes | None = b"1", state: str = "SUCCEEDED") -> FinalRow:
    won = state == "SUCCEEDED"
    return FinalRow(
        entry.id, state, PRIORITY, LANE, entry.handler, entry.token, fence.bucket_id, fence.epoch, 0, 0, 0, 5, 7,
        entry.args, entry.headers, result if won else None, None if won else ERROR,
    )  # fmt: skip


async def end(
    db: MasterFixture, of: bytes, number: int, *, result: bytes | None = b"1", state: str = "SUCCEEDED"
) -> None:
    """Onboard the step's job and record its outcome, as an agent does."""
    job = await job_of(db, of, number)
    entry = (await fetched(db))[job]
    written = await db.master.outcomes.record_final([final(db.fence, entry, result=result, state=state)])
    assert written.accepted == {job}
