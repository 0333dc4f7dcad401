"""From HELD into a bucket, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry
from jobmaster.ports.written import Written


class Onboarded(NamedTuple):
    """Answer of one onboarding statement."""

    bucket_ok: bool
    entries: list[Entry]
    """Rows that are now ASSIGNED to the bucket, token already increased."""
    more: bool
    """True when the batch was full: ask again."""
    behind: int = 0
    """Of the entries, those due before the place where the looks before this one had begun."""


class Onboarding(Protocol):
    """From HELD into a bucket."""

    async def onboard(
        self,
        fence: Fence,
        lane: str,
        priority: int,
        horizon_seconds: float,
        limit: int,
        handlers: Sequence[str] | None = None,
    ) -> Onboarded:
        """Claim due-soon HELD rows for a bucket under its lock, SKIP LOCKED, oldest due first: at most ``limit``, and as many
        as one batch holds (``rules.batching.BATCH_BYTES``); only jobs of the named handlers (``None``: any)."""
        ...

    async def release(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> Written:
        """``(id, token)`` ASSIGNED in this bucket -> HELD: the store refused the put, or anti-entropy found no copy."""
        ...
