"""Overdue jobs that no owner of a bucket serves: find them, put them off, request help."""

from __future__ import annotations

from collections.abc import Sequence

from jobmaster.master.driver.connection import StatementRunner
from jobmaster.ports import DueGroup, HelpRequest, UnservedHandler
from jobmaster.rules.unserved_cause import UnservedCause


class UnservedJobs:
    """``jobmaster.ports.UnservedJobs`` on PostgreSQL."""

    def __init__(self, data: StatementRunner, control: StatementRunner) -> None:
        self._data = data
        self._control = control

    async def find(self, overdue_seconds: float, look: int) -> list[UnservedHandler]:
        """Overdue jobs of handlers that no owner of a matching bucket has, those that are put off included."""
        return [
            UnservedHandler(
                UnservedCause(lane, priority, handler, known, active, frozen, tuple(requires)), jobs, oldest_us
            )
            for lane, priority, handler, jobs, oldest_us, known, active, frozen, requires in await self._control.read(
                "reports/unserved", overdue_seconds, look
            )
        ]

    async def put_off(
        self, group: DueGroup, handlers: Sequence[str], overdue_seconds: float, again_seconds: float, limit: int
    ) -> int:
        """The oldest of such jobs are due again later; number of them."""
        rows = await self._data.write("unserved/put_off", *group, list(handlers), overdue_seconds, again_seconds, limit)
        return int(rows[0]["moved"])

    async def put_off_paused(self, overdue_seconds: float, again_seconds: float, limit: int) -> int:
        """The oldest jobs of paused handlers, or with paused tags, are due again later; number of them."""
        rows = await self._data.write("unserved/put_off_paused", overdue_seconds, again_seconds, limit)
        return int(rows[0]["moved"])

    async def count_paused(self, look: int) -> int:
        """Due jobs that pauses keep from starting: among the ``look`` oldest of each lane and priority, and among those that
        are put off."""
        return int((await self._data.read("unserved/count_paused", look))[0]["jobs"])

    async def put_back(self, limit: int) -> int:
        """Jobs that were put off and can be served now have their own due time again; number of settled lines."""
        return int((await self._data.write("unserved/put_back", limit))[0]["moved"])

    async def request_help(self, causes: Sequence[UnservedCause]) -> list[HelpRequest]:
        """Request that agents which have the handler open a bucket for unserved jobs; the new requests."""
        columns = [each.lane for each in causes], [each.priority for each in causes], [each.handler for each in causes]
        return [HelpRequest(*row) for row in await self._control.write("unserved/request_help", *columns)]

    async def end_help(self) -> list[HelpRequest]:
        """End requests where a configured owner can run the same jobs, or where the helper has ended."""
        return [HelpRequest(*row) for row in await self._control.write("unserved/end_help")]

    async def stop_helping(self, agent_id: bytes, lane: str, priority: int) -> None:
        """The agent does not help there any more; its next renewal returns that."""
        await self._control.write("unserved/stop_helping", agent_id, lane, priority)
