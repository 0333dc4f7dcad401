"""Events in the master, as clients read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from jobmaster.model.event import ClusterEvent, JobEvent
from jobmaster.model.job import JobState


class EventPlace(NamedTuple):
    """A place in the stream of recorded events. Every event before it was read, and none after it."""

    system: str
    """The server whose transactions these are."""
    timeline: str
    """Grows when a standby takes over."""
    began: int
    """First transaction that had not ended when the stream began."""
    xid: int
    """Every transaction below it was read to its end."""
    key: str
    """Up to which this transaction was read; empty: nothing of it was."""


class EventPage(NamedTuple):
    """Events in their order."""

    events: list[tuple[EventPlace, ClusterEvent]]
    """Each with the place after it."""
    place: EventPlace
    """After all of them, and after transactions that have recorded no event."""
    more: bool
    """True when the page is full."""


class ChangedJob(NamedTuple):
    """A job as its row shows it."""

    state: JobState
    event: JobEvent


class ClientEvents(Protocol):
    """For clients."""

    async def place(self, *, start: bool) -> EventPlace:
        """The present end of the stream; ``start``: its beginning."""
        ...

    async def read(
        self, after: EventPlace, kinds: Sequence[str] | None, handlers: Sequence[str] | None, limit: int
    ) -> EventPage:
        """Events that follow a place, at most ``limit``.

        Raises:
            Refused: the place is of another server, or events that follow it have left the master.
        """
        ...

    async def changed(self, job_ids: Sequence[bytes]) -> list[ChangedJob]:
        """Those of the jobs that have a row, as it is now."""
        ...
