"""Dashboards for Grafana: the cluster, its handlers, and what its safety depends on.

A dashboard has variables for the source of the data, for the cluster (a scrape job of Prometheus) and for what its panels are
chosen by. Panels take their names from the table of metrics, and their description from its help text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jobmaster.monitoring.expressions import CLUSTER, PROCESS, each, name_of, quantile, rate, top
from jobmaster.telemetry import METRICS

SCHEMA_VERSION = 39
"""Of Grafana 10 and newer."""
PANEL_WIDTH, PANEL_HEIGHT, GRID_WIDTH = 8, 8, 24
HERE = f'{{{CLUSTER}="$cluster"}}'
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """One chart."""

    title: str
    keys: tuple[str, ...]
    """Metrics whose help texts describe it."""
    lines: tuple[tuple[str, str], ...]
    """Expression, and the legend of its lines."""
    unit: str = "short"
    """A unit of Grafana: ``short``, ``s``, ``ops``, ``percentunit``, ``bytes``."""


class Row(NamedTuple):
    """Charts under one title."""

    title: str
    panels: tuple[Panel, ...]


class Dashboard(NamedTuple):
    """One page."""

    name: str
    title: str
    variables: tuple[tuple[str, str], ...]
    """Name, and the metric (by key) whose label of that name has the values."""
    rows: tuple[Row, ...]


def _here(*more: str) -> str:
    """Selector of the chosen cluster, and of further conditions."""
    return "{" + ", ".join([f'{CLUSTER}="$cluster"', *more]) + "}"


def _of(function: Callable[..., str], key: str, *by: str, where: str = HERE) -> tuple[str, str]:
    """One line for each value of some labels."""
    return function(key, *by, where=where), " ".join(f"{{{{{label}}}}}" for label in by) or METRICS[key].name


def _quantiles(key: str, *by: str, where: str = HERE) -> tuple[tuple[str, str], ...]:
    legend = " ".join(f"{{{{{label}}}}}" for label in by)
    return tuple(
        (quantile(share, key, *by, where=where), f"p{share * 100:.0f} {legend}".strip()) for share in (0.5, 0.99)
    )


_GROUP = _here('lane=~"$lane"', 'priority=~"$priority"')
_HANDLER = _here('handler=~"$handler"')
_FAILED = _here('handler=~"$handler"', 'outcome=~"failed|retried|timed_out"')

DASHBOARDS: tuple[Dashboard, ...] = (
    Dashboard(
        "cluster",
        "JobMaster: cluster",
        (("lane", "job_wait_seconds"), ("priority", "job_wait_seconds")),
        (
            Row(
                "Work",
                (
                    Panel("Jobs ended", ("jobs_ended",), (_of(rate, "jobs_ended", "state"),), "ops"),
                    Panel(
                        "Waiting jobs",
                        ("backlog_jobs",),
                        (_of(each, "backlog_jobs", "lane", "priority", where=_GROUP),),
                    ),
                    Panel(
                        "Oldest due job",
                        ("oldest_due_seconds",),
                        (_of(top, "oldest_due_seconds", "lane", "priority", where=_GROUP),),
                        "s",
                    ),
                    Panel(
                        "Wait until the start",
                        ("job_wait_seconds",),
                        _quantiles("job_wait_seconds", "lane", "priority", where=_GROUP),
                        "s",
                    ),
                    Panel("Run time", ("job_run_seconds",), _quantiles("job_run_seconds"), "s"),
                    Panel("Held jobs", ("held_jobs",), (_of(each, "held_jobs", "lane", "priority", where=_GROUP),)),
                    Panel("Where they wait", ("backlog_jobs",), (_of(each, "backlog_jobs", "where", where=_GROUP),)),
                    Panel(
                        "Jobs in and out",
                        ("jobs_claimed", "jobs_onboarded", "jobs_started"),
                        (_of(rate, "jobs_claimed"), _of(rate, "jobs_onboarded"), _of(rate, "jobs_started")),
                        "ops",
                    ),
                    Panel("Schedules", ("fires",), (_of(rate, "fires", "outcome"),), "ops"),
                ),
            ),
            Row(
                "Agents",
                (
                    Panel("Agents by version", ("build_info",), (_of(each, "build_info", "version", "python"),)),
                    Panel(
                        "Slots and running jobs",
                        ("slots", "jobs_running"),
                        (_of(each, "slots", "kind"), _of(each, "jobs_running")),
                    ),
                    Panel(
                        "Jobs in memory",
                        ("jobs_queued", "jobs_aside", "outcomes_waiting"),
                        (_of(each, "jobs_queued"), _of(each, "jobs_aside"), _of(each, "outcomes_waiting")),
                    ),
                    Panel("Buckets", ("buckets_owned",), (_of(each, "buckets_owned", PROCESS),)),
                    Panel(
                        "Processor time",
                        (),
                        ((f"rate(process_cpu_seconds_total{HERE}[5m])", f"{{{{{PROCESS}}}}}"),),
                        "percentunit",
                    ),
                    Panel("Memory", (), ((f"process_resident_memory_bytes{HERE}", f"{{{{{PROCESS}}}}}"),), "bytes"),
                ),
            ),
            Row(
                "Servers",
                (
                    Panel(
                        "Outcomes to the master", ("outcome_write_seconds",), _quantiles("outcome_write_seconds"), "s"
                    ),
                    Panel("Renewals", ("renewal_seconds",), _quantiles("renewal_seconds"), "s"),
                    Panel("Claims", ("claim_seconds",), _quantiles("claim_seconds"), "s"),
                ),
            ),
        ),
    ),
    Dashboard(
        "handlers",
        "JobMaster: handlers",
        (("handler", "handler_runs"),),
        (
            Row(
                "Runs",
                (
                    Panel("Runs", ("handler_runs",), (_of(rate, "handler_runs", "handler", where=_HANDLER),), "ops"),
                    Panel(
                        "How they end",
                        ("handler_runs",),
                        (_of(rate, "handler_runs", "outcome", where=_HANDLER),),
                        "ops",
                    ),
                    Panel(
                        "Share that fails",
                        ("handler_runs",),
                        (
                            (
                                f"{rate('handler_runs', 'handler', where=_FAILED)} / "
                                f"{rate('handler_runs', 'handler', where=_HANDLER)}",
                                "{{handler}}",
                            ),
                        ),
                        "percentunit",
                    ),
                    Panel(
                        "Run time",
                        ("handler_run_seconds",),
                        _quantiles("handler_run_seconds", "handler", where=_HANDLER),
                        "s",
                    ),
                    Panel(
                        "Slots that they fill",
                        ("handler_run_seconds",),
                        (
                            (
                                f"sum by ({CLUSTER}, handler) "
                                f"(rate({METRICS['handler_run_seconds'].name}_sum{_HANDLER}[5m]))",
                                "{{handler}}",
                            ),
                        ),
                    ),
                    Panel(
                        "Longer than `warn_after`",
                        ("attempts_overdue",),
                        (_of(rate, "attempts_overdue", "handler", where=_HANDLER),),
                        "ops",
                    ),
                ),
            ),
            Row(
                "Failures",
                (
                    Panel(
                        "Failed attempts by reason",
                        ("attempts_failed",),
                        (_of(rate, "attempts_failed", "handler", "reason", where=_HANDLER),),
                        "ops",
                    ),
                    Panel(
                        "Jobs without success, by reason",
                        ("jobs_failed",),
                        (_of(rate, "jobs_failed", "handler", "reason", where=_HANDLER),),
                        "ops",
                    ),
                    Panel(
                        "Stuck",
                        ("threads_stuck", "handlers_stuck"),
                        (_of(each, "threads_stuck", PROCESS), _of(each, "handlers_stuck", PROCESS)),
                    ),
                    Panel("Breakers", ("breaker_changes",), (_of(rate, "breaker_changes", "state"),), "ops"),
                    Panel("Snoozed", ("jobs_snoozed",), (_of(rate, "jobs_snoozed", "handler", where=_HANDLER),), "ops"),
                    Panel(
                        "Kept back",
                        ("handlers_unserved", "groups_unserved", "jobs_paused"),
                        (_of(top, "handlers_unserved"), _of(top, "groups_unserved"), _of(top, "jobs_paused")),
                    ),
                ),
            ),
        ),
    ),
    Dashboard(
        "safety",
        "JobMaster: safety",
        (),
        (
            Row(
                "Leases",
                (
                    Panel("Leader", ("leading",), (_of(top, "leading", PROCESS),)),
                    Panel(
                        "Trust in the own lease",
                        ("lease_seconds_left",),
                        (_of(top, "lease_seconds_left", PROCESS),),
                        "s",
                    ),
                    Panel("Renewals", ("renewals",), (_of(rate, "renewals", "result"),), "ops"),
                    Panel("Store beats", ("beats",), (_of(rate, "beats", "result"),), "ops"),
                    Panel("Suspended", ("suspended",), (_of(top, "suspended", PROCESS),)),
                    Panel("Clocks", ("clock_ahead_seconds",), (_of(top, "clock_ahead_seconds", PROCESS),), "s"),
                ),
            ),
            Row(
                "Deaths and rescues",
                (
                    Panel(
                        "Deaths",
                        ("place_deaths", "agents_certified"),
                        (_of(rate, "place_deaths", PROCESS), _of(rate, "agents_certified")),
                        "ops",
                    ),
                    Panel(
                        "Lost buckets",
                        ("buckets_lost", "buckets_taken", "buckets_drained", "drains_postponed"),
                        tuple(
                            _of(rate, key)
                            for key in ("buckets_lost", "buckets_taken", "buckets_drained", "drains_postponed")
                        ),
                        "ops",
                    ),
                    Panel(
                        "Jobs of lost buckets",
                        ("jobs_moved", "jobs_rescued", "jobs_given_up"),
                        (_of(rate, "jobs_moved"), _of(rate, "jobs_rescued"), _of(rate, "jobs_given_up")),
                        "ops",
                    ),
                    Panel("One evacuation", ("drain_seconds",), _quantiles("drain_seconds"), "s"),
                    Panel(
                        "Kept outcomes",
                        ("outcomes_kept", "outcomes_applied"),
                        (_of(each, "outcomes_kept"), _of(rate, "outcomes_applied")),
                    ),
                    Panel("Silent stores", ("stores_silent",), (_of(top, "stores_silent", PROCESS),)),
                ),
            ),
            Row(
                "What must stay at zero",
                (
                    Panel(
                        "Jobs at risk",
                        ("jobs_at_risk", "jobs_salvaged"),
                        (_of(each, "jobs_at_risk"), _of(each, "jobs_salvaged")),
                    ),
                    Panel(
                        "Refusals",
                        ("jobs_refused", "batches_fenced", "drain_refusals"),
                        (_of(rate, "jobs_refused"), _of(rate, "batches_fenced"), _of(rate, "drain_refusals")),
                        "ops",
                    ),
                    Panel(
                        "Second copies",
                        ("jobs_duplicate", "jobs_conflicting"),
                        (_of(each, "jobs_duplicate"), _of(each, "jobs_conflicting")),
                    ),
                    Panel(
                        "Repairs",
                        ("rows_released", "rows_without_memory", "orphans_returned", "buckets_resurrected"),
                        tuple(
                            _of(each, key)
                            for key in (
                                "rows_released",
                                "rows_without_memory",
                                "orphans_returned",
                                "buckets_resurrected",
                            )
                        ),
                    ),
                    Panel(
                        "Quarantine",
                        ("jobs_quarantined", "entries_put_aside"),
                        (_of(each, "jobs_quarantined"), _of(each, "entries_put_aside")),
                    ),
                    Panel(
                        "Failing tasks",
                        ("periodic_task_failures",),
                        (_of(rate, "periodic_task_failures", "task"),),
                        "ops",
                    ),
                ),
            ),
        ),
    ),
)


def dashboard_json(dashboard: Dashboard) -> str:
    """The dashboard as a file that Grafana imports or is provisioned with."""
    panels: list[dict[str, Any]] = []
    top_edge = 0
    for row in dashboard.rows:
        grid = {"x": 0, "y": top_edge, "w": GRID_WIDTH, "h": 1}
        panels.append({"type": "row", "title": row.title, "gridPos": grid, "collapsed": False, "panels": []})
        top_edge += 1
        for place, panel in enumerate(row.panels):
            x, y = place * PANEL_WIDTH % GRID_WIDTH, place * PANEL_WIDTH // GRID_WIDTH * PANEL_HEIGHT
            panels.append(_panel(panel, x, top_edge + y))
        top_edge += -(-len(row.panels) * PANEL_WIDTH // GRID_WIDTH) * PANEL_HEIGHT
    document = {
        "uid": f"jobmaster-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["jobmaster"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "links": [{"type": "dashboards", "title": "JobMaster", "tags": ["jobmaster"], "asDropdown": True}],
        "templating": {"list": _variables(dashboard.variables)},
        "annotations": {"list": []},
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def _panel(panel: Panel, x: int, y: int) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": " ".join(METRICS[key].help for key in panel.keys),
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": PANEL_WIDTH, "h": PANEL_HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend, "datasource": _SOURCE}
            for number, (expression, legend) in enumerate(panel.lines)
        ],
    }


def _variables(chosen: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "data", "type": "datasource", "query": "prometheus"}
    cluster = _query("cluster", f"label_values({name_of('build_info')}, {CLUSTER})")
    return [
        source,
        cluster,
        *({**_query(label, f"label_values({_series(key)}{HERE}, {label})"), **_EVERY} for label, key in chosen),
    ]


_EVERY = {"multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}


def _series(key: str) -> str:
    """A name that has series: a histogram has none of its own name."""
    metric = METRICS[key]
    return f"{metric.name}_count" if metric.bounds else metric.served


def _query(name: str, query: str) -> dict[str, Any]:
    return {"name": name, "type": "query", "datasource": _SOURCE, "query": query, "refresh": 2, "sort": 1}
