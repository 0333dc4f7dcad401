"""Jobs with unique keys."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import asyncpg
from asyncpg.pgproto.pgproto import UUID

from jobmaster.master.driver import errors
from jobmaster.master.driver.batches import columns
from jobmaster.master.driver.connection import StatementRunner
from jobmaster.master.driver.statements import sql, statement
from jobmaster.master.intake import require_transaction
from jobmaster.model.flow.uniqueness import UniqueAnswer, UniqueKeyView, UniqueOutcome, UniqueSubmit, UniqueTerm
from jobmaster.model.job import JobState
from jobmaster.model.job_view import EPOCH, moment

_SUBMIT = "uniqueness/submit"
_AHEAD_DAYS = 7


class Uniqueness:
    """``jobmaster.ports.Uniqueness`` on PostgreSQL."""

    def __init__(self, data: StatementRunner, schema: str) -> None:
        self._data = data
        self._schema = schema

    async def submit(self, jobs: Sequence[UniqueSubmit]) -> list[UniqueAnswer]:
        """HELD rows of the jobs that get their keys; one answer for each, in order."""
        if not jobs:
            return []
        ids, values, text = [one.job.id for one in jobs], values_of(jobs), sql(_SUBMIT)
        try:
            rows = await self._data.run(
                _SUBMIT,
                lambda connection: connection.fetch(text, *values, True),
                ids=ids,
                raw=(asyncpg.CheckViolationError,),
            )
        except asyncpg.CheckViolationError:  # no partition has room for an id: it is made when it should exist
            await self._data.write("maintenance/ensure_partitions", None, _AHEAD_DAYS)
            rows = await self._data.write(_SUBMIT, *values, True, ids=ids)
        found = {row["own"]: _answer(*list(row)[1:]) for row in rows}
        return [found[id_] for id_ in ids]

    async def submit_in(self, connection: Any, job: UniqueSubmit) -> UniqueAnswer:
        """One of them inside the caller's own transaction; see ``Intake.insert_held_in``."""
        require_transaction(connection)
        values = values_of([job])
        values[2] = [UUID(job.job.id)]
        try:
            row = await connection.fetchrow(statement(_SUBMIT).qualified(self._schema), *values, False)
        except errors.DRIVER_ERRORS as error:
            # Sent inside a transaction that is not ours: it has not happened unless the caller commits.
            raise errors.calling(error, _SUBMIT, writes=False) from error
        _, answer, job_id, holder, limit_us = row
        return _answer(answer, job_id.bytes, None if holder is None else holder.bytes, limit_us)

    async def held(self, handler: str | None, key: str | None, limit: int) -> list[UniqueKeyView]:
        """Keys that are held, by handler and key; ``None``: whatever it is."""
        return [_view(row) for row in await self._data.read("uniqueness/held", handler, key, limit)]

    async def release(self, handler: str, key: str, actor: str) -> bool:
        """Take the key from its job, with a line in the operator's log; False when there is none."""
        return bool(await self._data.write("uniqueness/release", handler, key, actor))


def values_of(jobs: Sequence[UniqueSubmit]) -> list[list[Any]]:
    """One list for each parameter of the statement."""
    return columns(
        (
            job.handler, rule.key, job.id, job.priority, job.lane, job.args, job.headers, job.due_us, rule.term.value,
            rule.span_us, rule.aligned, rule.on_conflict.value, passed,
        )
        for job, rule, passed in jobs
    )  # fmt: skip


def _answer(answer: str, job_id: bytes, holder: bytes | None, limit_us: int | None) -> UniqueAnswer:
    return UniqueAnswer(UniqueOutcome(answer), job_id, holder, limit_us or 0)


def _view(row: Any) -> UniqueKeyView:
    return UniqueKeyView(
        handler=row["handler"],
        key=row["key"],
        job=uuid.UUID(bytes=row["job_id"]),
        state=None if row["state"] is None else JobState(row["state"]),
        term=UniqueTerm(row["term"]),
        held_at=moment(row["held_us"]) or EPOCH,
        until=moment(row["until_us"]),
    )
