"""Every metric of a process, and the text of a scrape."""

from __future__ import annotations

import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from jobmaster.codec import encode_error, encode_headers
from jobmaster.metric_values import SERIES_MAX, Histogram, Histograms, Labels
from jobmaster.model.job import ErrorInfo, FinalRow, Headers, HoldRow, JobState
from jobmaster.ports import Written
from jobmaster.telemetry import GROUPS_MAX, HANDLERS_MAX, JOB_SECONDS, METRICS, Kind, RunOutcome, Telemetry
from jobmaster_agents.event_log import EventLog, JsonLines
from jobmaster_agents.launch.shared_deadline import AgentPhase, ChildCounters, Deadline
from jobmaster_agents.log_rate_limit import LINES, WINDOW_SECONDS
from jobmaster_agents.outcomes.failure_log import FailureLog
from jobmaster_agents.outcomes.metrics import OutcomeMetrics
from jobmaster_agents.run_agent import show_child_counters


def test_every_listed_metric_has_its_number_and_every_number_is_listed() -> None:
    sums = {name for name, each in vars(Telemetry).items() if isinstance(each, property)}
    numbers = {name for name in vars(Telemetry()) if not name.startswith("_")} | sums
    assert numbers == set(METRICS)


@pytest.mark.parametrize("key", METRICS)
def test_names_follow_the_rule_and_kinds_fit_their_numbers(key: str) -> None:
    metric = METRICS[key]
    assert re.fullmatch(r"jobmaster_[a-z_]+[a-z]", metric.name)
    assert not metric.name.endswith("_total")  # the exposition adds it to counters
    assert metric.help.endswith(".")
    value = getattr(Telemetry(), key)
    assert isinstance(value, Histogram | Histograms) == (metric.kind is Kind.HISTOGRAM)
    assert isinstance(value, dict) == (metric.label is not None)


def test_names_are_unique() -> None:
    assert len({metric.name for metric in METRICS.values()}) == len(METRICS)


def test_a_scrape_shows_plain_labelled_and_spread_numbers() -> None:
    telemetry = Telemetry()
    telemetry.jobs_claimed += 7
    telemetry.jobs_ended["SUCCEEDED"] += 3
    telemetry.jobs_ended["FAILED"] += 1
    telemetry.handler_run_seconds.of("h").observe(0.003)
    telemetry.handler_run_seconds.of("g").observe(1e6)
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


def test_a_scrape_shows_what_the_process_costs() -> None:
    text = Telemetry().exposition()
    for name in (b"process_cpu_seconds_total", b"process_resident_memory_bytes", b"process_open_fds"):
        assert b"\n" + name + b" " in text


def test_the_supervisors_figures_are_read_from_the_shared_page() -> None:
    page, fd = Deadline.create()
    os.close(fd)
    page.trusted_until, page.phase = 7.0, AgentPhase.SERVING
    telemetry = Telemetry()
    show_child_counters(telemetry, page)
    page.counters = ChildCounters(*range(1, 1 + len(ChildCounters._fields)))
    assert [telemetry.value(f"place_{name}") for name in ChildCounters._fields] == list(page.counters)
    assert b"jobmaster_supervisor_kills_total 2.0" in telemetry.exposition()
    assert (page.trusted_until, page.phase) == (7.0, AgentPhase.SERVING)
    page.close()


def test_a_value_on_a_bound_counts_below_it() -> None:
    spread = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 2.1):
        spread.observe(value)
    assert spread.cumulative(spread.bounds) == [("1.0", 1.0), ("2.0", 3.0), ("+Inf", 4.0)]


_edges = [round(bound * 1e6) + step for bound in JOB_SECONDS for step in (-1, 0, 1)]


@given(st.lists(st.lists(st.one_of(st.sampled_from(_edges), st.integers(0, 10**10)), max_size=30), max_size=5))
def test_a_batch_counts_like_its_values_one_by_one(batches: list[list[int]]) -> None:
    together, alone = Histogram(JOB_SECONDS), Histogram(JOB_SECONDS)
    for batch in batches:
        for value in batch:
            alone.observe(value / 1e6)
        together.observe_batch_us(list(batch))
    assert together.counts == alone.counts
    assert together.total == pytest.approx(alone.total)


# ---------------------------------------------------------------- batches


def final(number: int, state: JobState, ran_us: int = 2_000_000) -> FinalRow:
    return FinalRow(
        bytes([number]) * 16, state, 3, "d", "h", 1, b"b" * 16, 1, 1, 0, 0, 7_000, ran_us, b"{}", b"", None, None
    )


def held(number: int, error: bytes | None) -> HoldRow:
    return HoldRow(bytes([number]) * 16, 3, "d", "h", 1, 1, 0, 0, b"{}", b"", error, 30_000 if error else 0)


def ids(*rows: FinalRow | HoldRow) -> frozenset[bytes]:
    return frozenset(row.id for row in rows)


