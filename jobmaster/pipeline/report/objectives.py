"""Service level objectives: the share of jobs that keeps a promise, the error budget, and how fast it is used up.

An objective promises that a share of the jobs of a lane, priority or handler waits, runs or is done within a time, or
succeeds. The *error budget* of a window is the number of jobs that may miss the promise: the rest of the share, of all jobs
of the window. The *burn rate* of a shorter time is the share of jobs that missed it there, divided by the share that may: at
1 the budget lasts exactly for the window. Source of the terms: Site Reliability Workbook, "Alerting on SLOs".

Counts come from figures by the hour. Jobs that expired have missed a promise of waiting, of total time and of success. Jobs
that still wait are not counted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from jobmaster.model.errors import InputError
from jobmaster.model.job import Priority
from jobmaster.model.suggestion import did_you_mean
from jobmaster.settings.problems import Origin, OriginKind
from jobmaster.settings.yaml_tree import MappingNode, ScalarNode, SequenceNode, parse_yaml
from jobmaster.units import parse_duration, rounded_us

BURN_HOURS = (1, 6, 72)
"""Times over which burn rates are reported."""
_HINT = 'such as "priority=critical waiting=1s share=99.9" or "handler=bill success=true share=99"'
_OBJECTIVES = "objectives"


class Promise(StrEnum):
    """What an objective is about; the first three are metrics of the latency figures."""

    WAITING = "waiting"
    RUNNING = "running"
    TOTAL = "total"
    SUCCESS = "success"


_SCOPE = ("lane", "priority", "handler")
_WORDS = ("name", *_SCOPE, *Promise, "share")


class Objective(NamedTuple):
    """One objective."""

    name: str
    promise: Promise
    within_us: float | None
    """Bound of the time; ``None`` for success."""
    share: float
    """Of the jobs, above 0 and below 1."""
    scope: Mapping[str, str]
    """Lane, priority and handler that it is about, as far as they are given."""

    def covers(self, group: Mapping[str, str]) -> bool:
        """Whether jobs of a lane, priority and handler are among its jobs."""
        return all(group[name] == value for name, value in self.scope.items())


class HourOfPromise(NamedTuple):
    """The jobs of an objective that ended in one hour."""

    hour: int
    """Hours since 1970, UTC."""
    jobs: int
    kept: int
    """Jobs for which the promise was kept."""


class ObjectiveResult(NamedTuple):
    """An objective and what became of it over a window."""

    objective: Objective
    jobs: int
    kept: int
    burn: tuple[float | None, ...]
    """Rates over the last ``BURN_HOURS``; ``None``: no job ended then."""
    left: tuple[tuple[int, float], ...]
    """Share of the budget that was left at the end of each hour with jobs; below zero: more than all of it was used."""

    @property
    def missed(self) -> int:
        return self.jobs - self.kept

    @property
    def allowed(self) -> float:
        """The error budget, jobs."""
        return (1.0 - self.objective.share) * self.jobs

    @property
    def achieved(self) -> float | None:
        """Share of jobs that kept the promise; ``None`` without jobs."""
        return self.kept / self.jobs if self.jobs else None

    @property
    def met(self) -> bool:
        return self.missed <= self.allowed * (1 + 1e-9)

    def burns(self, limit: float) -> bool:
        """Whether the budget burns faster than a limit, in the last hour and still over the second time of ``BURN_HOURS``."""
        return all(rate is not None and rate > limit for rate in self.burn[:2])


def parse_objective(text: str) -> Objective:
    """An objective of words ``name=value``.

    Raises:
        InputError: it is none.
    """
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError as error:
        raise InputError(f"--objective {text!r} cannot be read: {error}", hint=_HINT) from None
    return _objective({name: value for name, _, value in pairs}, f"--objective {text!r}")


def read_objectives(path: Path) -> list[Objective]:
    """Objectives of a YAML file: a list ``objectives`` of mappings with the words of the option.

    Raises:
        InputError: the file cannot be read, or something in it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}", hint="name a file of YAML with --objectives") from None
    root, problems = parse_yaml(text, Origin(OriginKind.FILE, str(path)))
    if problems:
        raise InputError(f"{problems[0].origin}: {problems[0].message}", hint=problems[0].hint)
    listed = root.entries.get(_OBJECTIVES) if isinstance(root, MappingNode) else None
    if not isinstance(root, MappingNode) or listed is None or not isinstance(listed.value, SequenceNode):
        raise InputError(f"{path} has no list {_OBJECTIVES!r}", hint=f"begin it with {_OBJECTIVES}: and a list")
    if others := [name for name in root.entries if name != _OBJECTIVES]:
        raise InputError(f"{path} has an unknown key {others[0]!r}", hint=f"its only key is {_OBJECTIVES}")
    found = []
    for node in listed.value.items:
        if not isinstance(node, MappingNode):
            raise InputError(
                f"{node.origin}: an objective is a mapping", hint="such as {lane: mail, waiting: 1s, share: 99}"
            )
        words = {}
        for name, entry in node.entries.items():
            if not isinstance(entry.value, ScalarNode):
                raise InputError(f"{entry.origin}: {name} is no single value", hint=_HINT)
            words[name] = entry.value.text
        found.append(_objective(words, str(node.origin)))
    return found


