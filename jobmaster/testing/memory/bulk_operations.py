"""A cluster in memory has no bulk operations: the leader of a real one makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from jobmaster.model.errors import InputError
from jobmaster.model.flow.bulk_operation import BulkKind, BulkState, BulkStep, BulkView, NewBulk
from jobmaster.model.job_change import NewValues
from jobmaster.model.job_view import JobFilter


class MemoryBulkOperations:
    """``jobmaster.ports.ClientBulk`` that refuses every call, after the client has checked the operation."""

    async def find(
        self,
        kind: BulkKind,
        chosen: JobFilter,
        change: NewValues,
        lowest: bytes,
        highest: bytes,
        *,
        reads: int,
        limit: int,
        payload: bool,
    ) -> BulkStep:
        """Refused."""
        _refuse()

    async def start(self, new: NewBulk) -> None:
        """Refused."""
        _refuse()

    async def list(
        self,
        operation: bytes | None = None,
        *,
        states: Sequence[BulkState] = (),
        before: bytes | None = None,
        limit: int = 100,
    ) -> list[BulkView]:
        """There are none."""
        return []

    async def cancel(self, operation: bytes, actor: str) -> bool:
        """There are none."""
        return False


def _refuse() -> NoReturn:
    raise InputError(
        "a cluster in memory has no leader, which works on bulk operations",
        hint="use the fixture jobmaster_cluster, which has real servers",
    )
