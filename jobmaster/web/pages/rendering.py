"""Pages from templates: the environment of Jinja, and what every page shows around its content."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from uuid import UUID

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from jobmaster.client.jobs.timeline import TimelineLine, due_text
from jobmaster.model.job import Priority
from jobmaster.model.job_view import moment
from jobmaster.units import rounded_duration
from jobmaster.web.pages import charts

TEMPLATES = Path(__file__).parent.parent / "templates"

JOB_STATES: Mapping[str, tuple[str, str]] = {
    "SAVE_PENDING": ("wait", "inbox"),
    "QUEUED": ("wait", "inbox"),
    "HELD": ("wait", "clock"),
    "ASSIGNED": ("wait", "inbox"),
    "WAITING": ("wait", "clock"),
    "PROCESSING": ("busy", "play"),
    "SUCCEEDED": ("good", "check"),
    "FAILED": ("bad", "cross"),
    "CANCELLED": ("quiet", "slash"),
    "EXPIRED": ("warn", "clock"),
}
"""State of a job -> colour and sign: no state is told apart by its colour alone."""

OTHER_STATES: Mapping[str, tuple[str, str]] = {
    "ACTIVE": ("good", "check"),
    "STOPPING": ("wait", "clock"),
    "COMPLETING": ("busy", "play"),
    "READY_TO_DELETE": ("quiet", "slash"),
    "LOST": ("bad", "cross"),
    "DRAINING": ("warn", "inbox"),
    "FROZEN": ("cold", "pause"),
    "DEAD": ("bad", "cross"),
    "RETIRED": ("quiet", "slash"),
    "OPEN": ("busy", "play"),
    "CLOSED": ("good", "check"),
    "HALF_OPEN": ("warn", "clock"),
    "RUNNING": ("busy", "play"),
    "FAILING": ("warn", "cross"),
    "CANCELLING": ("warn", "slash"),
    "COMPENSATING": ("warn", "clock"),
    "PENDING": ("wait", "clock"),
    "STARTED": ("busy", "play"),
    "SKIPPED": ("quiet", "slash"),
    "BLOCKED": ("warn", "slash"),
    "PAUSED": ("cold", "pause"),
    "ENDED": ("quiet", "slash"),
    "FIRED": ("good", "check"),
    "MISSED": ("warn", "clock"),
    "WITHDRAWN": ("quiet", "slash"),
    "OK": ("good", "check"),
    "WARN": ("warn", "clock"),
    "FAIL": ("bad", "cross"),
    "WAITING FOR A RESCUER": ("bad", "cross"),
    "DRAINED": ("good", "check"),
    "LOST AGAIN": ("bad", "cross"),
}

NAVIGATION = (
    ("overview", "", "Overview", "o"),
    ("map", "map", "Cluster map", "m"),
    ("jobs", "jobs", "Jobs", "j"),
    ("held", "held", "Held", "h"),
    ("failures", "failures", "Failures", "f"),
    ("rescues", "rescues", "Rescues", "r"),
    ("schedules", "schedules", "Schedules", "s"),
    ("batches", "batches", "Batches", "b"),
    ("workflows", "workflows", "Workflows", "w"),
    ("limits", "limits", "Limits", "l"),
    ("problems", "problems", "Problems", "p"),
    ("operations", "operations", "Operations", "x"),
    ("system", "system", "System", "y"),
)
"""Key of a page, its address, its name, and the letter after ``g`` that leads to it."""
DETAIL_CHARS = 2000
"""Characters of a line of a timeline that a page shows."""
_UNKNOWN = "\u2013"
_NARROW = "\u202f"


def number(value: float | None) -> str:
    """A figure with groups of three digits; a dash for what is not known: an unknown figure is never a zero."""
    if value is None:
        return _UNKNOWN
    if abs(value) < 100 and value != int(value):
        return f"{value:.1f}"
    return f"{value:,.0f}".replace(",", _NARROW)


@pass_context
def when(context: Context, value: datetime | int | None, empty: str = _UNKNOWN) -> Markup | str:
    """A time as so long ago, or ahead; the exact one in its title. A whole number is microseconds since 1970."""
    at = moment(value) if isinstance(value, int) else value
    if at is None:
        return empty
    seconds = context["now_us"] / 1e6 - at.timestamp()
    text = "now" if abs(seconds) < 1 else f"{rounded_duration(abs(seconds))} ago"
    if seconds <= -1:
        text = f"in {rounded_duration(-seconds)}"
    return Markup('<time datetime="{iso}" title="{exact} UTC">{text}</time>').format(
        iso=at.isoformat(), exact=at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3], text=text
    )


def exact(value: datetime | int | None) -> Markup | str:
    """A time in UTC, to the millisecond; a script shows it in the zone of the browser."""
    at = moment(value) if isinstance(value, int) else value
    if at is None:
        return _UNKNOWN
    text = at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return Markup('<time datetime="{iso}" class="exact nowrap" title="{text} UTC">{text}</time>').format(
        iso=at.isoformat(), text=text
    )


def detail(line: TimelineLine) -> Markup:
    """What a line of a timeline says, cut; the due time in it is shown as other times of the page."""
    said = line.detail[:DETAIL_CHARS]
    due = due_text(line.due_us) if line.due_us else ""
    if not due or due not in said:
        return escape(said)
    before, _, after = said.partition(due)
    return Markup("{}due {}{}").format(before, exact(line.due_us), after)


def duration(seconds: float | None) -> str:
    """A duration in two units."""
    return _UNKNOWN if seconds is None else rounded_duration(max(seconds, 0.0))


def micros(us: int | None) -> str:
    """A duration given in microseconds."""
    return _UNKNOWN if us is None else rounded_duration(max(us, 0) / 1e6)


def short_id(value: UUID | str | bytes | None) -> str:
    """The time in an id and its last digits: ids of one moment differ there alone. A link has the full one as its title."""
    if value is None:
        return _UNKNOWN
    full = str(UUID(bytes=value)) if isinstance(value, bytes) else str(value)
    return f"{full[:13]}…{full[-4:]}"


def quoted(value: object) -> str:
    """A value of the search of jobs, as one word whatever is in it: ``job_search`` splits words as a shell does."""
    return shlex.quote(str(value))


def label(priority: int | str) -> str:
    """Name of a priority."""
    return Priority.parse(priority).label.replace("_", " ")


@cache
def environment() -> Environment:
    """The environment of all pages. Every value is escaped where it is put in."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (number, when, exact, detail, duration, micros, short_id, quoted, label)
    made.filters.update({each.__name__: each for each in filters})
    made.globals.update(
        job_states=JOB_STATES,
        other_states=OTHER_STATES,
        navigation=NAVIGATION,
        sparkline=charts.sparkline,
        meter=charts.meter,
        columns=charts.columns,
        run_chart=charts.run_chart,
        workflow_graph=charts.workflow_graph,
        uuid=lambda data: UUID(bytes=data),
    )
    return made
