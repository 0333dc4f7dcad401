"""Writes the plan as a configuration for agents, with the reasons as comments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jobmaster.model.job import Priority
from jobmaster.settings.model import AgentSettings
from jobmaster.units import rounded_us


class Recommendation(NamedTuple):
    """The recommendation for one lane and priority."""

    lane: str
    priority: str
    buckets: int
    """In the whole cluster."""
    objective_us: float
    waits_us: Mapping[str, float]
    """``p50``, ``p95``, ``p99`` and ``objective`` (at the requested quantile), by the replay."""
    interval_us: tuple[float, float] | None
    """90 % interval over resampled days, at the requested quantile; ``None`` with one day only."""
    utilisation: float
    screened: int
    """Buckets by the formula alone."""
    screened_wait_us: float
    """Wait by the formula for the chosen number."""
    jobs: int
    """Number of replayed jobs."""
    curve: Sequence[tuple[int, float]]
    """``(buckets, wait)`` at the quantile, including the unexplained wait."""
    present: int
    """Buckets that had jobs of the group in the median busy hour."""
    measured_us: float
    """Measured wait at the quantile, with the present buckets."""
    unexplained_us: float
    """Measured wait minus the replayed wait with the same number of buckets: more buckets do not reduce it."""
    met: bool


LIMITS = (
    "Service times were measured under the present concurrency; more buckets may slow what they share (a database, a disk).",
    "What never came because producers were held up is not in the history.",
    "Jobs were placed by hash; the real placement prefers the emptier of two buckets.",
    "Limits across buckets (max_running, threads, cores) are not part of the replay. What they cost was measured, as the wait"
    " that the replay of the present buckets does not explain, and is added to every wait.",
)


def yaml_of(
    choices: Sequence[Recommendation], kind: str, agent: AgentSettings, agents: int, head: Sequence[str]
) -> str:
    """A configuration with the bucket counts of one kind of agent.

    Args:
        agents: processes of that kind that share the buckets.
        head: lines of the head comment.
    """
    present = agent.bucket_counts()
    lanes = sorted({*present, *(choice.lane for choice in choices)})
    by_group = {(choice.lane, choice.priority): choice for choice in choices}
    text = [f"# {line}" for line in head]
    text += ["#", "# Limits of this plan:", *(f"# - {line}" for line in LIMITS), ""]
    text += ["agents:", f"  {kind}:", "    lanes:"]
    for lane in lanes:
        text.append(f"      {lane}:")
        for priority in sorted(Priority, reverse=True):
            choice = by_group.get((lane, priority.label))
            if choice is None:
                kept = present[lane].of(priority) if lane in present else 1
                text.append(f"        {priority.label}: {kept}  # as it is; no job of it was seen")
            else:
                text.append(
                    f"        {priority.label}: {math.ceil(choice.buckets / agents)}  # {_reason(choice, agents)}"
                )
    return "\n".join(text) + "\n"


def _reason(choice: Recommendation, agents: int) -> str:
    shared = f"{choice.buckets} in all, " if agents > 1 else ""
    certain = ""
    if choice.interval_us is not None:
        certain = f" ({rounded_us(choice.interval_us[0])} to {rounded_us(choice.interval_us[1])} over days)"
    met = "" if choice.met else "NOT MET: "
    if choice.unexplained_us >= choice.objective_us:
        unexplained = rounded_us(choice.unexplained_us)
        met += f"of {rounded_us(choice.measured_us)} measured, {unexplained} have another cause than buckets; "
    p50, p99, at_objective = (rounded_us(choice.waits_us[name]) for name in ("p50", "p99", "objective"))
    return (
        f"{met}{shared}waits p50 {p50}, p99 {p99}, at the objective's quantile {at_objective}{certain}; "
        f"objective {rounded_us(choice.objective_us)}; {choice.utilisation:.0%} busy"
    )
