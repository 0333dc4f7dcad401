"""The overview: whether all is well, and if not, where."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from jobmaster.rules.drain_time import DrainTime, Trend, drain_time
from jobmaster.units import rounded_duration
from jobmaster.web.pages.rendering import environment, number
from jobmaster.web.pages.samples import Totals

LINE_SECONDS = 60.0
"""Span of the small charts."""
RATE_SECONDS = 10.0
"""Span of the rate that stands as a figure."""


def draw_live_part(samples: Sequence[Totals]) -> str:
    """The part of the overview that changes with each sample, as HTML."""
    now = samples[-1]
    line = [each for each in samples if each.at_us >= now.at_us - LINE_SECONDS * 1e6]
    sizes: dict[tuple[str, int], list[tuple[float, int]]] = {}
    for sample in line:
        for group in sample.groups:
            sizes.setdefault((group.lane, group.priority), []).append((sample.at_us / 1e6, group.backlog))
    rows = [(group, drain_time(sizes[group.lane, group.priority])) for group in now.groups]
    recorded = _rates(line)
    lately = [rate for at_us, rate in recorded if at_us >= now.at_us - RATE_SECONDS * 1e6]
    oldest = min([each.oldest_us for each in now.groups if each.due and each.oldest_us is not None], default=None)
    return (
        environment()
        .get_template("overview_live.html")
        .render(
            now_us=now.at_us,
            now=now,
            rows=rows,
            drain_text=drain_text,
            oldest_seconds=None if oldest is None else max(now.at_us - oldest, 0) / 1e6,
            recorded=sum(lately) / len(lately) if lately else None,
            recorded_line=[rate for _, rate in recorded],
            backlog_line=[each.total("backlog") for each in line],
            running_line=[each.total("running") for each in line],
            held_line=[each.total("held") - each.total("due") for each in line],
            overdue_line=[each.total("overdue") for each in line],
            agents_line=[each.leased for each in line],
            troubled_line=[each.troubled for each in line],
        )
    )


def recorded_per_second(samples: Sequence[Totals]) -> float | None:
    """Jobs recorded a second, on the average of the last minute of the samples; ``None``: not known."""
    line = [each for each in samples if each.at_us >= samples[-1].at_us - LINE_SECONDS * 1e6] if samples else []
    rates = [rate for _, rate in _rates(line)]
    return sum(rates) / len(rates) if rates else None


def _rates(line: Sequence[Totals]) -> list[tuple[int, float]]:
    """Jobs recorded a second, from each sample to the next. A fall is a new subscription, not a rate."""
    rates = []
    for before, after in pairwise(line):
        seconds = (after.at_us - before.at_us) / 1e6
        if seconds > 0 and after.recorded >= before.recorded:
            rates.append((after.at_us, (after.recorded - before.recorded) / seconds))
    return rates


def drain_text(drain: DrainTime) -> Markup | str:
    """An estimate in words."""
    if drain.trend is Trend.EMPTY:
        return Markup('<span class="soft">no backlog</span>')
    if drain.trend is Trend.UNKNOWN:
        return Markup('<span class="soft">not known yet</span>')
    if drain.trend is Trend.STEADY:
        return "steady"
    if drain.trend is Trend.GROWING:
        return Markup('<span class="warn-text">growing, {}/s</span>').format(number(drain.per_second))
    return f"in about {rounded_duration(drain.seconds or 0.0)}"
