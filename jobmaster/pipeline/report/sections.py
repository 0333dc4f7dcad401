"""The sections of the report, from its figures and from the documents of other steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any, NamedTuple

from jobmaster.model.job import Priority
from jobmaster.pipeline.report import html, svg
from jobmaster.pipeline.report.aggregates import COUNTS, ENDED
from jobmaster.pipeline.report.arrivals import HOURS_OF_WEEK
from jobmaster.pipeline.report.histograms import gini, quantiles
from jobmaster.pipeline.report.objectives import BURN_HOURS
from jobmaster.pipeline.report.page_data import QUANTILES, Bin, ReportData, all_ended, summed_by
from jobmaster.pipeline.report.plan_part import plan_section
from jobmaster.pipeline.report.svg import Canvas, Plot
from jobmaster.pipeline.report.tables import BY_HANDLER, BY_LANE, METRICS, Tables, costs_by
from jobmaster.pipeline.report.time_axis import labels, moment_text
from jobmaster.units import rounded_us

_TOP = 12
_FAILURES = 25
_HOURS_TO_COMPARE = 48
"""Of a week; with fewer the week has no shape yet."""
_MANY_FAILED = 0.05
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_NO_TENANT = "(none)"
_NO_BREAK = "\u00a0"
"""A blank at which no line ends."""
_DURATIONS = svg.Scale(rounded_us, log=True, ticks=svg.duration_ticks)
"""The axis of durations, microseconds."""
Document = Mapping[str, Any]


class View(NamedTuple):
    """What the page shows, and how it writes times."""

    found: ReportData | None
    """``None``: there are no figures yet."""
    tables: Tables
    zone: tzinfo
    zone_name: str

    def when(self, seconds: float) -> str:
        """A time on an axis."""
        assert self.found is not None
        return moment_text(seconds, self.found.period.unit, self.zone)

    def times(self, canvas: Canvas, xs: Sequence[float]) -> svg.Scale:
        """The axis of some times."""
        return svg.Scale(self.when, labels=svg.Labels(labels(xs[0], xs[-1], self.zone, canvas.labels)))

    def hours(self, canvas: Canvas, xs: Sequence[float]) -> svg.Scale:
        """The same, whose values are written as in a table."""
        return self.times(canvas, xs)._replace(format=lambda at: self.text(datetime.fromtimestamp(at, self.zone)))

    def text(self, moment: datetime) -> str:
        """A time in a table."""
        local = moment.astimezone(self.zone)
        return f"{local.day} {local:%b %Y %H:%M}".replace(" ", _NO_BREAK)


def parts_of(view: View, documents: Mapping[str, Document | None]) -> list[str]:
    """The whole content of the page.

    Args:
        documents: of ``audit``, ``plan``, ``objectives`` and ``anomalies``.
    """
    sections: list[tuple[str, str, list[str]]] = []
    if view.found is not None:
        sections += _figures(view)
    for title, made, document in (
        ("Objectives", _objectives, documents["objectives"]),
        ("Anomalies", _anomalies, documents["anomalies"]),
        ("Audit", _audit, documents["audit"]),
        ("Plan", _plan, documents["plan"]),
    ):
        if document is not None:
            sections.append((title, *made(view, document)))
    parts = [_tiles(view, documents)]
    if len(sections) > 1:
        parts.append(html.navigation([title for title, _, _ in sections]))
    for title, explanation, cards in sections:
        parts += [html.heading(title, explanation), *cards]
    return parts


def _figures(view: View) -> list[tuple[str, str, list[str]]]:
    found = view.found
    assert found is not None
    skew = [
        html.card(_skew({str(key): all_ended(line) for key, line in summed_by(found.groups, COUNTS, _by(name)).items()}),
                  name.capitalize())
        for name in ("handler", "priority", "lane")
    ]  # fmt: skip
    skew += [html.card(_skew(found.shares[name]), name.removesuffix("_id").capitalize()) for name in found.shares]
    return [
        ("Throughput", f"Jobs that ended, by {found.period.unit.name}.", [html.card(_throughput(view))]),
        ("Backlog", "Jobs that were created and had not ended, counted from the beginning of the history.",
         [html.card(_backlog(view))]),
        ("Latency", "Of jobs that ran. Waiting is from the due time to the start. Values are within 1 %.", [
            html.card(_waiting_over_time(view), "Waiting"),
            html.card(_distribution(found), "Share of jobs that waited no longer than ..."),
            html.card(_latency_table(view, BY_LANE)),
            html.card(_latency_table(view, BY_HANDLER)),
        ]),
        ("Arrivals", "Jobs created in an hour of the week, median of the last weeks, all lanes and priorities together.",
         [html.card(_arrivals(found))]),
        ("Cost", "Time in handlers, of all attempts, by the clock: processor time is not recorded. The largest first.",
         [html.card(_cost(view, name), name.capitalize()) for name in ("tenant", "handler", "lane")]),
        ("Skew", "How evenly the work lies: the largest share against the mean, and the Gini coefficient.", skew),
        ("Trouble", "Attempts that did not conclude their job, and jobs that failed, by handler.",
         [html.card(_trouble(found)), *_failures(view)]),
    ]  # fmt: skip


def _by(name: str) -> Any:
    return lambda row: row[name]


def _tiles(view: View, documents: Mapping[str, Document | None]) -> str:
    groups = view.found.groups if view.found is not None else ()
    line = summed_by(groups, COUNTS, lambda _: "").get("", dict.fromkeys(COUNTS, 0))
    ended = all_ended(line)
    failed = line["failed"] / ended if ended else 0.0
    values = [
        ("jobs created", _number(line["submitted"]), ""),
        ("jobs ended", _number(ended), ""),
        ("failed for good", f"{failed:.2%}", "bad" if failed > _MANY_FAILED else ""),
        ("tried again", _number(line["retried"]), ""),
        ("brought back from dead agents", _number(line["rescued"]), ""),
        ("attempts lost with an agent", _number(line["lost"]), ""),
        ("late writes refused", _number(line["refused"]), ""),
    ]
    if (objectives := documents["objectives"]) is not None:
        missed = sum(not one["met"] for one in objectives["items"])
        values.append(("objectives missed", _number(missed), "bad" if missed else "good"))
    if (anomalies := documents["anomalies"]) is not None:
        count = len(anomalies["items"])
        values.append(("anomalies", _number(count), "bad" if count else "good"))
    if (audit := documents["audit"]) is not None:
        broken = audit["audit_violations"]
        values.append(("violations in the last audit", _number(broken), "bad" if broken else "good"))
    return html.tiles(values)


# ---------------------------------------------------------------- figures


def _throughput(view: View) -> str:
    assert view.found is not None
    rows, width = view.tables["throughput"], view.found.period.unit.seconds
    bars = [(row["at"].timestamp(), [float(row[name]) for name in ENDED]) for row in rows]
    span = [bars[0][0], bars[-1][0] + width]
    return html.figure(
        lambda canvas: svg.stacked(
            ENDED, bars, view.times(canvas, span), svg.Scale(_number), width=width, canvas=canvas
        )
    )  # fmt: skip


def _backlog(view: View) -> str:
    line = [(row["at"].timestamp(), float(row["open"])) for row in view.tables["throughput"]]
    span = [line[0][0], line[-1][0]]
    y = svg.Scale(_number, ticks=svg.whole_ticks)
    return html.figure(lambda canvas: svg.lines({"open jobs": line}, view.times(canvas, span), y, canvas=canvas))


def _waiting_over_time(view: View) -> str:
    rows = view.tables["waiting"]
    xs = [row["at"].timestamp() for row in rows]
    names = {f"p{share * 100:g}": f"p{share * 100:g}_us" for share in QUANTILES}
    series = {name: [(at, row[column]) for at, row in zip(xs, rows, strict=True)] for name, column in names.items()}
    return html.figure(lambda canvas: svg.lines(series, view.times(canvas, xs), _DURATIONS, canvas=canvas))


def _distribution(found: ReportData) -> str:
    by_priority: dict[str, list[Bin]] = {}
    for _, priority, _, metric, bin_, jobs in found.latency:
        if metric == "waiting":
            by_priority.setdefault(priority, []).append((bin_, jobs))
    shares = [at / 50 for at in range(1, 50)] + [0.99, 0.995, 0.999]
    order = [priority.label for priority in sorted(Priority, reverse=True)]
    series = {
        name: [(100 * share, value) for share, value in zip(shares, quantiles(by_priority[name], shares), strict=True)]
        for name in sorted(by_priority, key=lambda name: (order.index(name) if name in order else len(order), name))
    }
    places = svg.Labels([(float(share), f"{share} %") for share in (10, 30, 50, 70, 90)])
    x = svg.Scale(lambda share: f"{share:.4g} %", labels=places)
    return html.figure(lambda canvas: svg.lines(series, x, _DURATIONS, canvas=canvas))


def _latency_table(view: View, by: str) -> str:
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in view.tables["latency"]:
        if row["by"] == by:
            found.setdefault(row["name"], {})[row["metric"]] = row
    most = sorted(found, key=lambda name: (-_jobs_that_ran(found[name]), name))
    lines = [
        [name, _number(_jobs_that_ran(found[name])),
         *(rounded_us(found[name].get(metric, {}).get(column)) for metric in METRICS for column in ("p50_us", "p99_us"))]
        for name in most[: _TOP * 2]
    ]  # fmt: skip
    columns = [by, "jobs", "waited p50", "p99", "ran p50", "p99", "in all p50", "p99"]
    return html.table(columns, lines) if lines else html.nothing()


def _jobs_that_ran(by_metric: Mapping[str, Mapping[str, Any]]) -> int:
    return int(by_metric.get("running", {}).get("jobs", 0))


def _arrivals(found: ReportData) -> str:
    medians: dict[int, float] = {}
    for curve in found.arrivals:
        for at in range(HOURS_OF_WEEK):
            if curve.hours[at].weeks:
                medians[at] = medians.get(at, 0.0) + curve.hours[at].median
    if len(medians) < _HOURS_TO_COMPARE:
        return '<p class="none">less than two days are known</p>'
    values = {
        divmod(at, 24): (value, f"{_WEEKDAYS[at // 24]} {at % 24:02}:00: {_number(value)} jobs")
        for at, value in medians.items()
    }
    plot = html.figure(lambda canvas: svg.cells(_WEEKDAYS, [f"{hour:02}" for hour in range(24)], values, canvas=canvas))
    lines = []
    for curve in found.arrivals:
        busiest = curve.busiest
        if busiest is None:
            continue
        at, hour = busiest
        growth = "-" if curve.growth is None else f"{curve.growth - 1:+.0%}"
        when = f"{_WEEKDAYS[at // 24]} {at % 24:02}:00"
        lines.append([f"{curve.lane} / {curve.priority}", when, _number(hour.median), _number(hour.highest),
                      str(hour.weeks), growth])  # fmt: skip
    columns = ["lane / priority", "busiest hour", "jobs (median)", "most", "weeks", "growth a week"]
    return plot + (html.table(columns, lines) if lines else "")


def _cost(view: View, name: str) -> str:
    rows = view.tables["cost"]
    priced = bool(rows) and "price" in rows[0]
    summed = costs_by(rows, (name,), None)
    prices = summed_prices(rows, name) if priced else {}
    total = sum(row["ran_us"] for row in summed) or 1
    lines = [
        [row[name] or _NO_TENANT, _number(row["jobs"]), rounded_us(row["ran_us"]), f"{row['ran_us'] / total:.1%}",
         rounded_us(row["retried_us"]), _number(row["retries"]), rounded_us(row["waited_us"]),
         *([f"{prices[row[name]]:,.2f}"] if priced else ())]
        for row in summed[:_TOP]
    ]  # fmt: skip
    columns = [name, "jobs", "ran", "share", "of it for nothing", "retries", "waited", *(["price"] if priced else ())]
    return html.table(columns, lines) if lines else html.nothing()


def summed_prices(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """Prices by tenant, handler or lane."""
    found: dict[str, float] = {}
    for row in rows:
        found[row[name]] = found.get(row[name], 0.0) + row["price"]
    return found


def _skew(jobs: Mapping[str, int]) -> str:
    values = sorted(((name, float(count)) for name, count in jobs.items() if count), key=lambda one: (-one[1], one[0]))
    if not values:
        return html.nothing()
    sizes = [value for _, value in values]
    text = f"{len(sizes)} in all, largest / mean {max(sizes) * len(sizes) / sum(sizes):.2f}, Gini {gini(sizes):.2f}"
    return f'<p class="dim">{text}</p>' + html.ranking(values[:_TOP], format_value=_number)


def _trouble(found: ReportData) -> str:
    by_handler = summed_by(found.groups, COUNTS, lambda row: str(row["handler"]))
    worst = sorted(by_handler, key=lambda name: (-by_handler[name]["failed"] - by_handler[name]["retried"], name))
    names = ("retried", "timed_out", "rescued", "lost", "refused")
    lines = []
    for handler in worst[:_TOP]:
        line, ended = by_handler[handler], all_ended(by_handler[handler])
        share = f"{line['failed'] / ended if ended else 0:.2%}"
        lines.append([handler, _number(ended), share, *(_number(line[name]) for name in names)])
    return html.table(["handler", "ended", "failed", "retried", "timed out", "rescued", "lost", "refused"], lines)


def _failures(view: View) -> list[str]:
    lines = [
        [f"{row['handler']}: {row['error_type']}: {row['line']}", _number(row["jobs"]), _number(row["attempts"]),
         view.text(row["first_at"]), view.text(row["last_at"]), row["fingerprint"]]
        for row in view.tables["failures"][:_FAILURES]
    ]  # fmt: skip
    columns = ["kind of failure", "jobs failed", "tried again", "first seen", "last seen", "fingerprint"]
    return [html.card(html.table(columns, lines), "Kinds of failures")] if lines else []


# ---------------------------------------------------------------- other steps


def _objectives(view: View, document: Document) -> tuple[str, list[str]]:
    hours = [f"burn {hours} h" if hours < 72 else f"burn {hours // 24} d" for hours in BURN_HOURS]
    lines = [
        [one["name"], f"{one['share']:.4%}".rstrip("0%").rstrip(".") + " %", _percent(one["achieved"]), _number(one["jobs"]),
         _number(one["missed"]), _number(one["allowed"]), *(_rate(one[f"burn_{hours}h"]) for hours in BURN_HOURS),
         "yes" if one["met"] else "no"]
        for one in document["items"]
    ]  # fmt: skip
    columns = ["objective", "promised", "kept", "jobs", "missed", "may miss", *hours, "met"]
    series = {
        one["name"]: [(hour * 3600.0, 100.0 * left) for hour, left in one["left"]]
        for one in document["items"]
        if len(one["left"]) > 1
    }
    xs = sorted(x for line in series.values() for x, _ in line)
    y = svg.Scale(lambda share: f"{share:.0f} %")
    plot = html.figure(lambda canvas: svg.lines(series, view.hours(canvas, xs), y, canvas=canvas) if xs else Plot())
    explanation = (
        f"Of the {_window(document['window_hours'])} before {view.text(datetime.fromisoformat(document['at']))}. "
        "A burn rate of 1 uses up the error budget exactly in that time."
    )
    return explanation, [html.card(html.table(columns, lines)), html.card(plot, "Error budget that is left")]


def _anomalies(view: View, document: Document) -> tuple[str, list[str]]:
    lines = [
        [one["subject"], one["measure"], view.text(datetime.fromisoformat(one["at"])), one["value_text"], one["usual_text"],
         f"{one['deviation']:+.1f}", str(one["weeks"])]
        for one in document["items"]
    ]  # fmt: skip
    columns = ["jobs of", "measure", "hour", "value", "usual", "deviation", "weeks"]
    first, last = (view.text(datetime.fromisoformat(document[name])) for name in ("from", "until"))
    explanation = (
        f"Hours from {first} to {last} against the same hour of up to {document['weeks']} earlier weeks: "
        f"{document['threshold']:g} and more spreads (median absolute deviations) from the median."
    )
    return explanation, [html.card(html.table(columns, lines) if lines else "<p>none</p>")]


def _audit(view: View, audit: Document) -> tuple[str, list[str]]:
    lines = [[name, _number(count)] for name, count in audit["checks"].items()]
    evidence = [[row["check"], row["job_id"], row["detail"]] for row in audit["evidence"]]
    cards = [html.card(html.table(["rule", "violations"], lines))]
    if evidence:
        cards.append(html.card(html.table(["rule", "job", "what"], evidence), "Evidence"))
    at = view.text(datetime.fromisoformat(audit["at"]))
    return f"Every rule over {_number(audit['audited_jobs'])} jobs, as of {at}.", cards


def _plan(_view: View, plan: Document) -> tuple[str, list[str]]:
    return plan_section(plan, _DURATIONS)


# ---------------------------------------------------------------- formatting


def _number(value: float | None) -> str:
    return f"{value or 0:,.0f}".replace(",", " ")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.3%}"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}"


def _window(hours: int) -> str:
    return f"{hours // 24} days" if hours >= 48 else f"{hours} hours"
