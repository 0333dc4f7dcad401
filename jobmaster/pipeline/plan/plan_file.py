"""The plan as a document in the lake: what was measured, what the model says of it, what is proposed and predicted.

It is kept, so that it can be compared later with what has happened since (``jobmaster pipeline review``). Times are
microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jobmaster.model.errors import InputError, NotFound, Refused
from jobmaster.pipeline.plan.model import Group, ObjectiveStatus

if TYPE_CHECKING:
    from jobmaster.pipeline.lake.lake import Lake

PLAN_FORMAT = 2
"""Version of the document. Version 1, of earlier builds, had no predictions for the present configuration."""
FOLDER = "plans"
_NAME = re.compile(r"[0-9a-f]{32}")
_LINE_OF_YAML = re.compile(r"^# Plan (?P<name>[0-9a-f]{32})\b", re.MULTILINE)


class PlanWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Waits of a group at some quantiles."""

    p50: float
    p95: float
    p99: float
    objective: float
    """At the quantile of the plan."""


class BackTest(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted from the other days, and measured on the days that were held out."""

    predicted: PlanWaits
    measured: PlanWaits
    factor: float
    """The greater over the smaller, at the quantile of the plan."""
    arrivals_error: float | None
    """Sum of the absolute errors of the forecast by hours, over the arrivals."""


class PlannedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One lane and priority."""

    lane: str
    priority: str
    objective_us: float
    jobs: int
    """Number of replayed jobs."""
    present: int
    """Buckets that had jobs of the group in the median busy hour."""
    present_slots: int
    buckets: int
    """Proposed, in the whole cluster."""
    slots: int
    """Proposed, of one bucket."""
    measured: PlanWaits
    model: PlanWaits
    """Replay of the present configuration and load, with the limits and delays that explain the measured waits best."""
    difference: float
    """Factor between measured and model, at the median or at the quantile of the plan: the greater of both."""
    agrees: bool
    delay_us: float
    """Of every job, whatever its queue."""
    unexplained_us: float
    """Measured above the model at the quantile of the plan. It is part of each prediction."""
    factor: float
    """Planned arrivals over those of the replayed hours."""
    growth: float
    """From week to week; part of ``factor``."""
    busiest_hour: float
    """Arrivals forecast for the busiest hour of a week, at the planned load."""
    as_is: PlanWaits
    """Predicted for the planned load with the present number of buckets of an agent."""
    waits_us: PlanWaits
    """Predicted for the planned load and the proposal."""
    interval_us: tuple[float, float] | None
    """90 % interval over resampled days, at the quantile of the plan; ``None`` with one day only."""
    utilisation: float
    screened: int
    """Buckets by the formula alone."""
    curve: tuple[tuple[int, float], ...]
    """Buckets and predicted wait at the quantile of the plan."""
    backtest: BackTest | None
    status: ObjectiveStatus
    why: str
    """Reason for a status other than ``met``."""

    @property
    def group(self) -> Group:
        return self.lane, self.priority

    @property
    def name(self) -> str:
        """``lane/priority``."""
        return f"{self.lane}/{self.priority}"


class PlanDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A plan."""

    format: int
    cluster: str
    """uid of the cluster."""
    name: str
    made_at: datetime
    first: datetime
    """Beginning of the history."""
    last_day: str
    quantile: float
    hours: int
    kind: str
    present_agents: int
    """Agents that ran jobs in the median busy hour."""
    agents: int
    """Proposed."""
    limits: str
    """What bounds an agent beside the settings, for people; empty if nothing does."""
    ahead: int
    """Days."""
    what_if: str
    """The load and agents that were asked for; empty: none."""
    groups: tuple[PlannedGroup, ...]
    threshold_seconds: float
    said: str
    notes: tuple[str, ...]
    diff: str
    yaml: str


def write_plan(lake: Lake, document: PlanDocument) -> str:
    """Write a plan into the lake; returns the path in the lake of its configuration."""
    lake.write_json(f"{FOLDER}/{document.name}.json", record_of(document))
    path = f"{FOLDER}/{document.name}.yaml"
    lake.write(path, document.yaml.encode())
    return path


def record_of(document: PlanDocument | PlannedGroup) -> dict[str, Any]:
    """The document as plain data."""
    found: dict[str, Any] = msgspec.to_builtins(document)
    return found


def read_plan(lake: Lake, named: str, cluster: str) -> PlanDocument:
    """A plan that was kept.

    Args:
        named: its name, or a file: the document, or the configuration that the plan has written.
        cluster: uid of the cluster.

    Raises:
        InputError: the file is none of these, or of a newer version.
        NotFound: the lake has no such plan. Refused: it is a plan of another cluster.
    """
    name = named
    if not _NAME.fullmatch(named):
        content = _content(Path(named))
        if content.lstrip().startswith("{"):
            return plan_of(content.encode(), named, cluster)
        match = _LINE_OF_YAML.search(content)
        if match is None:
            raise InputError(
                f"{named} is no plan and no configuration that a plan has written",
                hint="name the file of --out with its first comment, or a plan that `jobmaster pipeline plan` has printed",
            )
        name = match["name"]
    document = lake.read_json(f"{FOLDER}/{name}.json")
    if document is None:
        raise NotFound(f"the lake {lake.where} has no plan {name}", hint="name another lake with --lake")
    return plan_of(msgspec.json.encode(document), f"plan {name}", cluster)


def plan_of(content: bytes, source: str, cluster: str) -> PlanDocument:
    """A plan from its JSON; ``InputError`` and ``Refused`` as `read_plan`."""
    try:
        head = msgspec.json.decode(content, type=dict[str, Any])
        version = head.get("format", 1)
        if type(version) is int and version > PLAN_FORMAT:
            raise InputError(
                f"{source} was written by a newer version (format {version}, ours is {PLAN_FORMAT})",
                hint="update this program",
            )
        if version != PLAN_FORMAT:
            raise InputError(
                f"{source} was written by an earlier version, which kept no predictions", hint="make a new plan"
            )
        document = msgspec.json.decode(content, type=PlanDocument)
    except msgspec.DecodeError as error:
        raise InputError(f"{source} is no plan: {error}", hint="it is damaged; make a new plan") from None
    if document.cluster != cluster:
        raise Refused(
            f"{source} was made for another cluster ({document.cluster}, ours is {cluster})",
            hint="give the configuration of that cluster, or make a plan for this one",
        )
    return document


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(f"cannot read the plan {path}: {reason}", hint="name a plan or a file") from None


def by_group(document: PlanDocument) -> Mapping[Group, PlannedGroup]:
    """The groups of a plan."""
    return {one.group: one for one in document.groups}
