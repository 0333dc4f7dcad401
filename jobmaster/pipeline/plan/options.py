"""Options of a plan, and how their texts are read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from jobmaster.model.errors import InputError
from jobmaster.model.job import Priority
from jobmaster.pipeline.plan.model import Group
from jobmaster.units import parse_duration

OBJECTIVES = {"critical": 1.0, "high": 5.0, "medium": 30.0, "low": 120.0, "very_low": 600.0}
"""Default objectives, in seconds of waiting."""
DAYS_AHEAD = 28
_FACTOR_MAX = 1000.0
_FACTOR = re.compile(r"x?(?P<factor>\d+(?:\.\d+)?)")
_SHARE = re.compile(r"(?P<share>\d+(?:\.\d+)?) ?%")


class PlanOptions(NamedTuple):
    """Options of a plan."""

    objectives: Mapping[str, float] = {}
    """``priority`` or ``lane/priority`` to seconds of waiting."""
    quantile: float = 0.99
    slots: int | None = None
    """Slots of a bucket; ``None``: as configured, more where a group needs many buckets."""
    agents: int | None = None
    """Agents that share the buckets; ``None``: those of the history, more where they are too few."""
    kind: str | None = None
    days: int = 14
    hours: int = 24
    """Number of busiest hours to replay, of each lane and priority."""
    ahead: int = DAYS_AHEAD
    """Days: the plan is for the load of that time, if the load grows as it did."""
    arrivals: Mapping[str, float] = {}
    """``""`` (all), ``priority`` or ``lane/priority`` to a factor of its arrivals."""
    mix: Mapping[str, float] = {}
    """Priority to its share of the arrivals, 0 to 1."""
    out: Path | None = None
    check: bool = False

    def objective_us(self, group: Group) -> float:
        """Objective for a group: microseconds of waiting."""
        return _of_group(self.objectives, group, OBJECTIVES[group[1]]) * 1e6

    def factor(self, group: Group) -> float:
        """Factor of the arrivals of a group, without the mix."""
        return _of_group(self.arrivals, group, self.arrivals.get("", 1.0))


def _of_group(values: Mapping[str, float], group: Group, otherwise: float) -> float:
    return values.get("/".join(group), values.get(group[1], otherwise))


def parse_objectives(texts: Iterable[str]) -> dict[str, float]:
    """``critical=1s`` and ``payroll/medium=30s``.

    Raises:
        InputError: a text has another form.
    """
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        _require_priority("--objective", text, name)
        try:
            found[name] = parse_duration(value)
        except ValueError as error:
            raise InputError(
                f"--objective {text!r}: {error}", hint="such as critical=1s or payroll/medium=500ms"
            ) from None
    return found


def parse_arrivals(texts: Iterable[str]) -> dict[str, float]:
    """``x2`` (all arrivals), ``high=x2`` and ``payroll/low=x0.5``.

    Raises:
        InputError: a text has another form.
    """
    found = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if equals:
            _require_priority("--arrivals", text, name)
        match = _FACTOR.fullmatch(value)
        if match is None or not 0 < float(match["factor"]) <= _FACTOR_MAX:
            raise InputError(
                f"--arrivals {text!r} names no factor above 0 and of at most {_FACTOR_MAX:g}",
                hint="such as x2, high=x1.5 or payroll/low=x0.5",
            )
        found[name] = float(match["factor"])
    return found


def parse_mix(texts: Iterable[str]) -> dict[str, float]:
    """``critical=20%``.

    Raises:
        InputError: a text has another form, or the shares are more than the whole.
    """
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        match = _SHARE.fullmatch(value)
        if match is None or "/" in name:
            raise InputError(f"--mix {text!r} names no share of a priority", hint="such as critical=20%")
        _require_priority("--mix", text, name)
        found[name] = float(match["share"]) / 100
    if sum(found.values()) > 1:
        raise InputError(f"the shares of --mix are {sum(found.values()):.0%} together", hint="give 100% at most")
    return found


def _require_priority(option: str, text: str, name: str) -> None:
    lane, slash, label = name.rpartition("/")
    labels = [priority.label for priority in Priority]
    if label not in labels or (slash and not lane):
        raise InputError(f"{option} {text!r} names no priority", hint=f"they are {', '.join(labels)}")


def require_lanes(options: PlanOptions, lanes: Collection[str]) -> None:
    """Refuse objectives and factors of lanes that neither the configuration nor the history has.

    Raises:
        InputError: a lane is unknown.
    """
    for option, names in (("--objective", options.objectives), ("--arrivals", options.arrivals)):
        for name in names:
            lane, slash, _ = name.rpartition("/")
            if slash and lane not in lanes:
                raise InputError(
                    f"{option} {name}: neither the configuration nor the history has a lane {lane!r}",
                    hint=f"the lanes are {', '.join(sorted(lanes))}",
                )


def planned_factors(options: PlanOptions, starts: Mapping[Group, float]) -> dict[Group, float]:
    """Factor of the arrivals of each group, by ``--arrivals`` and ``--mix``.

    Args:
        starts: of each group in the history.

    Raises:
        InputError: the mix names a priority of which the history has no job, or leaves no share for those that it has.
    """
    total = sum(starts.values())
    by_priority: dict[str, float] = {}
    for (_, priority), count in starts.items():
        by_priority[priority] = by_priority.get(priority, 0.0) + count
    for name in options.mix:
        if not by_priority.get(name):
            raise InputError(
                f"--mix {name}: the history has no job of that priority, so its running times are unknown",
                hint=f"priorities with jobs are {', '.join(sorted(by_priority))}",
            )
    others = sum(count for name, count in by_priority.items() if name not in options.mix)
    left = 1 - sum(options.mix.values())
    if options.mix and not others and left > 1e-9:
        raise InputError(f"the shares of --mix are {1 - left:.0%} together, and no other priority has jobs",
                         hint="give 100% in all")  # fmt: skip
    found = {}
    for group in starts:
        mixed = 1.0
        if options.mix:
            share = options.mix.get(group[1])
            mixed = left * total / others if share is None else share * total / by_priority[group[1]]
        found[group] = options.factor(group) * mixed
    return found
