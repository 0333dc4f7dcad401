"""Unique keys of a cluster in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from jobmaster.codec import decode_headers, encode_headers
from jobmaster.model import ids
from jobmaster.model.flow.uniqueness import (
    OnConflict,
    UniqueAnswer,
    UniqueKeyView,
    UniqueOutcome,
    UniqueRule,
    UniqueSubmit,
    UniqueTerm,
)
from jobmaster.model.job import JobState, NewJob
from jobmaster.model.job_change import NewValues
from jobmaster.model.job_view import EPOCH, moment
from jobmaster.testing.memory.rows import HeldKey, MemoryJob, MemoryRows


class MemoryUniqueness:
    """``jobmaster.ports.Uniqueness`` over rows in memory."""

    def __init__(self, rows: MemoryRows) -> None:
        self._rows = rows

    async def submit(self, jobs: Sequence[UniqueSubmit]) -> list[UniqueAnswer]:
        """Rows of the jobs that get their keys."""
        with self._rows.lock:
            return [self._submit(*one, None) for one in jobs]

    async def submit_in(self, connection: Any, job: UniqueSubmit) -> UniqueAnswer:
        """A row that counts when the caller's transaction is committed, if the cluster made it; its key is held at once."""
        with self._rows.lock:
            return self._submit(*job, self._rows.uncommitted.get(id(connection)))

    def _submit(
        self, job: NewJob, rule: UniqueRule, passed: bytes | None, uncommitted: list[NewJob] | None
    ) -> UniqueAnswer:
        rows, place = self._rows, (job.handler, rule.key)
        if job.id in rows.jobs:
            return UniqueAnswer(UniqueOutcome.KNOWN, job.id, None, 0)
        held = rows.unique_keys.get(place)
        answer = None if held is None else self._answer_of_holder(held, job, rule, passed)
        if answer is not None and answer.outcome is not UniqueOutcome.REPLACED:
            return answer
        now_us = rows.clock.wall_us()
        until_us = 0
        if rule.term is UniqueTerm.WINDOW:
            until_us = (now_us // rule.span_us + 1) * rule.span_us if rule.aligned else now_us + rule.span_us
            headers = decode_headers(job.headers)
            marked = msgspec.structs.replace(headers, unique_from_us=now_us, unique_until_us=until_us)
            job = job._replace(headers=encode_headers(marked))
        if uncommitted is None:
            rows.insert(job)
        else:
            uncommitted.append(job)
        rows.unique_keys[place] = HeldKey(job.id, rule.term, now_us, until_us)
        if answer is None:
            return UniqueAnswer(UniqueOutcome.CREATED, job.id, None, 0)
        old = rows.jobs[answer.job_id]
        marked = msgspec.structs.replace(decode_headers(old.entry.headers), superseded_by=ids.text(job.id))
        old.entry = msgspec.structs.replace(old.entry, headers=encode_headers(marked))
        old.cancel()
        return UniqueAnswer(UniqueOutcome.REPLACED, job.id, answer.job_id, 0)

    def _answer_of_holder(
        self, held: HeldKey, job: NewJob, rule: UniqueRule, passed: bytes | None
    ) -> UniqueAnswer | None:
        """What a submit meets that finds a holder; ``None``: the key is free."""
        rows, debounces = self._rows, rule.on_conflict is OnConflict.DEBOUNCE
        holder = rows.jobs.get(held.job_id)
        waits = holder is not None and _has_not_started(holder) and held.job_id != passed
        if debounces and waits:
            later_us = min(job.due_us or rows.clock.wall_us(), held.held_us + rule.span_us)
            if rows.change(held.job_id, NewValues(later_us, None, None)) is not None:
                return UniqueAnswer(UniqueOutcome.DEBOUNCED, held.job_id, held.job_id, 0)
        uncommitted = any(one.id == held.job_id for jobs in rows.uncommitted.values() for one in jobs)
        if uncommitted:
            return UniqueAnswer(UniqueOutcome.EXISTING, held.job_id, held.job_id, 0)
        if not self._is_held(held, passed):
            return None
        replaces = rule.on_conflict is OnConflict.REPLACE and holder is not None and not holder.state.final
        return UniqueAnswer(UniqueOutcome.REPLACED if replaces else UniqueOutcome.EXISTING, held.job_id, held.job_id, 0)

    def _is_held(self, held: HeldKey, passed: bytes | None = None) -> bool:
        holder = self._rows.jobs.get(held.job_id)
        match held.term:
            case UniqueTerm.WINDOW:
                return held.until_us > self._rows.clock.wall_us()
            case UniqueTerm.LIVE:
                return holder is not None and not holder.state.final
            case UniqueTerm.WAITING:
                return holder is not None and _has_not_started(holder) and held.job_id != passed

    async def held(self, handler: str | None, key: str | None, limit: int) -> list[UniqueKeyView]:
        """Keys that are held, by handler and key."""
        rows = self._rows
        with rows.lock:
            return [
                UniqueKeyView(
                    handler=place[0],
                    key=place[1],
                    job=UUID(bytes=held.job_id),
                    state=rows.jobs[held.job_id].state if held.job_id in rows.jobs else None,
                    term=held.term,
                    held_at=moment(held.held_us) or EPOCH,
                    until=moment(held.until_us or None),
                )
                for place, held in sorted(rows.unique_keys.items())
                if handler in (None, place[0]) and key in (None, place[1]) and self._is_held(held)
            ][:limit]

    async def release(self, handler: str, key: str, actor: str) -> bool:
        """Take the key from its job; False when there is none. There is no operator's log in memory."""
        with self._rows.lock:
            return self._rows.unique_keys.pop((handler, key), None) is not None


def _has_not_started(job: MemoryJob) -> bool:
    return job.waits and job.state is not JobState.SAVE_PENDING and job.entry.attempt == 0
