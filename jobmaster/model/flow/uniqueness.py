"""Uniqueness: how long a job holds its unique key, and what another submit of the key does meanwhile."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from jobmaster.model.job import JobState, NewJob


class UniqueTerm(StrEnum):
    """How long a job holds its unique key."""

    WINDOW = "window"
    """Until a time."""
    LIVE = "live"
    """Until the job has ended, however."""
    WAITING = "waiting"
    """Until the job starts."""


class OnConflict(StrEnum):
    """What a submit does when another job holds its unique key."""

    EXISTING = "existing"
    """Its receipt is that of the holder; nothing is stored."""
    REJECT = "reject"
    """It raises ``NotUnique``; nothing is stored."""
    REPLACE = "replace"
    """The holder is cancelled, and the new job takes its place, both in one transaction."""
    DEBOUNCE = "debounce"
    """The holder gets the due time of the submit; nothing is stored."""


class SubmitAnswer(StrEnum):
    """What a submit has done."""

    CREATED = "created"
    """A new job."""
    EXISTING = "existing"
    """The id, the idempotency key or the unique key belongs to an older job: this is that job."""
    REPLACED = "replaced"
    """A new job; the one that held its unique key was cancelled."""
    DEBOUNCED = "debounced"
    """An older job holds the unique key; its due time was moved."""


class UniqueRule(NamedTuple):
    """The uniqueness of one submit, as the master takes it."""

    key: str
    term: UniqueTerm
    span_us: int
    """Length of the window, or the most that a due time is moved from the submit of the holder on; else 0."""
    aligned: bool
    """Windows begin at multiples of their length since 1970, by the master's clock."""
    on_conflict: OnConflict


class UniqueSubmit(NamedTuple):
    """A job that is to hold a unique key."""

    job: NewJob
    rule: UniqueRule
    passed: bytes | None = None
    """A holder that has started: it no longer keeps a key that is held until the start."""


class UniqueOutcome(StrEnum):
    """The master's answer to one of them."""

    CREATED = "created"
    EXISTING = "existing"
    REPLACED = "replaced"
    DEBOUNCED = "debounced"
    KNOWN = "known"
    """The id has a row already: the job was submitted before."""
    RECALL = "recall"
    """The holder may lie in a bucket: its due time must be changed there."""
    REFUSED = "refused"
    """The id is older than what the master keeps."""


class UniqueAnswer(NamedTuple):
    """What became of it."""

    outcome: UniqueOutcome
    job_id: bytes
    """The job that holds the key after the submit."""
    holder: bytes | None
    """The job that held the key before, if it did."""
    limit_us: int
    """With ``RECALL``: the latest due time that the holder may get."""


class UniqueKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A unique key that a job holds, as it was when it was read. Times are aware, in UTC, by the master's clock."""

    handler: str
    key: str
    job: UUID
    """The job that holds it."""
    state: JobState | None
    """Of the job; ``None``: it has no row any more, and holds the key until the end of a window."""
    term: UniqueTerm
    held_at: datetime
    until: datetime | None
    """End of a window."""