def test_only_what_the_master_accepted_is_counted_and_only_what_ran_has_a_time() -> None:
    telemetry = Telemetry()
    metrics = OutcomeMetrics(telemetry, FailureLog(telemetry, EventLog(), lambda: 0.0))
    good, bad, refused = final(1, JobState.SUCCEEDED), final(2, JobState.FAILED), final(3, JobState.SUCCEEDED)
    never = final(4, JobState.EXPIRED, 0)
    metrics.accepted([good, bad, refused, never], Written(True, ids(good, bad, never), refused=ids(refused)))
    assert telemetry.jobs_ended == {"SUCCEEDED": 1, "FAILED": 1, "EXPIRED": 1}
    assert sum(telemetry.job_wait_seconds.of("d", "medium").counts) == sum(telemetry.job_run_seconds.counts) == 2
    assert telemetry.job_run_seconds.total == pytest.approx(4.0)
    metrics.accepted([never], Written(True, ids(never)))
    metrics.ended([never._replace(state=JobState.CANCELLED), never])
    assert telemetry.jobs_ended["EXPIRED"] == 3
    assert sum(telemetry.job_run_seconds.counts) == 2
    metrics.accepted([good], Written(True, frozenset(), refused=ids(good)))
    assert telemetry.jobs_ended["SUCCEEDED"] == 1


def test_given_back_means_unrun_in_the_master_and_accepted() -> None:
    telemetry = Telemetry()
    metrics = OutcomeMetrics(telemetry, FailureLog(telemetry, EventLog(), lambda: 0.0))
    unrun, tried, cancelled, refused = held(1, None), held(2, b"{}"), held(3, None), held(4, None)
    answer = Written(True, ids(unrun, tried, cancelled), cancelled=ids(cancelled), refused=ids(refused))
    metrics.given_back([unrun, tried, cancelled, refused], answer, here=False)
    assert telemetry.jobs_held == 1
    assert telemetry.jobs_ended == {"CANCELLED": 1}
    assert sum(telemetry.job_run_seconds.counts) == 1
    metrics.given_back([unrun], Written(True, ids(unrun)), here=True)
    assert telemetry.jobs_held == 1


def test_two_processes_in_one_do_not_share_numbers() -> None:
    first, second = Telemetry(), Telemetry()
    first.jobs_claimed += 1
    assert b"jobmaster_jobs_claimed_total 0.0" in second.exposition()


def test_a_labelled_metric_cannot_be_one_reading() -> None:
    with pytest.raises(ValueError, match="labels"):
        Telemetry().read_from("jobs_ended", lambda: 1)


def error(reason: str, message: str = "on purpose") -> bytes:
    return encode_error(ErrorInfo(type="ValueError", message=message, reason=reason))


def test_what_did_not_succeed_is_counted_by_what_it_ended_with_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "jobmaster")
    telemetry = Telemetry()
    metrics = OutcomeMetrics(telemetry, FailureLog(telemetry, EventLog(), lambda: 0.0))
    failed = final(1, JobState.FAILED)._replace(error=error("timeout"))
    expired = final(2, JobState.EXPIRED)._replace(error=error("expired"))
    tried = held(3, error("error"))
    metrics.ended([failed, expired, final(4, JobState.SUCCEEDED)])
    metrics.given_back([tried, held(5, None)], Written(True, ids(tried)), here=True)
    assert telemetry.jobs_failed == {("h", "d", "medium", "timeout"): 1, ("h", "d", "medium", "expired"): 1}
    assert telemetry.attempts_failed == {("h", "d", "medium", "timeout"): 1, ("h", "d", "medium", "error"): 1}
    assert b'jobmaster_jobs_failed_total{handler="h",lane="d",priority="medium",reason="timeout"} 1.0' in (
        telemetry.exposition()
    )
    assert [record.message for record in caplog.records] == ["job_failed", "attempt_failed"]
    line = JsonLines().format(caplog.records[0])
    assert '"reason":"timeout"' in line.replace(" ", "")
    assert "on purpose" in line


def test_the_line_of_a_failed_job_has_the_id_of_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "jobmaster")
    failures = FailureLog(Telemetry(), EventLog(), lambda: 0.0)
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    named, broken = Headers(metadata={"traceparent": parent}), Headers(traceparent='"')
    for number, headers in enumerate((Headers(traceparent=parent, tags=("x",)), named, broken)):
        row = final(number + 1, JobState.FAILED)._replace(error=error("error"), headers=encode_headers(headers))
        failures.ended([row])
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert [line.get("trace_id") for line in lines] == ["a" * 32, None, None]


def test_a_flood_of_failures_is_a_few_lines_and_the_next_one_counts_those_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now, telemetry = [0.0], Telemetry()
    failures = FailureLog(telemetry, EventLog(), lambda: now[0])
    rows = [final(number, JobState.FAILED)._replace(error=error("error", "x" * 10_000)) for number in range(200)]
    failures.ended(rows)
    assert len(caplog.records) == LINES
    failures.ended([rows[0]._replace(handler="another")])
    assert len(caplog.records) == LINES + 1, "each handler has lines of its own"
    now[0] += WINDOW_SECONDS
    failures.ended(rows[:1])
    assert f'"left_out":{200 - LINES}' in JsonLines().format(caplog.records[-1]).replace(" ", "")
    assert sum(telemetry.jobs_failed.values()) == 202
    assert max(len(JsonLines().format(record)) for record in caplog.records) < 1500


