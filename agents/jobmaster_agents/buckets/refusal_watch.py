"""An owner's watch of its own refusals: a burst of outcomes that their rows refuse shows that it works on wrong copies.

One refused outcome is ordinary: a job was given to another agent while a slow run went on. Hundreds in a minute are not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from jobmaster.clock import Clock
from jobmaster.model.ids import text
from jobmaster.settings.model import Safety
from jobmaster_agents.state.ownership import Ownership
from jobmaster_agents.state.suspicions import Suspicions

LOOK_SECONDS = 10.0
WINDOW_SECONDS = 60.0


class RefusalWatch:
    """Periodic task that compares the count of refused outcomes with that of a minute ago.

    Args:
        refused: returns how many outcomes of this process were refused by their rows.
    """

    name = "refusal-watch"

    def __init__(
        self, ownership: Ownership, suspicions: Suspicions, refused: Callable[[], int], safety: Safety, clock: Clock
    ) -> None:
        self._ownership = ownership
        self._suspicions = suspicions
        self._refused = refused
        self._limit = safety.refused_outcomes
        self._now = clock.boottime
        self._counts: deque[tuple[float, int]] = deque()

    async def tick(self) -> float:
        """Act when there were too many."""
        now, count = self._now(), self._refused()
        while len(self._counts) > 1 and self._counts[1][0] <= now - WINDOW_SECONDS:
            self._counts.popleft()
        before = self._counts[0][1] if self._counts else count
        self._counts.append((now, count))
        if self._limit and count - before >= self._limit:
            detail = f"{count - before} outcomes of this agent were refused by their rows within a minute"
            buckets = list(self._ownership.buckets)
            await self._suspicions.raise_suspicion("refused_outcomes", text(self._ownership.agent_id), buckets, detail)
            self._counts.clear()
        return LOOK_SECONDS
