"""Chooses buckets, slots and agents: the formula names candidates, the replay of the busiest hours decides.

First the present configuration is replayed and compared with what was measured. Limits of an agent that explain the
difference are part of every other replay; what stays unexplained is added to every prediction of the group. Pure, given the
replay.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from jobmaster.model.job import Priority
from jobmaster.pipeline.plan.agent_simulation import Limits
from jobmaster.pipeline.plan.arrival_curve import HOUR, WEEK, fit_curve
from jobmaster.pipeline.plan.backtest import BackTester, held_out_days
from jobmaster.pipeline.plan.facts import Facts, Replayer
from jobmaster.pipeline.plan.model import Daily, Group, ObjectiveStatus, Scenario, jobs_of, wait_us
from jobmaster.pipeline.plan.observed_limits import cause_of
from jobmaster.pipeline.plan.options import PlanOptions, planned_factors
from jobmaster.pipeline.plan.plan_file import BackTest, PlannedGroup, PlanWaits
from jobmaster.pipeline.plan.present_model import PresentModel, calibrate, waits_of
from jobmaster.pipeline.plan.queueing import (
    Load,
    buckets_by_formula,
    candidates_around,
    candidates_between,
    utilisation,
)
from jobmaster.pipeline.report.histograms import quantiles
from jobmaster.settings.model import AgentSettings
from jobmaster.units import rounded_us

_BUCKETS_OF_AGENT = 8
"""A group that needs more buckets of an agent gets more slots first."""
_SLOTS_MAX = 1000
_AGENT_FACTORS = (1.5, 2.0, 3.0, 4.0)
_RESAMPLES = 200
_INTERVAL = (0.05, 0.95)


class Choice(NamedTuple):
    """A plan without its texts."""

    groups: tuple[PlannedGroup, ...]
    present_agents: int
    agents: int
    limits: str
    """For people; empty if the settings alone bound an agent."""


class Chooser:
    """Makes one plan.

    Args:
        replay: of the busiest hours of the facts.
        progress: prints a line.

    Raises:
        InputError: a mix of priorities that the history knows nothing of.
    """

    def __init__(
        self,
        facts: Facts,
        options: PlanOptions,
        agent: AgentSettings,
        replay: Replayer,
        progress: Callable[[str], None],
    ) -> None:
        self._facts = facts
        self._options = options
        self._agent = agent
        self._replay = replay
        self._progress = progress
        self._groups = sorted(facts.starts, key=_by_urgency)
        self._configured = Limits(at_once=agent.max_running)
        agents = facts.agents or 1
        slots = {group: options.slots or agent.slots_of(group[0], _priority(group)) for group in self._groups}
        self._present = Scenario(agents, facts.buckets, slots, self._configured)
        self._curves = {group: fit_curve(facts.starts[group], facts.first, facts.last, _growth(facts, group))
                        for group in self._groups}  # fmt: skip
        self._factors = self._planned_load()
        self._found: dict[tuple[Group, int], Daily] = {}
        """Replayed waits by number of buckets."""

    def choose(self) -> Choice:
        """The plan."""
        days = self._facts.days
        held_out = held_out_days(days)
        training = [day for day in days if day not in held_out]
        self._progress(f"replaying the busiest hours of {len(self._groups)} lanes and priorities")
        models = calibrate(self._facts, self._present, self._replay, [days, training] if held_out else [days])
        model, tester = models[0], None
        if held_out:
            tester = BackTester(self._facts, models[1], held_out, self._options.quantile)
        base = self._base(model)
        first = {group: self._by_formula(group, model, base.slots[group]) for group in self._groups}
        as_is = base._replace(buckets=_shared_out(self._present, base.agents), slots=self._present.slots)
        joint = _joint(base, {group: candidates_around(first[group]) for group in self._groups})
        replayed = list(self._replay([as_is, *joint, *([tester.scenario()] if tester is not None else [])]))
        tested = replayed.pop() if tester is not None else {}
        if as_is.slots == base.slots:
            self._note([as_is], replayed[:1])
        self._note(joint, replayed[1:])
        self._look_closer(model, base)
        final, found = self._settle(model, base._replace(buckets=self._fewest(model)))
        groups = tuple(
            self._planned(
                group, model, final, (replayed[0], found), first[group],
                tester.result(group, tested) if tester is not None else None,
            )
            for group in self._groups
        )  # fmt: skip
        causes = cause_of(model.fit.limits, self._configured, self._agent)
        return Choice(groups, self._present.agents, final.agents, causes or "")

    def tried(self, planned: Mapping[Group, PlannedGroup], agents: int) -> dict[Group, float]:
        """Waits of this history under a plan that was made from another one, at the quantile, in microseconds.

        Args:
            agents: of the plan. Groups that it does not name keep their present buckets.
        """
        (model,) = calibrate(self._facts, self._present, self._replay, [self._facts.days])
        buckets = {**self._present.buckets, **{group: one.buckets for group, one in planned.items()}}
        slots = {**self._present.slots, **{group: one.slots for group, one in planned.items()}}
        (found,) = self._replay([Scenario(agents, buckets, slots, model.fit.limits)])
        quantile = self._options.quantile
        return {group: model.predicted_us(group, found.get(group), quantile) for group in planned}

    # ------------------------------------------------------------ load

    def _planned_load(self) -> dict[Group, float]:
        """Planned arrivals over those of the history: growth, and what was asked for."""
        asked = planned_factors(
            self._options, {group: sum(self._facts.starts[group].values()) for group in self._groups}
        )
        ahead = timedelta(days=self._options.ahead) / WEEK
        return {group: asked[group] * self._curves[group].growth ** ahead for group in self._groups}

    def _busiest_hour(self, group: Group) -> float:
        curve, asked = self._curves[group], self._factors[group]
        if (rolled_up := self._facts.rolled_up.get(group)) is not None and rolled_up.busiest:
            return asked * rolled_up.busiest
        week = (self._facts.last + HOUR * number for number in range(1, 7 * 24 + 1))
        return asked * max(curve.at(hour) / curve.grown(hour) for hour in week)

    def _load(self, group: Group) -> Load:
        load = self._facts.loads[group]
        return load._replace(per_second=load.per_second * self._factors[group])

    # ------------------------------------------------------------ candidates

    def _base(self, model: PresentModel) -> Scenario:
        """The planned load, agents and slots; without buckets."""
        agents = self._options.agents or self._present.agents
        slots = {group: self._planned_slots(group, model, agents) for group in self._groups}
        return Scenario(agents, {}, slots, model.fit.limits, self._factors)

    def _planned_slots(self, group: Group, model: PresentModel, agents: int) -> int:
        slots = self._present.slots[group]
        if self._options.slots is not None:
            return slots
        while self._by_formula(group, model, slots) > _BUCKETS_OF_AGENT * agents and slots * 2 <= _SLOTS_MAX:
            slots *= 2
        return slots

    def _by_formula(self, group: Group, model: PresentModel, slots: int) -> int:
        """Buckets for what the objective leaves for queues; for the whole objective if it leaves nothing."""
        objective = self._options.objective_us(group)
        left = objective - model.beside_queues_us(group, self._options.quantile)
        return buckets_by_formula(
            self._load(group), slots, self._options.quantile, (left if left > 0 else objective) / 1e6
        )

    def _note(self, scenarios: Sequence[Scenario], replayed: Sequence[Mapping[Group, Daily]]) -> None:
        for scenario, histograms in zip(scenarios, replayed, strict=True):
            for group, buckets in scenario.buckets.items():
                self._found.setdefault((group, buckets), histograms.get(group, {}))

    def _look_closer(self, model: PresentModel, base: Scenario) -> None:
        closer = {}
        for group in self._groups:
            passing, failing = self._bracket(model, group)
            if passing is not None and (between := candidates_between(failing, passing)):
                closer[group] = between
        if closer:
            # The other groups keep what passes, because all of them share the agents.
            kept = self._fewest(model)
            scenarios = _joint(base, {group: closer.get(group, [kept[group]]) for group in self._groups})
            self._note(scenarios, self._replay(scenarios))

    def _tried(self, group: Group) -> list[int]:
        return sorted(buckets for one, buckets in self._found if one == group)

    def _predicted(self, model: PresentModel, group: Group, buckets: int) -> float:
        return model.predicted_us(group, self._found[group, buckets], self._options.quantile)

    def _bracket(self, model: PresentModel, group: Group) -> tuple[int | None, int]:
        """The fewest buckets that pass, and the most below them that fail (0: none was tried)."""
        tried, objective = self._tried(group), self._options.objective_us(group)
        passing = [buckets for buckets in tried if self._predicted(model, group, buckets) <= objective]
        if not passing:
            return None, tried[-1]
        return passing[0], max((buckets for buckets in tried if buckets < passing[0]), default=0)

    def _fewest(self, model: PresentModel) -> dict[Group, int]:
        """The fewest buckets that pass. Where none do: the present ones, or as many as bring half of the gain."""
        found = {}
        for group in self._groups:
            passing, _ = self._bracket(model, group)
            found[group] = self._least_bad(model, group) if passing is None else passing
        return found

    def _least_bad(self, model: PresentModel, group: Group) -> int:
        if model.beside_queues_us(group, self._options.quantile) >= self._options.objective_us(group):
            return self._present.buckets[group]  # the wait has another cause than buckets
        waits = {buckets: self._predicted(model, group, buckets) for buckets in self._tried(group)}
        good_enough = min(waits.values()) * 1.1
        return min(buckets for buckets, wait in waits.items() if wait <= good_enough)

    # ------------------------------------------------------------ agents

    def _settle(self, model: PresentModel, chosen: Scenario) -> tuple[Scenario, Mapping[Group, Daily]]:
        """The proposal, replayed as a whole: with more agents if no number of buckets is enough and they are."""
        (found,) = self._replay([chosen])
        missed = self._missed(model, found)
        if self._options.agents is not None or not missed:
            return chosen, found
        larger = []
        for agents in sorted({math.ceil(chosen.agents * factor) for factor in _AGENT_FACTORS}):
            larger.append(chosen._replace(agents=agents, buckets=_shared_out(chosen, agents)))
        for scenario, histograms in zip(larger, self._replay(larger), strict=True):
            if not self._missed(model, histograms):
                return scenario, histograms
        return chosen, found

    def _missed(self, model: PresentModel, found: Mapping[Group, Daily]) -> list[Group]:
        """Groups that miss their objective because jobs wait for others."""
        quantile = self._options.quantile
        missed = []
        for group in self._groups:
            objective = self._options.objective_us(group)
            queues = model.beside_queues_us(group, quantile) < objective
            if queues and model.predicted_us(group, found.get(group), quantile) > objective:
                missed.append(group)
        return missed

    # ------------------------------------------------------------ result

    def _planned(
        self,
        group: Group,
        model: PresentModel,
        final: Scenario,
        replayed: tuple[Mapping[Group, Daily], Mapping[Group, Daily]],
        screened: int,
        backtest: BackTest | None,
    ) -> PlannedGroup:
        """One group of the plan.

        Args:
            replayed: of the present number of buckets under the planned load, and of the proposal.
        """
        quantile, objective = self._options.quantile, self._options.objective_us(group)
        as_is, found = (histograms.get(group) for histograms in replayed)
        comparison = model.compare(group, quantile, objective)
        waits = model.predicted(group, found, quantile)
        status, why = self._status(group, model, waits.objective)
        return PlannedGroup(
            lane=group[0],
            priority=group[1],
            objective_us=objective,
            jobs=jobs_of(self._facts.measured[group]),
            present=self._present.buckets[group],
            present_slots=self._present.slots[group],
            buckets=final.buckets[group],
            slots=final.slots[group],
            measured=waits_of(self._facts.measured[group], quantile),
            model=_raised(waits_of(model.replayed.get(group), quantile), model.fit.delays_us[group]),
            difference=comparison.factor,
            agrees=comparison.agrees,
            delay_us=model.fit.delays_us[group],
            unexplained_us=model.unexplained_us(group, quantile),
            factor=self._factors[group],
            growth=self._curves[group].growth,
            busiest_hour=self._busiest_hour(group),
            as_is=model.predicted(group, as_is, quantile),
            waits_us=waits,
            interval_us=bootstrap_interval(found or {}, quantile, model.beside_queues_us(group, quantile)),
            utilisation=utilisation(self._load(group), final.buckets[group], final.slots[group]),
            screened=screened,
            curve=tuple((count, self._predicted(model, group, count)) for count in self._tried(group)),
            backtest=backtest,
            status=status,
            why=why,
        )

    def _status(self, group: Group, model: PresentModel, predicted_us: float) -> tuple[ObjectiveStatus, str]:
        quantile, objective = self._options.quantile, self._options.objective_us(group)
        measured = rounded_us(wait_us(self._facts.measured[group], quantile))
        if predicted_us > objective:
            beside = model.beside_queues_us(group, quantile)
            if beside >= objective:
                return (
                    ObjectiveStatus.NOT_MET,
                    f"of {measured} measured, {rounded_us(beside)} have another cause than the number of buckets",
                )
            return ObjectiveStatus.NOT_MET, f"{rounded_us(predicted_us)} are predicted"
        comparison = model.compare(group, quantile, objective)
        if not comparison.agrees:
            return (
                ObjectiveStatus.UNKNOWN,
                f"the model has {rounded_us(comparison.model_us)} for the present configuration, and"
                f" {rounded_us(comparison.measured_us)} were measured",
            )
        jobs = jobs_of(self._facts.measured[group])
        if jobs < least_jobs(quantile):
            return ObjectiveStatus.UNKNOWN, f"{jobs} jobs are too few for a quantile of {quantile:g}"
        return ObjectiveStatus.MET, ""


def least_jobs(quantile: float) -> int:
    """Jobs without which nothing is known of a quantile: one of them lies above it."""
    return round(1 / (1 - quantile))


def _growth(facts: Facts, group: Group) -> float | None:
    """From the figures of roll-ups, which reach back further; ``None``: they do not say."""
    rolled_up = facts.rolled_up.get(group)
    return None if rolled_up is None else rolled_up.growth


def _raised(waits: PlanWaits, by_us: float) -> PlanWaits:
    return PlanWaits(
        p50=waits.p50 + by_us, p95=waits.p95 + by_us, p99=waits.p99 + by_us, objective=waits.objective + by_us
    )


def _shared_out(scenario: Scenario, agents: int) -> dict[Group, int]:
    """Buckets of so many agents, each with as many as an agent of the scenario has."""
    if agents == scenario.agents:
        return dict(scenario.buckets)
    return {group: math.ceil(buckets / scenario.agents) * agents for group, buckets in scenario.buckets.items()}


def _joint(base: Scenario, candidates: Mapping[Group, Sequence[int]]) -> list[Scenario]:
    """Scenarios that try every candidate of each group; all groups at once, because they share the agents."""
    most = max((len(counts) for counts in candidates.values()), default=0)
    return [
        base._replace(buckets={group: counts[min(at, len(counts) - 1)] for group, counts in candidates.items()})
        for at in range(most)
    ]


def _priority(group: Group) -> Priority:
    return Priority.parse(group[1])


def _by_urgency(group: Group) -> tuple[str, int]:
    return group[0], -_priority(group).value


def bootstrap_interval(days: Daily, quantile: float, beside_us: float = 0.0) -> tuple[float, float] | None:
    """Bootstrap interval: 90 % of the quantiles over resampled days; ``None`` with one day only.

    Args:
        beside_us: added to each of them.
    """
    if len(days) < 2:
        return None
    dice, histograms = random.Random(1), [days[day] for day in sorted(days)]
    values = sorted(
        quantiles([one for day in dice.choices(histograms, k=len(histograms)) for one in day], (quantile,))[0] or 0.0
        for _ in range(_RESAMPLES)
    )
    low, high = (values[min(int(share * len(values)), len(values) - 1)] + beside_us for share in _INTERVAL)
    return low, high
