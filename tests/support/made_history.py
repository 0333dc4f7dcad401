"""A history in memory, with a replay of its own: what the planner is tried on without Spark and servers.

The measured waits come from a simulated cluster whose limits the planner does not know.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from jobmaster.model.job import Priority
from jobmaster.pipeline.plan.agent_simulation import Limits, Queue, waits_of_agent
from jobmaster.pipeline.plan.facts import Facts, busiest_hours
from jobmaster.pipeline.plan.model import Daily, Group, Scenario
from jobmaster.pipeline.plan.observed_limits import Observed, observe
from jobmaster.pipeline.plan.queueing import Load
from jobmaster.pipeline.plan.transient_threshold import ScheduledJobs
from jobmaster.pipeline.report.histograms import GAMMA

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


class Start(NamedTuple):
    """One start of a job; microseconds since 1970."""

    group: Group
    ready_us: int
    service_us: int
    hour: datetime


class MadeHistory:
    """Some days of jobs, and the cluster that ran them.

    Args:
        rates: jobs a second of each group, in the one busy hour of each day (the first one).
        service_seconds: mean; exponential.
        real: configuration and limits of the cluster that ran them.
        extra_us: added to the measured wait of each job, by its number in the group.
        growth: of the rate, from each day to the next one.
    """

    def __init__(
        self,
        rates: Mapping[Group, float],
        real: Scenario,
        *,
        days: int = 4,
        seconds: int = 600,
        service_seconds: float = 0.1,
        extra_us: Mapping[Group, Sequence[int]] | None = None,
        growth: float = 1.0,
        seed: int = 1,
    ) -> None:
        dice = random.Random(seed)
        self.real = real
        self.starts: list[Start] = []
        for day in range(days):
            for group, rate in rates.items():
                at = (MONDAY + timedelta(days=day)).timestamp()
                end = at + seconds
                while (at := at + dice.expovariate(rate * growth**day)) < end:
                    service_us = 1 + int(dice.expovariate(1 / service_seconds) * 1e6)
                    self.starts.append(Start(group, int(at * 1e6), service_us, MONDAY + timedelta(days=day)))
        self.starts.sort(key=lambda one: one.ready_us)
        self.measured = self.waits(real)
        for group, extra in (extra_us or {}).items():
            numbers = [number for number, one in enumerate(self.starts) if one.group == group]
            for at, number in enumerate(numbers):
                self.measured[number] += extra[at % len(extra)]

    def waits(self, scenario: Scenario) -> list[int]:
        """Waits of all starts; a factor of the arrivals is not known here."""
        found = [0] * len(self.starts)
        dice = random.Random(7)
        places = [dice.randrange(scenario.buckets[one.group]) for one in self.starts]
        for agent in range(scenario.agents):
            numbers = [number for number, place in enumerate(places) if place % scenario.agents == agent]
            names = sorted({(self.starts[number].group, places[number]) for number in numbers})
            queues = [Queue(Priority.parse(group[1]).value, scenario.slots[group]) for group, _ in names]
            at = {name: index for index, name in enumerate(names)}
            waits = waits_of_agent(
                [self.starts[number].ready_us for number in numbers],
                [self.starts[number].service_us for number in numbers],
                [at[self.starts[number].group, places[number]] for number in numbers],
                queues,
                scenario.limits,
            )
            for number, wait in zip(numbers, waits, strict=True):
                found[number] = wait
        return found

    def replay(self, scenarios: Sequence[Scenario]) -> list[dict[Group, Daily]]:
        """Histograms, as the replay in Spark makes them; arrivals by copies and thinning."""
        return [self._scaled(scenario)._histograms(scenario) for scenario in scenarios]

    def facts(self, scheduled: ScheduledJobs | None = None) -> Facts:
        """The sums that Spark makes of a history."""
        starts: dict[Group, dict[datetime, float]] = {}
        work: dict[Group, dict[datetime, float]] = {}
        for one in self.starts:
            hour = one.hour
            by_hour = starts.setdefault(one.group, {})
            by_hour[hour] = by_hour.get(hour, 0.0) + 1
            line = work.setdefault(one.group, {})
            line[hour] = line.get(hour, 0.0) + one.service_us
        every = [hour for by_hour in starts.values() for hour in by_hour]
        return Facts(
            first=min(every),
            last=max(every),
            starts=starts,
            busy_hours={group: busiest_hours(by_hour, 24) for group, by_hour in work.items()},
            loads={group: self._load(group) for group in starts},
            measured=self._daily(self.measured),
            buckets=dict(self.real.buckets),
            agents=self.real.agents,
            observed=self._observed(),
            scheduled=scheduled or ScheduledJobs(0, 0, 0, 0.0, 0.0),
            later=0.0,
        )

    def _observed(self) -> dict[date, list[Observed]]:
        import numpy as np

        found: dict[date, list[Observed]] = {}
        for day in sorted({one.hour.date() for one in self.starts}):
            numbers = [number for number, one in enumerate(self.starts) if one.hour.date() == day]
            ready = np.array([self.starts[number].ready_us for number in numbers])
            began = ready + np.array([self.measured[number] for number in numbers])
            ended = began + np.array([self.starts[number].service_us for number in numbers])
            if (one := observe(ready, began, ended)) is not None:
                found[day] = [one]
        return found

    def _scaled(self, scenario: Scenario) -> MadeHistory:
        if not scenario.arrivals:
            return self
        dice = random.Random(3)
        other = object.__new__(MadeHistory)
        other.real = self.real
        other.starts = []
        for one in self.starts:
            factor = scenario.arrivals.get(one.group, 1.0)
            for copy in range(int(factor) + (dice.random() < factor - int(factor))):
                other.starts.append(one._replace(ready_us=one.ready_us + int(dice.random() * 1e6)) if copy else one)
        other.starts.sort(key=lambda one: one.ready_us)
        return other

    def _histograms(self, scenario: Scenario) -> dict[Group, Daily]:
        return self._daily(self.waits(scenario))

    def _daily(self, waits: Sequence[int]) -> dict[Group, Daily]:
        width = math.log(GAMMA)
        counts: dict[Group, dict[date, dict[int, int]]] = {}
        for one, wait in zip(self.starts, waits, strict=True):
            bins = counts.setdefault(one.group, {}).setdefault(one.hour.date(), {})
            number = math.ceil(math.log(max(wait, 1)) / width)
            bins[number] = bins.get(number, 0) + 1
        return {group: {day: list(bins.items()) for day, bins in days.items()} for group, days in counts.items()}

    def _load(self, group: Group) -> Load:
        mine = [one for one in self.starts if one.group == group]
        services = [one.service_us / 1e6 for one in mine]
        mean = sum(services) / len(services)
        variance = sum((value - mean) ** 2 for value in services) / len(services)
        days = {one.hour.date() for one in mine}
        seconds = sum(
            (max(times) - min(times)) / 1e6 or 1.0
            for day in days
            if (times := [one.ready_us for one in mine if one.hour.date() == day])
        )
        return Load(len(mine) / seconds, mean, variance / mean**2, 1.0)


def cluster(buckets: Mapping[Group, int], *, agents: int = 1, slots: int = 1, limits: Limits | None = None) -> Scenario:
    """A configuration with the same slots everywhere; without limits of its own it has those of the default settings."""
    return Scenario(agents, dict(buckets), dict.fromkeys(buckets, slots), limits or Limits(at_once=500))
