"""Requests of clients and operators about one job: cancel, confirm; lines of the operator log."""

from __future__ import annotations

import json
from collections.abc import Mapping

from jobmaster.master.driver.connection import StatementRunner
from jobmaster.master.driver.resent_writes import CurrentRow
from jobmaster.model.errors import OutcomeUnknown
from jobmaster.model.ids import Identity
from jobmaster.model.job import JobState, NewJob

_TRIES = 5


class Requests:
    """``jobmaster.ports.Requests`` on PostgreSQL."""

    def __init__(self, data: StatementRunner) -> None:
        self._data = data

    async def cancel(self, job_id: bytes, *, tombstone: NewJob | None, actor: str) -> JobState | None:
        """Cancel a job; returns its state after the call.

        HELD -> CANCELLED; in flight -> a flag that its owner obeys (the state stays); final: nothing. Without a row, a
        ``tombstone`` becomes a CANCELLED row that later copies and outcomes are refused by; without one: ``None``.
        """
        for _ in range(_TRIES):
            rows = await self._data.write("requests/cancel", job_id, actor, ids=[job_id])
            if not rows:
                rows = await self._data.read("queries/states", [job_id], job_id, job_id)
                if rows and not JobState(rows[0]["state"]).final:
                    continue  # the row was inserted between the two statements, and it has no cancel request yet
            if not rows and tombstone is None:
                return None
            if not rows and tombstone is not None:
                rows = await self._data.write("requests/cancel_rowless", *tombstone, actor, ids=[job_id])
            if rows:
                return JobState(rows[0]["state"])
        raise OutcomeUnknown("the job's row kept changing under the cancel", id_bytes=[job_id])

    async def confirm(
        self, job_id: bytes, identity: Identity, result: bytes | None, actor: str
    ) -> tuple[bool, JobState | None]:
        """Confirm a run from outside. Returns: whether it is confirmed (also when it was before), and the job's state now."""
        rows = await self._data.write("requests/confirm", job_id, *identity, result, actor, ids=[job_id])
        if rows:
            return True, JobState(rows[0]["state"])
        found = [CurrentRow(*each) for each in await self._data.read("jobs/peek", [job_id], job_id, job_id)]
        if not found:
            return False, None
        state = JobState(found[0].state)
        return state is JobState.SUCCEEDED and found[0].identity == tuple(identity), state

    async def note(self, actor: str, action: str, acts: Mapping[str, Mapping[str, object]]) -> None:
        """A line of the operator log for each subject of an action that has no line of its own.

        Args:
            acts: details by subject.
        """
        details = [json.dumps(detail) for detail in acts.values()]
        await self._data.write("maintenance/note_operations", actor, action, list(acts), details)

    async def note_once(self, actor: str, action: str, subject: str, detail: Mapping[str, object]) -> None:
        """A line of the operator log, unless there is one of this action and detail: safe to repeat, for an act that is
        repeated until its line is written."""
        await self._data.write("requests/note_once", actor, action, subject, json.dumps(detail))
