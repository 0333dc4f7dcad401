"""What a write says back, and the two refusals that must never be confused.

*By the row* (another identity, or final) settles the entry; *by the bucket lock* settles nothing."""

from __future__ import annotations

from typing import NamedTuple


class Written(NamedTuple):
    """Answer of a write under the bucket lock or without it."""

    bucket_ok: bool
    """False: refused by the bucket lock, nothing was written, nothing is settled. Always True for writes without it."""
    accepted: frozenset[bytes]
    """Ids whose row now says what was sent (also when it said so before: our own earlier success)."""
    cancelled: frozenset[bytes] = frozenset()
    """Accepted ids that became CANCELLED instead, because a cancel was requested."""
    refused: frozenset[bytes] = frozenset()
    """Ids refused by their row: another identity, or final. Settled."""
    quarantined: frozenset[bytes] = frozenset()
    """Ids refused because of the id itself (below the watermark, outside every partition); kept in quarantine. Settled."""
    failed: frozenset[bytes] = frozenset()
    """Of a rescuer's page: accepted ids that became FAILED instead (abandoned, or rescued too often)."""

    @property
    def settled(self) -> frozenset[bytes]:
        """Ids that need not be sent again: each is committed, or refused for good."""
        return self.accepted | self.cancelled | self.refused | self.quarantined
