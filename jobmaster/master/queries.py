"""What clients and agents read."""

from __future__ import annotations

from collections.abc import Sequence

from jobmaster.master.buckets import bucket_of
from jobmaster.master.connection import Calls
from jobmaster.model.bucket import Bucket, BucketState


class Queries:
    """``jobmaster.ports.Queries`` on PostgreSQL."""

    _data: Calls

    async def buckets(self, *, states: Sequence[BucketState] = ()) -> list[Bucket]:
        """Buckets in some states; no states = all."""
        return [bucket_of(row) for row in await self._data.ask("queries/buckets", [str(state) for state in states])]
