"""Circuit breakers of resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from jobmaster.master.driver.connection import StatementRunner
from jobmaster.model.flow.breaker import BreakerChange, BreakerRule, BreakerState, BreakerView, TrialResult
from jobmaster.ports import BreakerLook

LIST = "breakers/list"


class Breakers:
    """``jobmaster.ports.Breakers`` on PostgreSQL."""

    def __init__(self, control: StatementRunner) -> None:
        self._control = control

    async def declare(self, agent_id: bytes, rules: Sequence[BreakerRule], handlers: Mapping[str, str]) -> None:
        """Publish the rules, and the breaker of each handler."""
        columns = [list(column) for column in zip(*rules, strict=True)]
        await self._control.write("breakers/declare", agent_id, *columns, list(handlers), list(handlers.values()))

    async def report(
        self, agent_id: bytes, number: int, counts: Mapping[str, tuple[int, int]], trials: Sequence[TrialResult]
    ) -> list[str]:
        """Add runs and failures by breaker, and the ends of trials; breakers that the master does not know."""
        rows = await self._control.write(
            "breakers/report",
            agent_id,
            number,
            list(counts),
            [calls for calls, _ in counts.values()],
            [failures for _, failures in counts.values()],
            [each.name for each in trials],
            [each.job_id for each in trials],
            [each.attempt for each in trials],
            [each.failed for each in trials],
        )
        return list(rows[0]["unknown"])

    async def evaluate(self, names: Sequence[str], *, nobody_waits: bool = False) -> list[BreakerChange]:
        """Open, close or open again what the reports say."""
        return _changes(await self._control.write("breakers/evaluate", list(names), nobody_waits))

    async def half_open(self) -> list[BreakerChange]:
        """Open breakers whose time is over become half-open."""
        return _changes(await self._control.write("breakers/half_open"))

    async def choose_trials(self, depth: int) -> list[BreakerLook]:
        """Choose trials of half-open breakers; one line for each breaker that is or will be half-open."""
        return [BreakerLook(*row) for row in await self._control.write("breakers/choose_trials", depth)]

    async def forget(self) -> int:
        """Delete results that no window holds any more, and breakers that no agent has."""
        return int((await self._control.write("breakers/forget"))[0]["forgotten"])

    async def list(self, name: str | None = None) -> Sequence[BreakerView]:
        """The breakers by name, or the one of that name."""
        return [
            BreakerView(
                **{
                    **dict(row),
                    "state": BreakerState(row["state"]),
                    "handlers": tuple(row["handlers"]),
                    "trial_jobs": tuple(UUID(bytes=id_) for id_ in row["trial_jobs"]),
                },
            )
            for row in await self._control.read(LIST, name)
        ]

    async def set_state(
        self,
        name: str,
        state: BreakerState,
        open_seconds: float | None,
        actor: str,
        reason: str,
        epoch: int | None = None,
    ) -> int | None:
        """Open or close a breaker; the version of the pauses with the change."""
        rows = await self._control.write("breakers/set_state", name, state.value, open_seconds, actor, reason, epoch)
        return int(rows[0]["version"]) if rows else None


def _changes(rows: Sequence[Any]) -> list[BreakerChange]:
    return [BreakerChange(row["name"], BreakerState(row["state"]), row["reason"], row["version"]) for row in rows]
