"""The life of a range that leaves the master, as one table.

``None`` means that the manifest has no row yet. The statements are in ``jobmaster/master/sql/archive``; the running program
does not read this table.
"""

from __future__ import annotations

from enum import StrEnum

from jobmaster.model.archive import ArchiveState

S = ArchiveState


class ArchiveEvent(StrEnum):
    """What can happen to a range."""

    SEAL = "seal"
    DETACH = "detach"
    EXPORT = "export"
    VERIFY = "verify"
    PUBLISH = "publish"
    DROP = "drop"
    DISCARD = "discard"
    """Drop it without a copy, on an operator's order."""
    EXPORT_AGAIN = "export_again"
    """Its files failed a check."""


TRANSITIONS: dict[tuple[ArchiveState | None, ArchiveEvent], ArchiveState] = {
    (None, ArchiveEvent.SEAL): S.SEALED,
    (None, ArchiveEvent.DETACH): S.DETACHED,
    (S.SEALED, ArchiveEvent.DETACH): S.DETACHED,
    (S.DETACHED, ArchiveEvent.EXPORT): S.EXPORTED,
    (S.EXPORTED, ArchiveEvent.VERIFY): S.VERIFIED,
    (S.VERIFIED, ArchiveEvent.PUBLISH): S.PUBLISHED,
    (S.PUBLISHED, ArchiveEvent.DROP): S.DROPPED,
    (S.DETACHED, ArchiveEvent.DISCARD): S.DROPPED,
    (S.EXPORTED, ArchiveEvent.EXPORT_AGAIN): S.DETACHED,
    (S.VERIFIED, ArchiveEvent.EXPORT_AGAIN): S.DETACHED,
    (S.PUBLISHED, ArchiveEvent.EXPORT_AGAIN): S.DETACHED,
}
