"""Writes the plan as a configuration for agents, with the reasons as comments, and as a difference to the present one."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jobmaster.model.job import Priority
from jobmaster.pipeline.plan.model import Group, ObjectiveStatus
from jobmaster.pipeline.plan.plan_file import PlannedGroup
from jobmaster.settings.model import AgentSettings
from jobmaster.units import format_duration, rounded_us

LIMITS = (
    "Service times were measured under the present concurrency; more buckets may slow what they share (a database, a disk).",
    "What never came because producers were held up is not in the history.",
    "Jobs were placed by hash; the real placement prefers the emptier of two buckets.",
    "A further agent is taken to have a processor of its own.",
)


class Proposal(NamedTuple):
    """The settings of one kind of agent, as they are or as proposed."""

    kind: str
    agents: int
    """Agents that share the buckets."""
    processes: int
    """Agents that one `agent run` starts."""
    buckets: Mapping[Group, int]
    """Of one agent."""
    slots: Mapping[Group, int]
    threshold_seconds: float


def present_settings(kind: str, agent: AgentSettings, agents: int, threshold_seconds: float) -> Proposal:
    """The configuration as it is."""
    counts = agent.bucket_counts()
    groups = {(lane, priority.label): counts[lane].of(priority) for lane in counts for priority in Priority}
    slots = {group: agent.slots_of(group[0], Priority.parse(group[1])) for group in groups}
    return Proposal(kind, agents, agent.processes, groups, slots, threshold_seconds)


def proposed_settings(
    present: Proposal, choices: Sequence[PlannedGroup], agents: int, threshold_seconds: float
) -> Proposal:
    """The configuration as proposed: groups without jobs keep what they have."""
    buckets, slots = dict(present.buckets), dict(present.slots)
    for choice in choices:
        buckets[choice.group] = math.ceil(choice.buckets / agents)
        slots[choice.group] = choice.slots
    for lane in {lane for lane, _ in buckets}:
        for priority in Priority:
            buckets.setdefault((lane, priority.label), 1)
    # Agents of several machines: each machine starts the same number of processes.
    machines = max(1, present.agents // present.processes)
    processes = present.processes if agents == present.agents else max(1, math.ceil(agents / machines))
    return Proposal(present.kind, agents, processes, buckets, slots, threshold_seconds)


def yaml_of(
    present: Proposal, proposed: Proposal, agent: AgentSettings, choices: Sequence[PlannedGroup], head: Sequence[str]
) -> str:
    """The proposed configuration, with comments.

    Args:
        head: lines of the head comment.
    """
    reasons = {choice.group: _reason(choice, proposed.agents) for choice in choices}
    text = [f"# {line}" for line in head]
    text += ["#", "# Limits of this plan:", *(f"# - {line}" for line in LIMITS), ""]
    return "\n".join(text + _settings(present, proposed, agent, reasons)) + "\n"


def difference(present: Proposal, proposed: Proposal, agent: AgentSettings) -> str:
    """A unified diff from the present configuration to the proposed one; empty if they are equal."""
    lines = difflib.unified_diff(
        _settings(present, present, agent),
        _settings(present, proposed, agent),
        "present",
        "proposed",
        lineterm="",
        n=30,
    )
    return "\n".join(lines)


def _settings(
    present: Proposal, settings: Proposal, agent: AgentSettings, reasons: Mapping[Group, str] | None = None
) -> list[str]:
    """The lines of a configuration.

    Args:
        reasons: the comment of each group; only what changes is named beside the buckets. ``None``: without comments, and
            with what stays.
    """
    text = ["agents:", f"  {settings.kind}:"]
    if reasons is None or settings.processes != present.processes:
        text.append(f"    processes: {settings.processes}")
    text.append("    lanes:")
    for lane in sorted({lane for lane, _ in settings.buckets}):
        text.append(f"      {lane}:")
        for priority in sorted(Priority, reverse=True):
            group = (lane, priority.label)
            comment = ""
            if reasons is not None:
                comment = f"  # {reasons.get(group, 'as it is; no job of it was seen')}"
            text.append(f"        {priority.label}: {settings.buckets[group]}{comment}")
    slots = _lane_slots(present, settings, agent)
    if slots:
        text.append("    lane_slots:")
        for lane, by_priority in sorted(slots.items()):
            text += [f"      {lane}:", *(f"        {label}: {count}" for label, count in by_priority.items())]
    if reasons is None or settings.threshold_seconds != present.threshold_seconds:
        text += ["thresholds:", f"  transient_threshold: {format_duration(settings.threshold_seconds)}"]
    return text


def _lane_slots(present: Proposal, settings: Proposal, agent: AgentSettings) -> dict[str, dict[str, int]]:
    """The setting `lane_slots`: as it is, with the slots that are to change."""
    found: dict[str, dict[str, int]] = {}
    for lane, counts in agent.lane_slots.items():
        for priority in sorted(Priority, reverse=True):
            if (count := counts.of(priority)) is not None:
                found.setdefault(lane, {})[priority.label] = count
    for (lane, label), count in settings.slots.items():
        if count != present.slots.get((lane, label), agent.slots_of(lane, Priority.parse(label))):
            found.setdefault(lane, {})[label] = count
    return found


def _reason(choice: PlannedGroup, agents: int) -> str:
    shared = f"{choice.buckets} in all, " if agents > 1 else ""
    certain = ""
    if choice.interval_us is not None:
        certain = f" ({rounded_us(choice.interval_us[0])} to {rounded_us(choice.interval_us[1])} over days)"
    status = "" if choice.status is ObjectiveStatus.MET else f"{choice.status.value.upper()}: {choice.why}; "
    waits = choice.waits_us
    error = f"; {error_text(choice)}" if choice.backtest is not None else ""
    return (
        f"{status}{shared}waits p50 {rounded_us(waits.p50)}, p99 {rounded_us(waits.p99)}, at the objective's quantile "
        f"{rounded_us(waits.objective)}{certain}; measured p99 {rounded_us(choice.measured.p99)}; objective "
        f"{rounded_us(choice.objective_us)}; {choice.utilisation:.0%} busy{error}"
    )


def error_text(choice: PlannedGroup) -> str:
    """The error on held-out days, for people."""
    if choice.backtest is None:
        return "not tested"
    return f"off by a factor of {choice.backtest.factor:.2g} on held-out days"
