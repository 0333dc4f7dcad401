"""A range of jobs on its way out of the master: one pair of tables, one row in the manifest."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec


class ArchiveState(StrEnum):
    """How far a range has come. ``jobmaster.specification.archive_transitions`` lists the moves."""

    SEALED = "SEALED"
    """Chosen; on its way out of ``job``, unfinished jobs included."""
    DETACHED = "DETACHED"
    """Out of ``job``, still in the views; nothing writes to it any more."""
    EXPORTED = "EXPORTED"
    """Files are written and not verified; no reader may use them."""
    VERIFIED = "VERIFIED"
    """Count and checksum of the files equal those of the tables."""
    PUBLISHED = "PUBLISHED"
    """Readers of the lake may use the files."""
    DROPPED = "DROPPED"
    """The tables are gone."""


class LakeFile(msgspec.Struct, frozen=True):
    """One file of a range."""

    dataset: str
    """``jobs`` or ``attempts``."""
    path: str
    """Below the lake."""
    rows: int
    bytes: int
    sha256: str = ""
    """Of the content; empty when the lake is no local directory."""


class Measure(msgspec.Struct, frozen=True):
    """Rows and checksums of jobs and attempts, of the tables or of the files."""

    rows: int
    checksum: int
    attempt_rows: int
    attempt_checksum: int


class ArchiveRange(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the manifest."""

    name: str
    """Of the table of jobs."""
    attempts: str
    """Of the table of attempts."""
    state: ArchiveState
    lo: bytes
    """Ids from here ..."""
    hi: bytes
    """... to below here."""
    moved: int | None = None
    """Unfinished jobs that were copied to the attic table."""
    discarded: bool = False
    """Dropped without a copy, on an operator's order."""
    measure: Measure | None = None
    """Expected rows and checksums of the files; from EXPORTED on."""
    run_id: str | None = None
    lake: str | None = None
    format: int | None = None
    files: tuple[LakeFile, ...] = ()
    ended_from: datetime | None = None
    """First end of a job in it ..."""
    ended_to: datetime | None = None
    """... and the last one."""
    detached_at: datetime | None = None
    published_at: datetime | None = None
    dropped_at: datetime | None = None
