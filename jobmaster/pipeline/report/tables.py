"""The figures of the report as tables: the page shows them, and files beside it hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobmaster.pipeline.report.aggregates import COUNTS
from jobmaster.pipeline.report.data_files import utc
from jobmaster.pipeline.report.histograms import quantiles
from jobmaster.pipeline.report.page_data import COSTS, QUANTILES, Bin, ReportData, all_ended, summed_by

Row = dict[str, Any]
Tables = Mapping[str, Sequence[Row]]
METRICS = ("waiting", "running", "total")
BY_LANE, BY_HANDLER = "lane / priority", "handler"
_NAMES: Mapping[str, Callable[[str, str, str], str]] = {
    BY_LANE: lambda lane, priority, _: f"{lane} / {priority}",
    BY_HANDLER: lambda _, __, handler: handler,
}


def tables_of(
    found: ReportData | None,
    objectives: Mapping[str, Any] | None,
    anomalies: Mapping[str, Any] | None,
    price: float | None,
) -> dict[str, list[Row]]:
    """Every table by its name.

    Args:
        objectives, anomalies: the documents of these steps.
        price: of a second in a handler.
    """
    tables: dict[str, list[Row]] = {}
    if found is not None:
        tables = {
            "throughput": _throughput(found),
            "waiting": _waiting(found),
            "groups": [dict(row) for row in found.groups],
            "latency": _latency(found),
            "placement": [
                {"by": kind.removesuffix("_id"), "name": name, "jobs": jobs}
                for kind, named in found.shares.items()
                for name, jobs in named.items()
            ],
            "arrivals": _arrivals(found),
            "cost": _costs(found, price),
            "failures": [
                {**{name: row[name] for name in ("fingerprint", "handler", "error_type", "line", "jobs", "attempts")},
                 "first_at": utc(row["first_us"] / 1e6), "last_at": utc(row["last_us"] / 1e6)}
                for row in found.failures
            ],
        }  # fmt: skip
    tables["objectives"] = [
        {name: value for name, value in one.items() if name != "left"} for one in (objectives or {}).get("items", ())
    ]
    tables["anomalies"] = list((anomalies or {}).get("items", ()))
    return tables


def _throughput(found: ReportData) -> list[Row]:
    rows, open_jobs = [], found.open_before
    nothing = dict.fromkeys(COUNTS, 0)
    for number, start in enumerate(found.period.starts(), found.period.first):
        line = found.counts.get(number, nothing)
        open_jobs += line["submitted"] - all_ended(line)
        rows.append({"at": utc(start), **line, "open": max(open_jobs, 0)})
    return rows


def _waiting(found: ReportData) -> list[Row]:
    names = [f"p{share * 100:g}_us" for share in QUANTILES]
    return [
        {"at": utc(start), **dict(zip(names, found.waiting.get(number, (None,) * len(names)), strict=True))}
        for number, start in enumerate(found.period.starts(), found.period.first)
    ]


def _latency(found: ReportData) -> list[Row]:
    bins: dict[tuple[str, str, str], list[Bin]] = {}
    for lane, priority, handler, metric, bin_, jobs in found.latency:
        for by, name in _NAMES.items():
            bins.setdefault((by, name(lane, priority, handler), metric), []).append((bin_, jobs))
    return [
        {"by": by, "name": name, "metric": metric, "jobs": sum(jobs for _, jobs in bins[by, name, metric]),
         **{f"p{share * 100:g}_us": value
            for share, value in zip(QUANTILES, quantiles(bins[by, name, metric], QUANTILES), strict=True)}}
        for by, name, metric in sorted(bins)
    ]  # fmt: skip


def _arrivals(found: ReportData) -> list[Row]:
    return [
        {"lane": curve.lane, "priority": curve.priority, "hour_of_week": at, "weeks": hour.weeks,
         "median_jobs": hour.median, "highest_jobs": hour.highest}
        for curve in found.arrivals
        for at, hour in enumerate(curve.hours)
        if hour.weeks
    ]  # fmt: skip


def _costs(found: ReportData, price: float | None) -> list[Row]:
    return [with_price(row, price) for row in found.costs]


def with_price(row: Mapping[str, Any], price: float | None) -> Row:
    """A row of costs, with the price of its running time, if a second has one."""
    return dict(row) if price is None else {**row, "price": row["ran_us"] / 1e6 * price}


def costs_by(rows: Sequence[Mapping[str, Any]], names: Sequence[str], price: float | None) -> list[Row]:
    """Costs summed by some of tenant, lane, priority and handler, the most running time first."""
    summed = summed_by(rows, COSTS, lambda row: tuple(row[name] for name in names))
    lines = [with_price({**dict(zip(names, key, strict=True)), **line}, price) for key, line in summed.items()]
    return sorted(lines, key=lambda row: (-row["ran_us"], *(row[name] for name in names)))
