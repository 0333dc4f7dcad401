"""The report: aggregates, the last audit and the last plan on one HTML page, written again after each of these steps.

Only sums leave Spark. Their number grows with hours, handlers, lanes and priorities, and not with jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from jobmaster.pipeline.report import html, svg
from jobmaster.pipeline.report.aggregates import COUNTS, GROUPS
from jobmaster.pipeline.report.histograms import gini, quantiles
from jobmaster.units import rounded_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jobmaster.pipeline.context import PipelineContext
    from jobmaster.pipeline.lake.lake import Lake

PATH = "reports/index.html"
AUDIT, PLAN = "_manifest/audit.json", "_manifest/plan.json"
_HOURS_MAX = 24 * 8
"""A longer history is plotted by days."""
_TOP = 12
_QUANTILES = (0.5, 0.95, 0.99)
_ENDED = COUNTS[1:5]
_SHARES_MAX = 100_000
_MANY_FAILED = 0.05
Bin = tuple[int, int]
K = TypeVar("K")


class ReportData(NamedTuple):
    """The data of the page; small."""

    unit: str
    seconds: int
    """Length of a unit."""
    counts: Sequence[Mapping[str, Any]]
    """By time (``at``), lane, priority and handler: the ``COUNTS``."""
    shares: Mapping[str, Mapping[str, int]]
    """``agent`` and ``bucket_id`` -> name -> jobs that ended there."""
    waiting: Mapping[float, Sequence[Bin]]
    """Histograms of waiting by time."""
    latency: Sequence[tuple[str, str, str, str, int, int]]
    """Lane, priority, handler, metric, bin, jobs."""


def write_report(context: PipelineContext, lake: Lake, frames: Mapping[str, DataFrame]) -> str:
    """Write the page; returns its path or URL."""
    found = _collect_data(frames["throughput"].cache(), frames["latency"].cache())
    for frame in frames.values():
        frame.unpersist()
    parts = [
        _tiles(found, lake.read_json(AUDIT)),
        html.heading("Throughput", f"Jobs by {found.unit}, in UTC."),
        html.card(_throughput(found)),
        html.heading("Backlog", "Jobs that were created and had not ended, counted from the beginning of the history."),
        html.card(_backlog(found)),
        html.heading("Latency", "Of jobs that ran. Waiting is from the due time to the start. Values are within 1 %."),
        html.card(_waiting_over_time(found), "Waiting"),
        html.card(_distribution(found), "Share of jobs that waited no longer than ..."),
        html.card(_latency_table(found, "lane / priority", lambda lane, priority, _: f"{lane} / {priority}")),
        html.card(_latency_table(found, "handler", lambda _, __, handler: handler)),
        html.heading("Skew", "How evenly the work lies: the largest share against the mean, and the Gini coefficient."),
        *(html.card(_skew(_ended_by(found, name)), name.capitalize()) for name in ("handler", "priority", "lane")),
        *(
            html.card(_skew(found.shares[name]), name.removesuffix("_id").capitalize())
            for name in ("agent", "bucket_id")
        ),
        html.heading("Trouble", "Attempts that did not conclude their job, and jobs that failed, by handler."),
        html.card(_trouble(found)),
        *_audit(lake.read_json(AUDIT)),
        *_plan(lake.read_json(PLAN)),
    ]
    made = datetime.fromtimestamp(context.clock.wall_us() / 1e6, UTC).isoformat(" ", "minutes")
    subtitle = f"cluster {context.settings.cluster}, made {made.removesuffix('+00:00')} UTC"
    lake.write(PATH, html.page("Jobs, and how they fared", subtitle, parts).encode())
    return str(lake.local / PATH) if lake.local is not None else lake.url(PATH)


# ---------------------------------------------------------------- data


def _collect_data(counts: DataFrame, latency: DataFrame) -> ReportData:
    """Query the aggregates, which are small in comparison with the history."""
    from pyspark.sql import functions as F

    span = counts.agg(F.min("hour").alias("first"), F.max("hour").alias("last")).collect()[0]
    long = span["first"] is not None and (span["last"] - span["first"]).total_seconds() / 3600 > _HOURS_MAX
    unit, seconds = ("day", 86_400) if long else ("hour", 3600)
    sums = (F.sum(name).alias(name) for name in COUNTS)
    by_time = counts.groupBy(F.col(unit).alias("at"), *GROUPS).agg(*sums).collect()
    ended = F.expr(" + ".join(_ENDED))
    lying = counts.where("bucket_id IS NOT NULL").groupBy("agent", "bucket_id").agg(F.sum(ended).alias("jobs"))
    shares: dict[str, dict[str, int]] = {"agent": {}, "bucket_id": {}}
    for row in lying.orderBy(F.desc("jobs")).limit(_SHARES_MAX).collect():
        for name, named in shares.items():
            if row[name] is not None and row["jobs"]:
                named[row[name]] = named.get(row[name], 0) + row["jobs"]
    waiting: dict[float, list[Bin]] = {}
    waited = (
        latency.where("metric = 'waiting'").groupBy(F.col(unit).alias("at"), "bin").agg(F.sum("jobs").alias("jobs"))
    )
    for row in waited.collect():
        waiting.setdefault(_moment(row["at"]), []).append((row["bin"], row["jobs"]))
    bins = latency.groupBy(*GROUPS, "metric", "bin").agg(F.sum("jobs").alias("jobs")).collect()
    return ReportData(
        unit, seconds, [row.asDict() for row in by_time], shares, waiting,
        [(row["lane"], row["priority"], row["handler"], row["metric"], row["bin"], row["jobs"]) for row in bins],
    )  # fmt: skip


def _moment(value: object) -> float:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    assert isinstance(value, date)
    return datetime.combine(value, time(), UTC).timestamp()


def _summed(rows: Iterable[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], K]) -> dict[K, dict[str, int]]:
    """Sums of the ``COUNTS`` by key."""
    found: dict[K, dict[str, int]] = {}
    for row in rows:
        line = found.setdefault(key(row), dict.fromkeys(COUNTS, 0))
        for name in COUNTS:
            line[name] += row[name] or 0
    return found


def _all_ended(line: Mapping[str, int]) -> int:
    return sum(line[name] for name in _ENDED)


def _ended_by(found: ReportData, name: str) -> dict[str, int]:
    return {str(key): _all_ended(line) for key, line in _summed(found.counts, lambda row: row[name]).items()}


def _tiles(found: ReportData, audit: Mapping[str, Any] | None) -> str:
    totals = _summed(found.counts, lambda _: "")
    line = totals.get("", dict.fromkeys(COUNTS, 0))
    ended = _all_ended(line)
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
    if audit is not None:
        broken = audit["audit_violations"]
        values.append(("violations in the last audit", _number(broken), "bad" if broken else "good"))
    return html.tiles(values)


def _throughput(found: ReportData) -> str:
    by_time = _summed(found.counts, lambda row: _moment(row["at"]))
    bars = [(at, [float(by_time[at][name]) for name in _ENDED]) for at in sorted(by_time)]
    return html.figure(
        svg.stacked(list(_ENDED), bars, width=found.seconds, format_x=_when(found.unit), format_y=_number)
    )


def _backlog(found: ReportData) -> str:
    by_time = _summed(found.counts, lambda row: _moment(row["at"]))
    line: list[tuple[float, float | None]] = []
    open_jobs = 0
    for at in sorted(by_time):
        open_jobs += by_time[at]["submitted"] - _all_ended(by_time[at])
        line.append((at, float(max(open_jobs, 0))))
    return html.figure(svg.lines({"open jobs": line}, format_x=_when(found.unit), format_y=_number))


def _waiting_over_time(found: ReportData) -> str:
    series: dict[str, list[tuple[float, float | None]]] = {f"p{share * 100:g}": [] for share in _QUANTILES}
    for at in sorted(found.waiting):
        for name, value in zip(series, quantiles(found.waiting[at], _QUANTILES), strict=True):
            series[name].append((at, value))
    return html.figure(svg.lines(series, format_x=_when(found.unit), format_y=rounded_us, log=True))


def _distribution(found: ReportData) -> str:
    by_priority: dict[str, list[Bin]] = {}
    for _, priority, _, metric, bin_, jobs in found.latency:
        if metric == "waiting":
            by_priority.setdefault(priority, []).append((bin_, jobs))
    shares = [at / 50 for at in range(1, 50)] + [0.99, 0.995, 0.999]
    series = {
        name: [(100 * share, value) for share, value in zip(shares, quantiles(bins, shares), strict=True)]
        for name, bins in sorted(by_priority.items())
    }
    return html.figure(svg.lines(series, format_x=lambda share: f"{share:.4g} %", format_y=rounded_us, log=True))


def _latency_table(found: ReportData, title: str, key: Callable[[str, str, str], str]) -> str:
    bins: dict[str, dict[str, list[Bin]]] = {}
    for lane, priority, handler, metric, bin_, jobs in found.latency:
        bins.setdefault(key(lane, priority, handler), {}).setdefault(metric, []).append((bin_, jobs))
    counted = {name: sum(jobs for _, jobs in by_metric.get("running", ())) for name, by_metric in bins.items()}
    lines = [
        [
            name,
            _number(counted[name]),
            *(
                rounded_us(value)
                for metric in ("waiting", "running", "total")
                for value in quantiles(bins[name].get(metric, ()), (0.5, 0.99))
            ),
        ]
        for name in sorted(bins, key=lambda name: -counted[name])[: _TOP * 2]
    ]
    columns = [title, "jobs", "waited p50", "p99", "ran p50", "p99", "in all p50", "p99"]
    return html.table(columns, lines) if lines else html.nothing()


def _skew(jobs: Mapping[str, int]) -> str:
    values = sorted(((name, float(count)) for name, count in jobs.items() if count), key=lambda one: (-one[1], one[0]))
    if not values:
        return html.nothing()
    sizes = [value for _, value in values]
    text = f"{len(sizes)} in all, largest / mean {max(sizes) * len(sizes) / sum(sizes):.2f}, Gini {gini(sizes):.2f}"
    return f'<p class="dim">{text}</p>' + html.ranking(values[:_TOP], format_value=_number)


def _trouble(found: ReportData) -> str:
    by_handler = _summed(found.counts, lambda row: str(row["handler"]))
    worst = sorted(by_handler, key=lambda name: (-by_handler[name]["failed"] - by_handler[name]["retried"], name))
    names = ("retried", "timed_out", "rescued", "lost", "refused")
    lines = []
    for handler in worst[:_TOP]:
        line, ended = by_handler[handler], _all_ended(by_handler[handler])
        share = f"{line['failed'] / ended if ended else 0:.2%}"
        lines.append([handler, _number(ended), share, *(_number(line[name]) for name in names)])
    return html.table(["handler", "ended", "failed", "retried", "timed out", "rescued", "lost", "refused"], lines)


def _audit(audit: Mapping[str, Any] | None) -> list[str]:
    if audit is None:
        return []
    lines = [[name, _number(count)] for name, count in audit["checks"].items()]
    evidence = [[row["check"], row["job_id"], row["detail"]] for row in audit["evidence"]]
    parts = [
        html.heading("Audit", f"Every rule over {_number(audit['audited_jobs'])} jobs, as of {audit['at'][:19]} UTC."),
        html.card(html.table(["rule", "violations"], lines)),
    ]
    return parts + ([html.card(html.table(["rule", "job", "what"], evidence), "Evidence")] if evidence else [])


def _plan(plan: Mapping[str, Any] | None) -> list[str]:
    if plan is None:
        return []
    groups = plan["groups"]
    lines = [
        [f"{one['lane']} / {one['priority']}", str(one["buckets"]), rounded_us(one["objective_us"]),
         *(rounded_us(one["waits_us"][name]) for name in ("p50", "p95", "p99")), rounded_us(one.get("measured_us")),
         rounded_us(one.get("unexplained_us")), f"{one['utilisation']:.0%}",
         "yes" if one["met"] else "no"]
        for one in groups
    ]  # fmt: skip
    columns = [
        "lane / priority",
        "buckets",
        "objective",
        "p50",
        "p95",
        "p99",
        "measured",
        "not by queues",
        "busy",
        "met",
    ]
    parts = [html.heading("Plan", plan["said"]), html.card(html.table(columns, lines))]
    for one in groups:
        curve = [(float(point["buckets"]), max(point["wait_us"], 1.0)) for point in one["curve"]]
        objective = {f"objective {rounded_us(one['objective_us'])}": float(one["objective_us"])}
        parts.append(
            html.card(
                html.figure(
                    svg.lines(
                        {f"p{plan['quantile'] * 100:g} of waiting": curve},
                        format_x=lambda count: f"{count:.0f} buckets",
                        format_y=rounded_us,
                        log=True,
                        goals=objective,
                    )
                ),
                f"Waiting against buckets: {one['lane']} / {one['priority']}",
            )
        )
    return [*parts, html.card(html.code(plan["yaml"]), "buckets.yaml")]


# ---------------------------------------------------------------- formatting


def _number(value: float | None) -> str:
    return f"{value or 0:,.0f}".replace(",", " ")


def _when(unit: str) -> svg.Format:
    form = "%d %b" if unit == "day" else "%d %b %H:%M"
    return lambda seconds: datetime.fromtimestamp(seconds, UTC).strftime(form)
