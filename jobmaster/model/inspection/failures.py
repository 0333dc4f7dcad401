"""Failed jobs by what they have in common."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one handler that failed with errors of one type and alike messages."""

    fingerprint: str
    """Short hash of the next three; the filter ``error=`` takes it."""
    handler: str
    error_type: str
    line: str
    """First line of the message, with ``#`` in the place of ids and numbers."""
    jobs: int
    first_at: datetime | None
    """When the first of them ended, as far as they were read."""
    last_at: datetime | None
    sample: UUID
    """The newest of them."""


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of failed jobs, the one with the most jobs first."""

    groups: tuple[FailureGroup, ...]
    jobs: int
    """Jobs of all groups, also of those that are not listed."""
    complete: bool
    """False: only the newest jobs were read, because there are so many."""
