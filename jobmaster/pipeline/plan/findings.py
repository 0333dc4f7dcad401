"""A plan beside what has happened since. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from jobmaster.pipeline.plan.calibration import DIFFERENCE_MAX, factor_between, relevant_us
from jobmaster.pipeline.plan.facts import Facts
from jobmaster.pipeline.plan.model import Group, jobs_of
from jobmaster.pipeline.plan.plan_file import PlanDocument, PlannedGroup, PlanWaits, by_group
from jobmaster.pipeline.plan.present_model import waits_of

_OTHER_LOAD = 1.5
"""Above this factor between forecast and measured arrivals of the busiest hour, the load is named as the cause."""


class Finding(StrEnum):
    """What became of a prediction."""

    AS_PREDICTED = "as predicted"
    SHORTER = "shorter than predicted"
    LONGER = "longer than predicted"
    OTHER_LOAD = "another load than planned"
    OTHER_CONFIGURATION = "another configuration than planned"
    NO_JOBS = "no jobs since"
    NOT_PLANNED = "not in the plan"


class GroupReview(NamedTuple):
    """One lane and priority since the plan was made. Waits are microseconds."""

    group: Group
    configuration: str
    """``planned``, ``as before`` or another number of buckets."""
    predicted: PlanWaits | None
    measured: PlanWaits | None
    load: float | None
    """Arrivals of the busiest hour over those of the plan."""
    finding: Finding
    missed: bool
    """The objective was not met, and the plan had said that it would be."""


def compare_with(document: PlanDocument, facts: Facts) -> list[GroupReview]:
    """Every group of the plan and of the history since.

    A prediction is that of the proposal where the present number of buckets is the proposed one, and that for the former
    configuration where nothing was changed.
    """
    planned = by_group(document)
    return [_compare(document, group, planned.get(group), facts) for group in sorted({*planned, *facts.starts})]


def _compare(document: PlanDocument, group: Group, planned: PlannedGroup | None, facts: Facts) -> GroupReview:
    measured = facts.measured.get(group)
    waits = waits_of(measured, document.quantile) if jobs_of(measured) else None
    if planned is None:
        return GroupReview(group, "-", None, waits, None, Finding.NOT_PLANNED, False)
    if waits is None:
        return GroupReview(group, "-", planned.waits_us, None, None, Finding.NO_JOBS, False)
    buckets = facts.buckets[group]
    if buckets == planned.buckets:
        configuration, predicted = "planned", planned.waits_us
    elif buckets == planned.present:
        configuration, predicted = "as before", planned.as_is
    else:
        configuration, predicted = f"{buckets} buckets", planned.waits_us
    busiest = max(facts.starts[group].values())
    load = busiest / planned.busiest_hour if planned.busiest_hour else None
    finding = _finding(planned, predicted, waits, configuration, load)
    said_met = predicted.objective <= planned.objective_us
    return GroupReview(
        group, configuration, predicted, waits, load, finding, said_met and waits.objective > planned.objective_us
    )


def _finding(
    planned: PlannedGroup, predicted: PlanWaits, measured: PlanWaits, configuration: str, load: float | None
) -> Finding:
    floor = relevant_us(planned.objective_us)
    factors = [
        factor_between(one, other, floor)
        for one, other in ((predicted.p50, measured.p50), (predicted.objective, measured.objective))
    ]
    if max(factors) <= DIFFERENCE_MAX:
        return Finding.AS_PREDICTED
    if configuration not in ("planned", "as before"):
        return Finding.OTHER_CONFIGURATION
    longer = measured.objective > predicted.objective
    if load is not None and (load > _OTHER_LOAD if longer else load < 1 / _OTHER_LOAD):
        return Finding.OTHER_LOAD
    return Finding.LONGER if longer else Finding.SHORTER
