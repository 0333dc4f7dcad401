"""Bulk operations: their rows, the jobs that fit, and the pages that are written."""

from __future__ import annotations

import builtins
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from jobmaster.master.driver.batches import columns
from jobmaster.master.driver.connection import StatementRunner
from jobmaster.model.flow.bulk_operation import (
    BulkEnd,
    BulkKind,
    BulkPage,
    BulkRetry,
    BulkState,
    BulkStep,
    BulkView,
    BulkWork,
    FoundBulkJob,
    NewBulk,
    SkipCause,
)
from jobmaster.model.job import JobState
from jobmaster.model.job_change import NewValues
from jobmaster.model.job_view import JobFilter


class BulkOperations:
    """``jobmaster.ports.BulkOperations`` on PostgreSQL."""

    def __init__(self, data: StatementRunner, control: StatementRunner) -> None:
        self._data = data
        self._control = control

    async def find(
        self,
        kind: BulkKind,
        chosen: JobFilter,
        change: NewValues,
        lowest: bytes,
        highest: bytes,
        *,
        reads: int,
        limit: int,
        payload: bool,
    ) -> BulkStep:
        """The oldest jobs of a range of ids that fit: one step."""
        bounds = (lowest, highest, reads, limit, change.due_us, payload)
        rows = await self._data.read("bulk/find", kind.value, chosen.as_json, *bounds)
        return BulkStep(rows[0]["read_to"], [_found(tuple(row)[1:]) for row in rows if row["id"] is not None])

    # ------------------------------------------------------------ programs and people

    async def start(self, new: NewBulk) -> None:
        """A new operation."""
        chosen, change = new.chosen.as_json, json.dumps(_given(new.change))
        bounds = (new.lowest, new.highest, new.actor, new.reason, new.unsearched)
        await self._control.write("bulk/start", new.id, new.kind.value, chosen, change, *bounds)

    async def list(
        self,
        operation: bytes | None = None,
        *,
        states: Sequence[BulkState] = (),
        before: bytes | None = None,
        limit: int = 100,
    ) -> builtins.list[BulkView]:
        """Operations, the newest first."""
        rows = await self._control.read("bulk/list", operation, [str(state) for state in states], before, limit)
        found = []
        for row in rows:
            values = dict(row)
            values["filter_json"], values["change_json"] = values.pop("filter").encode(), values.pop("change").encode()
            values["skipped"] = json.loads(values["skipped"])
            kind, state = BulkKind(values.pop("kind")), BulkState(values.pop("state"))
            found.append(BulkView(id_bytes=values.pop("id"), kind=kind, state=state, **values))
        return found

    async def cancel(self, operation: bytes, actor: str) -> bool:
        """End an operation; False: it has ended, or there is none."""
        return bool(await self._control.write("bulk/cancel", operation, actor))

    # ------------------------------------------------------------ the leader

    async def next(self) -> BulkWork | None:
        """The oldest operation that has not ended."""
        rows = await self._control.read("bulk/next")
        if not rows:
            return None
        id_, kind, chosen, change, lowest, highest, cursor, ended = rows[0]
        given = json.loads(chosen)
        unknown = given.keys() - set(JobFilter.__struct_fields__)
        admits, new = msgspec.convert(given, JobFilter), NewValues(**json.loads(change))
        return BulkWork(id_, BulkKind(kind), admits, new, lowest, highest, cursor, ", ".join(sorted(unknown)), ended)

    async def cancel_page(self, page: BulkPage, job_ids: Sequence[bytes], states: Sequence[JobState]) -> int | None:
        """Cancel jobs, or request it."""
        return await self._page("bulk/cancel_page", page, job_ids, [str(state) for state in states])

    async def reschedule_page(self, page: BulkPage, job_ids: Sequence[bytes], change: NewValues) -> int | None:
        """Give HELD jobs new values."""
        return await self._page("bulk/reschedule_page", page, job_ids, *change)

    async def delete_page(self, page: BulkPage, job_ids: Sequence[bytes], states: Sequence[JobState]) -> int | None:
        """Delete the contents of jobs."""
        return await self._page("bulk/delete_page", page, job_ids, [str(state) for state in states])

    async def retry_page(self, page: BulkPage, jobs: Sequence[BulkRetry], states: Sequence[JobState]) -> int | None:
        """Make new jobs."""
        old, new, reserved, *rest = columns(jobs) if jobs else ((),) * len(BulkRetry._fields)
        return await self._page("bulk/retry_page", page, old, new, reserved, [str(state) for state in states], *rest)

    async def finish(self, page: BulkPage, error: str = "") -> BulkEnd | None:
        """The range is at its end, or the operation cannot go on."""
        rows = await self._control.write("bulk/finish", page.operation, page.cursor, error, json.dumps(page.skipped))
        return BulkEnd(rows[0]["changed"], json.loads(rows[0]["skipped"])) if rows else None

    async def _page(self, name: str, page: BulkPage, job_ids: Sequence[bytes], *rest: Any) -> int | None:
        skipped = json.dumps(page.skipped)
        values = (page.operation, page.cursor, page.read_to, skipped, list(job_ids), *rest)
        rows = await self._data.write(name, *values)
        return rows[0]["jobs"] if rows else None


def _found(row: tuple[Any, ...]) -> FoundBulkJob:
    id_, skip, *rest = row
    return FoundBulkJob(id_, None if skip is None else SkipCause(skip), *rest)


def _given(change: NewValues) -> dict[str, object]:
    return {name: value for name, value in change._asdict().items() if value is not None}
