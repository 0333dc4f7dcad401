"""What ``jobmaster stat`` and ``jobmaster top`` read of a cluster, again and again."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmaster.clock import Clock

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.model.inspection.views import AgentView, Buckets, Overview

WINDOW_SECONDS = 10.0
"""The rate of submits is measured over so long: agents publish the rates of starts and ends as often."""
REST_RATIO = 4.0
"""A look that takes long is followed by a rest of so many times its duration."""


class Figures(NamedTuple):
    """The cluster at one moment."""

    overview: Overview
    agents: list[AgentView]
    buckets: Buckets
    submitted_per_second: float | None
    """``None`` at the first look."""

    @property
    def rates(self) -> dict[str, float]:
        """Jobs a second, as the living agents have published them."""
        names = ("started_per_second", "ended_per_second", "failed_per_second")
        alive = [agent.statistics for agent in self.agents if agent.alive and agent.statistics is not None]
        return {name: round(sum(getattr(each, name) for each in alive), 1) for name in names}

    @property
    def held(self) -> int:
        """Jobs that wait in the master."""
        return sum(group.held for group in self.overview.backlog)

    @property
    def oldest_seconds(self) -> float | None:
        """For how long the first of them has been due."""
        return max((group.oldest_seconds or 0.0 for group in self.overview.backlog if group.due), default=None)

    @property
    def handlers(self) -> list[dict[str, Any]]:
        """The busiest handlers of the living agents, all agents together."""
        runs, failed, busy = (defaultdict[str, float](float) for _ in range(3))
        for agent in self.agents:
            for each in agent.statistics.handlers if agent.alive and agent.statistics is not None else ():
                runs[each.handler] += each.runs_per_second
                failed[each.handler] += each.failed_per_second
                busy[each.handler] += each.runs_per_second * each.run_seconds
        return [
            {
                "handler": name,
                "runs_per_second": round(rate, 2),
                "failed_per_second": round(failed[name], 2),
                "run_seconds": busy[name] / rate if rate else None,
                "busy": round(busy[name], 2),
            }
            for name, rate in sorted(runs.items(), key=lambda pair: -pair[1])
        ]


class SubmitRate:
    """How many jobs are submitted in a second: those that wait now and did not before, and those that have started."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def note(self, now: float, waiting: int, started_per_second: float) -> float | None:
        """After one more look; ``None`` at the first one.

        Args:
            now: seconds on a clock that only goes forward.
            waiting: jobs in the stores and in the master that are not claimed.
        """
        self._looks.append((now, waiting))
        while len(self._looks) > 2 and self._looks[1][0] <= now - WINDOW_SECONDS:
            self._looks.popleft()
        began, before = self._looks[0]
        if now <= began:
            return None
        return round(max((waiting - before) / (now - began) + started_per_second, 0.0), 1)


class FiguresReader:
    """Reads the figures of one cluster."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._submits = SubmitRate()

    async def read(self) -> Figures:
        """One look.

        Raises:
            Unavailable: the master does not answer.
        """
        inspect = self._cluster.inspect
        agents, buckets = await inspect.agents(), await inspect.buckets()
        overview = await inspect.overview(agents=agents, buckets=buckets)
        found = Figures(overview, agents, buckets, None)
        waiting = sum(group.pending + group.assigned + group.held for group in overview.backlog)
        rate = self._submits.note(self._clock.boottime(), waiting, found.rates["started_per_second"])
        return found._replace(submitted_per_second=rate)

    async def rest(self, interval_seconds: float, began: float) -> None:
        """Wait until the next look.

        Args:
            began: when the last one began, by the clock.
        """
        took = self._clock.boottime() - began
        await asyncio.sleep(max(interval_seconds - took, took * REST_RATIO))


def rate_text(rate: float | None) -> str:
    """``12.5``, ``1 250``; ``-`` when it is not known."""
    from jobmaster.cli.tables import thousands

    return "-" if rate is None else f"{rate:g}" if rate < 100 else thousands(round(rate))
