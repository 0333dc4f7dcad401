"""Alert rules and dashboards are those of the code, name only what agents serve, and each alert is explained."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from jobmaster.monitoring.alerts import ALERTS, PAGE, Alert, Severity
from jobmaster.monitoring.dashboards import DASHBOARDS
from jobmaster.monitoring.expressions import CLUSTER, PROCESS, name_of, quantile
from jobmaster.monitoring.generated_texts import made_texts
from jobmaster.telemetry import METRICS, Telemetry
from jobmaster_agents.event_log import Event
from tests.repository.documentation.test_docs import anchors

ROOT = Path(__file__).parents[3]
_OF_SERIES = re.compile(r"\b(?:jobmaster|process)_\w+")
_SELECTED = re.compile(r'\b(jobmaster_\w+)\{(\w+)(=~|!=|=)"([^"]*)"\}')
_FROM_PROMETHEUS = {CLUSTER, PROCESS}
_LABELS = {
    f"{metric.served}{part}": {*(metric.label.split(", ") if metric.label else ()), *({"le"} if part else ())}
    for metric in METRICS.values()
    for part in (("_bucket", "_sum", "_count") if metric.bounds else ("",))
}


def expressions() -> Iterator[str]:
    """Every expression of the rules and of the dashboards, as they stand in the files."""
    rules = yaml.safe_load((ROOT / "config" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])
    for path in sorted((ROOT / "config" / "grafana").glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        yield from (target["expr"] for panel in document["panels"] for target in panel.get("targets", ()))
        yield from (each["query"] for each in document["templating"]["list"] if each["type"] == "query")


def metrics_in(expression: str) -> set[str]:
    return set(_OF_SERIES.findall(expression))


@pytest.mark.parametrize("path", made_texts(ROOT), ids=lambda path: path.name)
def test_what_is_made_from_the_metrics_is_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == made_texts(ROOT)[path], (
        "run: python -m jobmaster.monitoring.generated_texts"
    )


def test_expressions_name_series_and_labels_that_the_metrics_have() -> None:
    """A metric that is renamed is a rule that never fires: a scrape of a real agent is in `tests/system`."""
    found = list(expressions())
    assert len(found) > 100
    for expression in found:
        names = {name for name in metrics_in(expression) if name.startswith("jobmaster_")}
        assert names <= _LABELS.keys(), expression
        labels = set(re.findall(r"(\w+) *(?:=~|!=|!~|=)\s*\"", expression))
        for listed in re.findall(r"\b(?:by|on) \(([\w, ]+)\)", expression):
            labels |= set(listed.split(", "))
        known = set().union(*(_LABELS[name] for name in names))
        assert labels <= known | _FROM_PROMETHEUS, expression


def test_counters_have_a_sample_for_each_value_of_a_label_that_an_alert_selects() -> None:
    """Prometheus sees no growth in a series that begins with its first event."""
    telemetry = Telemetry()
    telemetry.serve(["pay"])
    shown = telemetry.exposition().decode()
    selected = 0
    for alert in ALERTS:
        for name, label, operator, value in _SELECTED.findall(alert.expression):
            if not name.endswith("_total"):
                continue
            samples = re.findall(rf'^{name}\{{(?:.*,)?{label}="(.*?)"', shown, re.MULTILINE)
            selected += 1
            if operator == "!=":
                assert set(samples) - {value}, alert.expression
            else:
                assert set(value.split("|")) <= set(samples), alert.expression
    assert selected > 3


def test_a_leader_without_buckets_has_nothing_to_count() -> None:
    """An archived cluster, for example, has no lane and no priority, so its leader serves no series."""
    (alert,) = [alert for alert in ALERTS if alert.name == "JobMasterBacklogNotCounted"]
    assert alert.expression.endswith(" and on (job) max by (job) (jobmaster_buckets_owned) > 0")


def test_a_name_that_is_no_metric_is_refused() -> None:
    with pytest.raises(KeyError):
        name_of("jobs_forgotten_by_all")
    with pytest.raises(ValueError, match="histogram"):
        name_of("job_wait_seconds")
    with pytest.raises(ValueError, match="histogram"):
        quantile(0.5, "leading")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_is_explained_where_its_runbook_points_to(alert: Alert) -> None:
    page, _, section = alert.runbook.partition("#")
    assert page == PAGE
    assert page.endswith("/docs/alerts.md")
    assert section in anchors(ROOT / "docs" / "alerts.md")
    for text in (alert.summary, alert.means, alert.matters, alert.action):
        assert text
    labels = set(re.findall(r"\$labels\.(\w+)", alert.summary))
    aggregated = re.findall(r"\bby \(([\w, ]+)\)", alert.expression)
    assert all(labels <= set(each.split(", ")) for each in aggregated), "a label that the sum has dropped"
    assert re.fullmatch(r"\d+[mh]", alert.for_)


def test_events_that_alerts_tell_to_look_for_exist() -> None:
    known = {event.value for event in Event}
    named = {
        word for alert in ALERTS for word in re.findall(r"`([a-z]+(?:_[a-z]+)+)` (?:in|has|and|names)", alert.action)
    }
    assert len(named) > 5
    assert {word for word in named if not word.startswith("jobmaster_")} - known - {"max_running"} == set()


def test_names_and_places_of_alerts_and_panels_are_unique() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    assert {alert.severity for alert in ALERTS} == set(Severity)
    for dashboard in DASHBOARDS:
        document = json.loads((ROOT / "config" / "grafana" / f"{dashboard.name}.json").read_text(encoding="utf-8"))
        ids = [panel["id"] for panel in document["panels"]]
        cells = [
            (x, y)
            for panel in document["panels"]
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(set(ids)) == len(ids)
        assert len(set(cells)) == len(cells), "panels lie over one another"
        assert document["uid"] == f"jobmaster-{dashboard.name}"
