"""What an agent publishes about its process and its host with a renewal."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobmaster.telemetry import RunOutcome, Telemetry
from jobmaster_agents.lease.process_statistics import HANDLERS_MAX, PUBLISH_SECONDS, ProcessStatistics


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A directory of the kernel."""
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text(
        "MemTotal:       2048 kB\nMemFree:   1 kB\nMemAvailable:    512 kB\nHugePages: none\n"
    )
    (tmp_path / "self" / "status").write_text("Name:\tpython\nThreads:\t7\n")
    (tmp_path / "self" / "statm").write_text("900 17 3 1 0 5 0\n")
    return tmp_path


def test_figures_are_published_now_and_then_with_rates_since_the_last_time(proc: Path) -> None:
    telemetry = Telemetry()
    telemetry.read_from("jobs_running", lambda: 3)
    telemetry.read_from("jobs_queued", lambda: 2)
    statistics = ProcessStatistics(telemetry, lambda: 40, proc)
    telemetry.jobs_ended["SUCCEEDED"] += 100
    first = statistics.due(1000.0, 0.25)
    assert first is not None
    assert (first.slots, first.running, first.queued, first.threads, first.loop_lag_seconds) == (40, 3, 2, 7, 0.25)
    assert (first.host_memory_bytes, first.host_memory_free_bytes) == (2048 * 1024, 512 * 1024)
    assert first.memory_bytes % 17 == 0
    assert (first.ended_per_second, first.processor) == (0.0, 0.0), "no rate is known yet"
    telemetry.jobs_ended["SUCCEEDED"] += 40
    telemetry.jobs_ended["FAILED"] += 10
    assert statistics.due(1000.0 + PUBLISH_SECONDS - 0.1, 0.0) is None
    second = statistics.due(1000.0 + PUBLISH_SECONDS, 0.0)
    assert second is not None
    assert second.ended_per_second == 50 / PUBLISH_SECONDS
    assert 0.0 <= second.processor < PUBLISH_SECONDS


def test_starts_failures_and_the_busiest_handlers_are_published_since_the_last_time(proc: Path) -> None:
    telemetry, started = Telemetry(), [100]
    telemetry.read_from("jobs_started", lambda: started[0])
    telemetry.handler_runs.add(("old", RunOutcome.SUCCEEDED), 50)
    statistics = ProcessStatistics(telemetry, lambda: 40, proc)
    first = statistics.due(0.0, 0.0)
    assert first is not None
    assert (first.started_per_second, first.handlers) == (0.0, ())
    started[0] += 30
    telemetry.jobs_ended["FAILED"] += 10
    for number in range(HANDLERS_MAX):
        telemetry.handler_runs.add((f"h{number}", RunOutcome.SUCCEEDED), 100)
    telemetry.handler_runs.add(("busy", RunOutcome.SUCCEEDED), 150)
    telemetry.handler_runs.add(("busy", RunOutcome.RETRIED), 50)
    telemetry.handler_run_seconds.of("busy").observe(100.0)
    found = statistics.due(PUBLISH_SECONDS, 0.0)
    assert found is not None
    assert (found.started_per_second, found.failed_per_second) == (30 / PUBLISH_SECONDS, 10 / PUBLISH_SECONDS)
    assert len(found.handlers) == HANDLERS_MAX
    busy = found.handlers[0]
    assert (busy.handler, busy.runs_per_second, busy.failed_per_second, busy.run_seconds) == ("busy", 20.0, 5.0, 0.5)
    assert "old" not in {each.handler for each in found.handlers}


def test_a_system_without_these_files_publishes_the_rest(tmp_path: Path) -> None:
    found = ProcessStatistics(Telemetry(), lambda: 1, tmp_path / "absent").due(0.0, 0.0)
    assert found is not None
    assert (found.memory_bytes, found.host_memory_bytes) == (0, 0)
    assert found.threads >= 1
    assert found.host_processors >= 1