def _objective(words: Mapping[str, str], where: str) -> Objective:
    for word in words:
        if word not in _WORDS:
            near = did_you_mean(word, _WORDS)
            raise InputError(
                f"{where}: {word!r} is no word of an objective", hint=near or f"they are {', '.join(_WORDS)}"
            )
    promises = [promise for promise in Promise if promise in words]
    if len(promises) != 1:
        raise InputError(f"{where} needs one of {', '.join(Promise)}", hint=_HINT)
    (promise,) = promises
    scope = {name: words[name] for name in _SCOPE if words.get(name)}
    labels = [priority.label for priority in Priority]
    if scope.get("priority", labels[0]) not in labels:
        raise InputError(f"{where}: {scope['priority']!r} is no priority", hint=f"they are {', '.join(labels)}")
    within_us = None
    if promise is Promise.SUCCESS:
        if words[promise] not in ("true", "yes"):
            raise InputError(f"{where}: success is {words[promise]!r}", hint="write success=true, or leave it out")
    else:
        try:
            within_us = parse_duration(words[promise]) * 1e6
        except ValueError as error:
            raise InputError(f"{where}: {promise} {words[promise]!r}: {error}", hint=_HINT) from None
    share = _share(words.get("share"), where)
    said = f"{promise} within {rounded_us(within_us)}" if within_us is not None else promise.value
    name = words.get("name") or f"{' '.join(scope.values()) or 'all jobs'}: {said}"
    return Objective(name, promise, within_us, share, scope)


def _share(text: str | None, where: str) -> float:
    try:
        percent = float((text or "").rstrip(" %"))
    except ValueError:
        percent = 0.0
    if not 0.0 < percent < 100.0:
        raise InputError(f"{where}: share {text!r} is no percentage above 0 and below 100", hint="such as share=99.9")
    return percent / 100.0


def result_of(
    objective: Objective, hours: Iterable[HourOfPromise], *, until_hour: int, window_hours: int
) -> ObjectiveResult:
    """What became of an objective in the last ``window_hours`` before the hour ``until_hour``.

    Args:
        hours: each hour once, in any order; others than those of the window do not count.
    """
    known = sorted(one for one in hours if until_hour - window_hours <= one.hour < until_hour)
    jobs, kept = sum(one.jobs for one in known), sum(one.kept for one in known)
    allowed = (1.0 - objective.share) * jobs
    left, missed = [], 0
    for one in known:
        missed += one.jobs - one.kept
        left.append((one.hour, 1.0 - missed / allowed if allowed else 1.0))
    burn = tuple(_burn(objective, [one for one in known if one.hour >= until_hour - hours]) for hours in BURN_HOURS)
    return ObjectiveResult(objective, jobs, kept, burn, tuple(left))


def _burn(objective: Objective, hours: Sequence[HourOfPromise]) -> float | None:
    jobs = sum(one.jobs for one in hours)
    return sum(one.jobs - one.kept for one in hours) / jobs / (1.0 - objective.share) if jobs else None
