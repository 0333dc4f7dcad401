"""Rows that a statement did not accept: each is read again and classified.

A statement that is sent again after an unknown commit finds the row that it wrote itself, and its own guard refuses it.
So a refused row is read back, and if it has the values that were sent, that was an earlier success. Everything here is
decided from one row, read after the refusal; a row that shows neither (it was written in between) makes the caller send
again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from jobmaster.master.driver.connection import to_us
from jobmaster.model.job import IN_FLIGHT_STATES, FinalRow, HoldRow, JobState


class RowResult(StrEnum):
    """Classification of one row that was not accepted."""

    ACCEPTED = "accepted"
    """An earlier success of the same caller."""
    CANCELLED = "cancelled"
    """A cancel request blocks the write, or turned our earlier write into CANCELLED."""
    REFUSED = "refused"
    """Another identity, or final."""
    AGAIN = "again"
    """The guard would accept the write now."""


class CurrentRow(NamedTuple):
    """One row as ``jobs/peek`` returns it."""

    id: bytes
    state: str
    token: int
    bucket_id: bytes | None
    bucket_epoch: int | None
    cancel_requested: bool
    due_at: tuple[int] | None

    @property
    def identity(self) -> tuple[int, bytes | None, int | None]:
        return self.token, self.bucket_id, self.bucket_epoch

    @property
    def in_flight(self) -> bool:
        return self.state in IN_FLIGHT_STATES


def final(row: FinalRow, found: CurrentRow) -> RowResult:
    """Of ``record_final``: the same identity with the same final state is our own outcome."""
    if found.identity != (row.token, row.bucket_id, row.bucket_epoch):
        return RowResult.REFUSED
    if found.state == row.state:
        return RowResult.ACCEPTED
    return RowResult.REFUSED if JobState(found.state).final else RowResult.AGAIN


def persisted(token: int, bucket_id: bytes, epoch: int, found: CurrentRow) -> RowResult:
    """Of ``persist``: our row in flight was not touched because the job has a cancel request."""
    if found.identity != (token, bucket_id, epoch) or not found.in_flight:
        return RowResult.REFUSED
    return RowResult.CANCELLED if found.cancel_requested else RowResult.AGAIN


def held(token: int, bucket_id: bytes, epoch: int, found: CurrentRow) -> RowResult:
    """Of ``hold`` and ``release``: HELD with our token was written by us (see the header of ``outcomes/hold``)."""
    if found.state == JobState.HELD:
        return RowResult.ACCEPTED if found.token == token else RowResult.REFUSED
    if found.identity != (token, bucket_id, epoch):
        return RowResult.REFUSED
    if found.state == JobState.CANCELLED:
        return RowResult.CANCELLED
    return RowResult.AGAIN if found.in_flight else RowResult.REFUSED


def kept_here(row: HoldRow, bucket_id: bytes, epoch: int, found: CurrentRow) -> RowResult:
    """Of ``retry_here``: in flight here with our token + 1 and exactly our due time was written by us. (Without the due
    time it could be the producer's second copy, held in the master and onboarded to this same bucket.)"""
    if found.in_flight and found.identity == (row.token + 1, bucket_id, epoch):
        return RowResult.ACCEPTED if to_us(found.due_at) == row.due_us else RowResult.REFUSED
    if found.identity != (row.token, bucket_id, epoch):
        return RowResult.REFUSED
    if found.state == JobState.CANCELLED:
        return RowResult.CANCELLED
    return RowResult.AGAIN if found.in_flight else RowResult.REFUSED


def assigned(bucket_id: bytes, epoch: int, found: CurrentRow) -> RowResult:
    """Of ``insert_assigned``: in this bucket with token 2 was written by us."""
    mine = found.identity == (2, bucket_id, epoch)
    return RowResult.ACCEPTED if mine else RowResult.REFUSED


def exists(_: object, __: CurrentRow) -> RowResult:
    """Of an insert that leaves existing rows alone."""
    return RowResult.REFUSED
