"""``Cluster.tenants``: what waits and runs for each tenant."""

from __future__ import annotations

import builtins
from collections.abc import Mapping

from jobmaster.handlers import check_lane
from jobmaster.model.errors import InputError
from jobmaster.model.flow.tenant import TenantView
from jobmaster.ports import TenantQueries

LISTED_MAX = 10_000


class Tenants:
    """The tenants of a cluster. Made by ``Cluster``.

    Args:
        weights: of the configuration of this program.
    """

    def __init__(self, queries: TenantQueries, weights: Mapping[str, int]) -> None:
        self._queries = queries
        self._weights = weights

    async def list(self, *, lane: str | None = None, limit: int = 1000) -> builtins.list[TenantView]:
        """Tenants with jobs that wait or run, the one with the most waiting jobs first; one line for each lane.

        Only jobs that have a row in the master are counted: those that wait there, and those that wait in an agent or run
        for longer than ``persist_within``. Jobs that wait in a bucket are in ``jobmaster bucket``. The call reads every
        such row: some seconds for a million.

        Args:
            lane: only this one.
            limit: most lines, 1 to 10,000.

        Raises:
            InputError: no lane, or a limit out of its range.
            Unavailable: the master does not answer.
        """
        given: object = limit
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= LISTED_MAX:
            raise InputError(f"'limit' must be a whole number of 1 to {LISTED_MAX}, not {limit!r}")
        found = await self._queries.tenants(None if lane is None else check_lane(lane), limit)
        return [each._replace(weight=self._weights.get(each.name, 1)) for each in found]
