"""A cluster in memory has no events: it has no transactions, and its agents publish nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from jobmaster.model.errors import InputError
from jobmaster.ports import ChangedJob, EventPage, EventPlace


class MemoryEvents:
    """``jobmaster.ports.ClientEvents`` that refuses every call."""

    async def place(self, *, start: bool) -> EventPlace:
        """Refused."""
        _refuse()

    async def read(
        self, after: EventPlace, kinds: Sequence[str] | None, handlers: Sequence[str] | None, limit: int
    ) -> EventPage:
        """Refused."""
        _refuse()

    async def changed(self, job_ids: Sequence[bytes]) -> list[ChangedJob]:
        """Refused."""
        _refuse()


def _refuse() -> NoReturn:
    raise InputError(
        "a cluster in memory has no events",
        hint="use the fixture jobmaster_cluster, which has real servers",
    )
