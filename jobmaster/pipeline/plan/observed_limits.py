"""What bounds the agents, as the history shows it: how many jobs ran at once, and how many started, while jobs waited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jobmaster.pipeline.plan.agent_simulation import Limits
from jobmaster.settings.model import AgentSettings

Times = Any
"""An array of NumPy: 64-bit integers, microseconds."""
_SECOND_US = 1_000_000
_SATURATED_SECONDS_MIN = 3
_TYPICAL = 0.9
"""The quantile over the seconds in which jobs waited. The highest second may owe its figure to a clock that was set."""
_NEAR = 0.15
"""Relative difference up to which an observed number is that of a setting."""


class Observed(NamedTuple):
    """Figures of all agents together, in seconds in which at least one job waited all the time."""

    at_once: float
    """Jobs that ran at once."""
    starts_per_second: float


def observe(ready_us: Times, started_us: Times, ended_us: Times) -> Observed | None:
    """The figures of one stretch of time, such as an hour; ``None`` if jobs hardly ever waited.

    Args:
        ready_us, started_us, ended_us: of the same jobs, in microseconds since any moment.
    """
    import numpy as np

    if not len(ready_us):
        return None
    first, last = int(ready_us.min()) // _SECOND_US, int(ended_us.max()) // _SECOND_US + 1
    edges: Times = np.arange(first, last + 1, dtype=np.int64) * _SECOND_US
    waiting = _mean_within(ready_us, started_us, edges)
    running = _mean_within(started_us, ended_us, edges)
    starts, _ = np.histogram(started_us, bins=edges)
    saturated = waiting >= 1.0
    if saturated.sum() < _SATURATED_SECONDS_MIN:
        return None
    return Observed(float(np.quantile(running[saturated], _TYPICAL)), float(np.quantile(starts[saturated], _TYPICAL)))


def _mean_within(begins_us: Times, ends_us: Times, edges: Times) -> Any:
    """Mean number of intervals that cover each stretch between two edges."""
    import numpy as np

    def passed(moments: Times) -> Any:
        # The sum over all moments of the time since then, at each edge.
        ordered = np.sort(moments)
        sums = np.concatenate([[0], np.cumsum(ordered)])
        before = np.searchsorted(ordered, edges)
        return (before * edges - sums[before]).astype(np.float64)

    return np.diff(passed(begins_us) - passed(ends_us)) / np.diff(edges)


def limits_to_try(observed: Sequence[Observed], agents: int, configured: Limits) -> list[Limits]:
    """The limits of an agent that may explain the history, the simplest first.

    Args:
        observed: of several hours.
        configured: what the settings say; it is always the first.
    """
    found = [configured]
    if not observed:
        return found
    at_once = max(1, round(max(one.at_once for one in observed) / agents))
    rate = max(one.starts_per_second for one in observed) / agents
    start_us = round(_SECOND_US / rate) if rate > 0 else 0
    bounded = configured.at_once is None or at_once < configured.at_once
    if bounded:
        found.append(configured._replace(at_once=at_once))
    if start_us:
        found.append(configured._replace(start_us=start_us))
        if bounded:
            found.append(Limits(at_once, start_us))
    return found


def cause_of(limits: Limits, configured: Limits, agent: AgentSettings) -> str | None:
    """What the limits of an agent are, for people; ``None`` when they are those of the settings."""
    if limits == configured:
        return None
    causes = []
    if limits.at_once is not None and limits.at_once != configured.at_once:
        causes.append(f"an agent ran {limits.at_once} jobs at once while others waited: {_name(limits.at_once, agent)}")
    if limits.start_us != configured.start_us:
        rate = _SECOND_US / limits.start_us
        causes.append(f"an agent started {rate:.3g} jobs a second while others waited: the processor of its process")
    return "; ".join(causes)


def _name(at_once: int, agent: AgentSettings) -> str:
    settings = {
        "max_running": agent.max_running,
        "threads": agent.threads,
        "isolated_processes": agent.isolated_processes,
    }
    near = [
        f"`{name}` is {value}" for name, value in settings.items() if abs(at_once - value) <= max(value * _NEAR, 0.5)
    ]
    return near[0] if near else "processors or a server that the jobs share"
