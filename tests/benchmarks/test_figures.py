"""Tables of the page, also from reports that were kept before a figure existed."""

from __future__ import annotations

from typing import Any

from benchmarks.figures import of_submit

OLD: dict[str, Any] = {
    "single": {"agent": {"1": 10, "100": 1000}, "master": {"1": 5, "100": 500}},
    "bulk_jobs_per_second": {"agent": 2000, "master": 700},
    "details": {"agent": {"100": {"jobs": 1}}, "master": {"100": {"jobs": 1}}},
}


def test_a_report_without_own_ids_and_cpu_has_the_table_it_had() -> None:
    lines = of_submit(OLD)
    assert lines[2:] == ["| one caller | 10 | 5 |", "| 100 callers | 1,000 | 500 |", "| `submit_many` | 2,000 | 700 |"]


def test_own_ids_and_cpu_are_shown_where_they_were_measured() -> None:
    used = {"cpu_us_per_job": {"producer": 4.5, "store": 1.25, "postgres": 0.0}}
    details = {name: {"100": used, "own_id_100": used} for name in ("agent", "master")}
    lines = of_submit({**OLD, "single_own_id": {"agent": {"100": 800}, "master": {"100": 90}}, "details": details})
    assert "| 100 callers, each with `job_id=` | 800 | 90 |" in lines
    assert "| 100 callers | 4.5 / 1.25 / 0 | 4.5 / 1.25 / 0 |" in lines
    assert not any("submit_many" in line for line in lines[8:]), "that way has no CPU in this report"