NAMES = 10_000


def series_of(telemetry: Telemetry) -> int:
    return sum(line.startswith(b"jobmaster_") for line in telemetry.exposition().splitlines())


def test_ten_thousand_names_of_handlers_make_a_bounded_number_of_series() -> None:
    telemetry = Telemetry()
    telemetry.serve(f"registered {number}" for number in range(3))
    metrics = OutcomeMetrics(telemetry, FailureLog(telemetry, EventLog(), lambda: 0.0))
    for number in range(NAMES):
        handler, lane, bucket_id = f"made up {number}", f"lane {number}", number.to_bytes(16)
        ended = [
            final(1, JobState.SUCCEEDED),
            final(2, JobState.FAILED)._replace(error=error("timeout")),
            final(3, JobState.CANCELLED)._replace(error=error("cancelled")),
        ]
        rows = [row._replace(handler=handler, lane=lane, bucket_id=bucket_id) for row in ended]
        tried = held(4, error("error"))._replace(handler=handler, lane=lane)
        metrics.ended(rows)
        metrics.given_back([tried], Written(True, ids(tried)), here=True)
    assert len({handler for handler, _ in telemetry.handler_runs}) == HANDLERS_MAX + 1
    assert telemetry.handler_runs["other", RunOutcome.TIMED_OUT] == NAMES - (HANDLERS_MAX - 3)
    assert len(telemetry.handler_run_seconds) == HANDLERS_MAX + 1 - 3
    assert len(telemetry.job_wait_seconds) == GROUPS_MAX + 1
    assert sum(sum(each.counts) for each in telemetry.job_wait_seconds.values()) == 2 * NAMES
    assert len(telemetry.jobs_failed) == len(telemetry.attempts_failed) == SERIES_MAX + 1
    assert sum(telemetry.jobs_failed.values()) == 2 * NAMES, "none is left out"
    assert series_of(telemetry) < 8000
    metrics.ended([final(5, JobState.SUCCEEDED)._replace(handler="registered 2")])
    assert telemetry.handler_runs["registered 2", RunOutcome.SUCCEEDED] == 1, "registered names came first"


def test_runs_are_counted_by_handler_and_outcome_and_waits_by_lane_and_priority() -> None:
    telemetry = Telemetry()
    telemetry.serve(["h"])
    assert telemetry.handler_runs == {("h", outcome): 0 for outcome in RunOutcome}, "a counter is there before it grows"
    metrics = OutcomeMetrics(telemetry, FailureLog(telemetry, EventLog(), lambda: 0.0))
    done = [final(number, JobState.SUCCEEDED) for number in range(3)]
    elsewhere = final(4, JobState.SUCCEEDED)._replace(
        handler="g", lane="e", priority=4, bucket_id=b"e" * 16, ran_us=50_000
    )
    failed = final(5, JobState.FAILED)._replace(error=error("error"))
    late = final(6, JobState.FAILED)._replace(error=error("timeout"))
    stopped, unstarted = final(7, JobState.CANCELLED), final(8, JobState.CANCELLED, 0)
    metrics.ended([*done, elsewhere, failed, late, stopped, unstarted])
    metrics.ended(done)
    tries = [held(9, error("error")), held(10, error("timeout")), held(11, error("snoozed"))]
    metrics.given_back(tries, Written(True, ids(*tries)), here=False)
    runs = {key: count for key, count in telemetry.handler_runs.items() if count}
    assert runs == {
        ("h", "succeeded"): 6, ("g", "succeeded"): 1, ("h", "failed"): 1, ("h", "timed_out"): 2, ("h", "cancelled"): 1,
        ("h", "retried"): 1, ("h", "snoozed"): 1,
    }  # fmt: skip
    assert sum(telemetry.handler_run_seconds.of("h").counts) == 8 + 3
    assert telemetry.handler_run_seconds.of("g").total == pytest.approx(0.05)
    assert sum(telemetry.job_run_seconds.counts) == 12
    assert {group: sum(each.counts) for group, each in telemetry.job_wait_seconds.items()} == {
        ("d", "medium"): 8, ("e", "high"): 1,
    }  # fmt: skip
    assert b'jobmaster_handler_run_seconds_bucket{handler="g",le="0.1"} 1.0' in telemetry.exposition()


def test_series_are_read_from_their_owner_at_the_scrape() -> None:
    telemetry = Telemetry()
    waiting: dict[Labels, float] = {("default", "high", "pending"): 3.0}
    telemetry.read_series("backlog_jobs", lambda: waiting)
    text = telemetry.exposition()
    assert b'jobmaster_backlog_jobs{lane="default",priority="high",where="pending"} 3.0' in text
    assert b'jobmaster_build_info{python="' in text
    waiting.clear()
    assert b"jobmaster_backlog_jobs{" not in telemetry.exposition()
    with pytest.raises(ValueError, match="gauge"):
        telemetry.read_series("jobs_running", dict)
