"""Every metric of a process, and what a scrape says."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jobmaster.telemetry import METRICS, Histogram, Kind, Telemetry


def test_every_listed_metric_has_its_number_and_every_number_is_listed() -> None:
    numbers = {name for name in vars(Telemetry()) if not name.startswith("_")}
    assert numbers == set(METRICS)


@pytest.mark.parametrize("key", METRICS)
def test_names_follow_the_rule_and_kinds_fit_their_numbers(key: str) -> None:
    metric = METRICS[key]
    assert re.fullmatch(r"jobmaster_[a-z_]+[a-z]", metric.name)
    assert not metric.name.endswith("_total")  # the exposition adds it to counters
    assert metric.help.endswith(".")
    value = getattr(Telemetry(), key)
    assert isinstance(value, Histogram) == (metric.kind is Kind.HISTOGRAM)
    assert isinstance(value, dict) == (metric.label is not None)


def test_names_are_unique() -> None:
    assert len({metric.name for metric in METRICS.values()}) == len(METRICS)


def test_a_scrape_shows_plain_labelled_and_spread_numbers() -> None:
    telemetry = Telemetry()
    telemetry.jobs_claimed += 7
    telemetry.jobs_ended["SUCCEEDED"] += 3
    telemetry.jobs_ended["FAILED"] += 1
    telemetry.job_run_seconds.observe(0.003)
    telemetry.job_run_seconds.observe(1e6)
    telemetry.read_from("jobs_running", lambda: 42)
    samples = {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(telemetry.exposition().decode())
        for sample in family.samples
    }
    assert samples["jobmaster_jobs_claimed_total", ()] == 7
    assert samples["jobmaster_jobs_ended_total", ("SUCCEEDED",)] == 3
    assert samples["jobmaster_jobs_ended_total", ("FAILED",)] == 1
    assert samples["jobmaster_jobs_running", ()] == 42
    assert samples["jobmaster_job_run_seconds_bucket", ("0.0025",)] == 0
    assert samples["jobmaster_job_run_seconds_bucket", ("0.005",)] == 1
    assert samples["jobmaster_job_run_seconds_bucket", ("+Inf",)] == 2
    assert samples["jobmaster_job_run_seconds_count", ()] == 2


def test_a_value_on_a_bound_counts_below_it() -> None:
    spread = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 2.1):
        spread.observe(value)
    assert spread.cumulative() == [("1.0", 1.0), ("2.0", 3.0), ("+Inf", 4.0)]


def test_two_processes_in_one_do_not_share_numbers() -> None:
    first, second = Telemetry(), Telemetry()
    first.jobs_claimed += 1
    assert b"jobmaster_jobs_claimed_total 0.0" in second.exposition()


def test_a_labelled_metric_cannot_be_one_reading() -> None:
    with pytest.raises(ValueError, match="labels"):
        Telemetry().read_from("jobs_ended", lambda: 1)
