"""What an operator watches: held jobs by their due time, rescues, acts of operators, and the servers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from jobmaster import __version__
from jobmaster.client.inspect.failures import WINDOW_SECONDS
from jobmaster.doctor.examination import examine, why
from jobmaster.doctor.findings import CheckStatus, Finding
from jobmaster.model.errors import InputError
from jobmaster.model.job import Priority
from jobmaster.model.job_view import moment
from jobmaster.units import UnitError, parse_duration
from jobmaster.web.pages.overview import recorded_per_second
from jobmaster.web.pages.site import View

RESCUES_MAX = 200
OPERATIONS_MAX = 200
BULK_MAX = 20
PROBLEMS_SECONDS = 10.0
"""How long the results of the checks are shown to further viewers."""
BELL_SECONDS = 60.0
"""How old the count of the problems may be: the checks open connections to every server."""
FAILURES_SECONDS = 10.0
"""How long groups of failures are shown to further viewers."""
FORECAST_MINUTES = 60
HELD_SECONDS = 10.0
"""How long a count of the held jobs is shown: it passes over all of them."""
BANDS = (
    ("overdue", 0.0),
    ("1 min", 60.0),
    ("10 min", 600.0),
    ("1 h", 3600.0),
    ("6 h", 21_600.0),
    ("24 h", 86_400.0),
    ("7 days", 604_800.0),
    ("later", float("inf")),
)
"""Name of a band, and its end in seconds from now."""
_BOUNDS = sorted({0.0, *(60.0 * minute for minute in range(1, FORECAST_MINUTES + 1)), 21_600.0, 86_400.0, 604_800.0})
_PRIORITIES = sorted(Priority)


class Horizon(NamedTuple):
    """Held jobs by the time until they are due."""

    bands: list[tuple[str, list[tuple[str, int]]]]
    """For each band its jobs by priority, as a chart draws them."""
    minutes: list[tuple[datetime | None, list[tuple[str, int]]]]
    """The same for each minute of the next hour; the time of every tenth one."""
    total: int
    overdue: int
    most: int
    """Jobs of the minute with the most."""
    most_minute: int
    """Minutes until that one."""


async def held_page(view: View) -> Response:
    """``/held``."""
    rows = await view.site.report("held_horizon", _BOUNDS, seconds=HELD_SECONDS)
    tick = await view.site.sampler.latest()
    horizon = horizon_of(rows, tick.totals.at_us)
    capacity = recorded_per_second([each.totals for each in view.site.sampler.ticks])
    return view.page(
        "held.html",
        "held",
        refresh_seconds=15,
        horizon=horizon,
        capacity=capacity,
        work_seconds=horizon.most / capacity if capacity else None,
        priorities=[(int(each), each.label) for each in reversed(_PRIORITIES)],
        groups=[group for group in tick.totals.groups if group.held],
    )


def horizon_of(rows: Sequence[dict[str, Any]], now_us: int) -> Horizon:
    """The horizon from counts by priority and number of the interval between two bounds."""
    ends = [*_BOUNDS, float("inf")]
    counts: dict[tuple[int, int], int] = {(row["band"], row["priority"]): row["jobs"] for row in rows}

    def between(after: float, until: float) -> list[tuple[str, int]]:
        chosen = [number for number, end in enumerate(ends) if after < end <= until]
        return [(f"p{int(each)}", sum(counts.get((number, int(each)), 0) for number in chosen)) for each in _PRIORITIES]

    starts = [-1.0, *(end for _, end in BANDS)]
    bands = [(name, between(start, end)) for (name, end), start in zip(BANDS, starts, strict=False)]
    minutes = []
    for minute in range(FORECAST_MINUTES):
        at = moment(now_us + minute * 60_000_000)
        minutes.append((at if minute % 10 == 0 else None, between(60.0 * minute, 60.0 * (minute + 1))))
    sums = [sum(size for _, size in parts) for _, parts in minutes]
    return Horizon(
        bands,
        minutes,
        total=sum(counts.values()),
        overdue=sum(size for _, size in bands[0][1]),
        most=max(sums),
        most_minute=sums.index(max(sums)),
    )


async def rescues_page(view: View) -> Response:
    """``/rescues``."""
    since = _since(view)
    rescues = await view.site.shared(
        ("rescues", since), lambda: view.cluster.inspect.rescues(since=since, limit=RESCUES_MAX)
    )
    losses = await view.site.report("losses", since or 7 * 86_400.0, RESCUES_MAX)
    waits = sorted(each.waited_us for each in rescues if each.waited_us is not None)
    return view.page(
        "rescues.html",
        "rescues",
        refresh_seconds=3,
        since=view.query.get("since", ""),
        rescues=rescues,
        losses=losses,
        open=sum(1 for each in rescues if each.over_at is None),
        moved=sum(each.jobs_moved or 0 for each in rescues),
        rescued=sum(each.jobs_rescued or 0 for each in rescues),
        p95_us=waits[max(0, round(len(waits) * 0.95) - 1)] if waits else None,
        listed_max=RESCUES_MAX,
    )


def _since(view: View) -> float | None:
    text = view.query.get("since")
    if text is None:
        return None
    try:
        return parse_duration(text)
    except UnitError as error:
        raise InputError(f"'since': {error}") from None


async def failures_page(view: View) -> Response:
    """``/failures``."""
    since = _since(view) or WINDOW_SECONDS
    found = await view.site.shared(
        ("failures", since), lambda: view.cluster.inspect.failures(since=since), FAILURES_SECONDS
    )
    return view.page("failures.html", "failures", refresh_seconds=30, since=view.query.get("since", ""), found=found)


async def problems_page(view: View) -> Response:
    """``/problems``."""
    findings = await _findings(view)
    problems = [each for each in findings if each.status is not CheckStatus.OK]
    return view.page(
        "problems.html",
        "problems",
        refresh_seconds=15,
        problems=sorted(problems, key=lambda each: each.status is not CheckStatus.FAIL),
        passed=[each for each in findings if each.status is CheckStatus.OK],
        why=why,
    )


async def _findings(view: View) -> list[Finding]:
    return await view.site.shared("problems", lambda: examine(view.cluster.settings), PROBLEMS_SECONDS)


async def problem_count(view: View) -> Response:
    """``/problems/count``: how many checks have failed and warned, for the bell of every page."""
    findings = await view.site.shared("problem count", lambda: _findings(view), BELL_SECONDS)
    states = [each.status for each in findings]
    counts = {"failed": states.count(CheckStatus.FAIL), "warned": states.count(CheckStatus.WARN)}
    return Response(msgspec.json.encode(counts), media_type="application/json")


async def operations_page(view: View) -> Response:
    """``/operations``."""
    subject, actor = view.query.get("subject"), view.query.get("actor")
    since = _since(view)
    rows = await view.site.shared(
        ("operations", subject, actor, since),
        lambda: view.cluster.inspect.operator_log(subject=subject, actor=actor, since=since, limit=OPERATIONS_MAX),
    )
    bulk = await view.site.shared("bulk", lambda: view.cluster.bulk.list(limit=BULK_MAX))
    return view.page(
        "operations.html", "operations", refresh_seconds=5, rows=rows, listed_max=OPERATIONS_MAX, bulk=bulk
    )


async def system_page(view: View) -> Response:
    """``/system``."""
    server = (await view.site.report("server"))[0]
    stores = await view.site.report("stores")
    agents = await view.site.shared("agents", view.cluster.inspect.agents)
    hosts = await view.site.shared("hosts", view.cluster.inspect.hosts)
    partitions = await view.site.report("partitions", "job")
    quarantine = (await view.site.report("quarantine"))[0]
    local_us = view.site.context.clock.wall_us()
    versions: dict[str, int] = {}
    for agent in agents:
        versions[agent.version] = versions.get(agent.version, 0) + 1
    return view.page(
        "system.html",
        "system",
        refresh_seconds=10,
        server=server,
        stores=stores,
        versions=versions,
        hosts=hosts,
        partitions=len(partitions),
        quarantine=quarantine["kept"],
        clock_seconds=(local_us - server["now_us"]) / 1e6,
        up=timedelta(seconds=round(server["up_seconds"])),
        settings=view.cluster.settings,
        own_version=__version__,
        read_only=view.site.context.read_only,
    )
