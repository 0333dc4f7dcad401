"""Unique keys of a cluster in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from jobmaster.codec import decode_headers, encode_headers
from jobmaster.model import ids
from jobmaster.model.flow.uniqueness import (
    OnConflict,
    UniqueAnswer,
    UniqueOutcome,
    UniqueRule,
    UniqueSubmit,
    UniqueTerm,
)
from jobmaster.model.job import JobState, NewJob
from jobmaster.model.job_change import NewValues
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
        lives = holder is not None and not holder.state.final
        match held.term:
            case UniqueTerm.WINDOW:
                is_held = held.until_us > rows.clock.wall_us()
            case UniqueTerm.LIVE:
                is_held = lives
            case UniqueTerm.WAITING:
                is_held = waits
        if not is_held:
            return None
        replaces = rule.on_conflict is OnConflict.REPLACE and lives
        return UniqueAnswer(UniqueOutcome.REPLACED if replaces else UniqueOutcome.EXISTING, held.job_id, held.job_id, 0)


def _has_not_started(job: MemoryJob) -> bool:
    return job.waits and job.state is not JobState.SAVE_PENDING and job.entry.attempt == 0
