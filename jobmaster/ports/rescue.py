"""What a rescuer writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry
from jobmaster.ports.written import Written


class Swept(NamedTuple):
    """Answer of one sweep of a bucket's rows."""

    moved: int
    """Rows that named the bucket and do not any more; 0 also when the bucket is another's."""
    rescued: int
    """Of these: they were PROCESSING, and each counts one rescue."""
    failed: int = 0
    """Of these: they became FAILED (abandoned, or rescued too often)."""


class Unfit(NamedTuple):
    """Something in a drained bucket that the master cannot store as a job, or that nobody can read."""

    id: bytes
    """Of the job; where it cannot be read, the 16 bytes where it should be."""
    kind: str
    """Where it lay: ``spilled``, ``claimed``, ``pending`` or ``assigned``."""
    raw: bytes
    """As it lies in the store."""
    why: str


class Rescue(Protocol):
    """A rescuer's writes, each page under *its* epoch (rule C)."""

    async def rescue_page(
        self, fence: Fence, entries: Sequence[Entry], lane: str, priority: int, *, claimed: bool, max_rescues: int
    ) -> Written:
        """Entries found in the store -> HELD with token + 1 (no row: token 2). ``claimed`` entries never rescued before and
        rows that are PROCESSING count one rescue, and one that reaches ``max_rescues`` becomes FAILED with reason
        ``agent_lost``; rows that are final or name another bucket are left alone (*refused*)."""
        ...

    async def sweep(self, fence: Fence, limit: int, *, max_rescues: int) -> Swept:
        """In-flight rows that still name this bucket with an older epoch -> HELD (PROCESSING counts a rescue).
        Repeat until none was moved."""
        ...

    async def quarantine(self, bucket_id: bytes, entries: Sequence[Unfit]) -> None:
        """Keep entries, byte for byte, for a person to look at; when it returns, they are committed. No bucket lock: they
        are kept and nothing else, and sent again nothing is added."""
        ...
