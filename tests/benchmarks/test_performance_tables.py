"""Tables of the page, also from reports that were kept before a figure existed."""

from __future__ import annotations

from typing import Any

from benchmarks.plots import PAGE, PLOTS
from benchmarks.support.performance_tables import (
    of_bulk,
    of_calls,
    of_first_steps,
    of_flow,
    of_peer_kinds,
    of_peer_latency,
    of_peer_rescue,
    of_peers,
    of_submit,
    of_web,
    rewritten,
    text,
)
from benchmarks.support.report import RESULTS

OLD: dict[str, Any] = {
    "single": {"store": {"1": 10, "100": 1000}, "master": {"1": 5, "100": 500}},
    "bulk_jobs_per_second": {"store": 2000, "master": 700},
    "details": {"store": {"100": {"jobs": 1}}, "master": {"100": {"jobs": 1}}},
}


def test_a_report_without_own_ids_and_cpu_has_the_table_it_had() -> None:
    lines = of_submit(OLD)
    assert lines[2:] == ["| one caller | 10 | 5 |", "| 100 callers | 1,000 | 500 |", "| `submit_many` | 2,000 | 700 |"]


def test_own_ids_and_cpu_are_shown_where_they_were_measured() -> None:
    used = {"cpu_us_per_job": {"producer": 4.5, "postgres": 0.0, "store": 1.25}}  # in the order of the report
    details = {name: {"100": used, "own_id_100": used} for name in ("store", "master")}
    lines = of_submit({**OLD, "single_own_id": {"store": {"100": 800}, "master": {"100": 90}}, "details": details})
    assert "| 100 callers, each with `job_id=` | 800 | 90 |" in lines
    assert "| 100 callers | 4.5 / 1.25 / 0 | 4.5 / 1.25 / 0 |" in lines
    assert not any("submit_many" in line for line in lines[8:]), "that way has no CPU in this report"


def test_cpu_of_ours_and_theirs_stands_beside_each_other() -> None:
    rates = {"saq": {"1": {"ours": 100, "theirs": 2, "ratio": 50.0}}}
    about = {"versions": {"saq": "1"}, "durable_at_acknowledgement": "no", "outcome_kept": "no"}
    used = {
        "1": {
            "jobmaster": {"agents": 5.0, "postgres": 3.0, "store": 1.0},
            "floor": {},
            "saq": {"workers": 400.0, "store": 90.0},
        }
    }
    report = {"rates": rates, "ratio": {"saq": 50.0}, "peers": {"saq": about}, "processes": [1], "cpu_us_per_job": used}
    assert "overstated" in of_peers(report)[-1], "an earlier report, with the start of the workers"
    lines = of_peers({**report, "cpu_includes": "from the first job on"})
    assert lines[-4:] == [
        "| jobmaster | 5 |  | 3 | 1 |", "| saq |  | 400 |  | 90 |", "", "Counted from the first job on."
    ]  # fmt: skip


ABOUT: dict[str, Any] = {"saq": {"versions": {"saq": "1"}, "after_kill": "a sweep"}, "rq": {"versions": {"rq": "3"}}}


def test_kinds_of_work_stand_beside_each_other_and_sizes_in_a_table_of_their_own() -> None:
    noop = {"mode": "loop", "jobs_per_second": {"jobmaster": 9000.0, "saq": 450.0}, "ratio": {"saq": 20.0}}
    cpu = {"mode": "process", "jobs_per_second": {"jobmaster": 300.0, "rq": 60.0}, "ratio": {"rq": 5.0}}
    report = {"kinds": {"noop": noop, "cpu_1ms": cpu, "arguments_16k": noop}, "processes": 2, "peers": ABOUT}
    assert of_peer_kinds({**report, "unusable": {"river": "It has no adapter\nat all"}}) == [
        "| jobs/s, 2 processes each (ours is x times) | `noop` | `cpu_1ms`, worker processes |",
        "| --- | --- | --- |",
        "| **JobMaster** | **9,000** | **300** |",
        "| saq 1 | 450 (20x) | - |",
        "| rq 3 | - | 60 (5x) |",
        "",
        "| jobs/s, 2 processes each (ours is x times) | `arguments_16k` |",
        "| --- | --- |",
        "| **JobMaster** | **9,000** |",
        "| saq 1 | 450 (20x) |",
        "| rq 3 | - |",
        "",
        "* Not measured: river. It has no adapter.",
    ]


def test_latencies_are_sorted_and_kills_without_a_restart_are_named() -> None:
    quantiles = {"p50_ms": 2.5, "p99_ms": 9.0, "max_ms": 12.0}
    bare = {"p50_ms": 0.3, "p99_ms": 0.5, "max_ms": 1.0}
    lines = of_peer_latency({"latency": {"saq": quantiles, "bare_pop": bare}, "per_second": 20.0, "peers": ABOUT})
    assert lines[2:] == ["| bare blocking pop | 0.3 | 0.5 | 1 |", "| saq 1 | 2.5 | 9 | 12 |"]
    killed = {
        "jobmaster": {"child": {"kills": 3, "came_again": 3, "p50_seconds": 0.4, "max_seconds": 0.5}},
        "saq": {
            "child": {"kills": 0},
            "worker": {"kills": 3, "came_again": 1, "p50_seconds": 9.5, "max_seconds": 9.5},
        },
        "rq": {"child": {"kills": 3, "came_again": 0}},
    }
    lines = of_peer_rescue({"killed": killed, "within_seconds": 120.0, "peers": {**ABOUT, "rq": ABOUT["saq"]}})
    assert lines[2:] == [
        "| **JobMaster** | 0.4 | - | runs again |",
        "| saq 1 | - | 9.5; not within 120 s (2 of 3) | a sweep |",
        "| rq 1 | not within 120 s | - | a sweep |",
    ]


def test_pages_viewers_and_a_bulk_retry_are_shown() -> None:
    viewers = [{"viewers": 50, "statements_per_second": 6.0, "page_server_cpu": 0.08, "master_cpu": 0.01}]
    pages = {"overview": {"p50_ms": 20.0, "p95_ms": 35.5}}
    lines = of_web({"jobs": 5_000_000, "in_stores": 100_000, "pages": pages, "viewers": viewers})
    assert lines[0] == "| milliseconds; 5,000,000 jobs in the master, 100,000 in a store | p50 | p95 |"
    assert lines[2] == "| overview | 20 | 35.5 |"
    assert lines[-1] == "| 50 | 6 | 0.08 | 0.01 |"
    bulk = {"jobs": 1_000_000, "seconds": 40.5, "jobs_per_second": 24_691, "cpu_seconds": {"agents": 18.0}}
    assert of_bulk({**bulk, "drain_ratio": 0.93})[-2:] == [
        "| CPU seconds | agents 18 |",
        "| rate of a drain beside an operation, as a share of one alone | 93% |",
    ]


def test_parts_of_the_flow_that_were_not_run_have_no_row() -> None:
    assert of_flow({"chain_ms": 26.5, "limited_starts_per_second": 27_034})[2:] == [
        "| chain of 10 steps, light load, ms | 26.5 |",
        "| starts a second under one limit of 100, 20 agents | 27,034 |",
    ]


def test_first_steps_and_calls_are_shown_as_ratios() -> None:
    first = {
        "typed_lines": 12, "seconds": 61.5, "steps": {"clone": 0.5, "install": 50.0}, "import_ms": 11.2,
        "import_over_import_of_asyncio": 0.25, "run_handler_ms": 0.2, "run_handler_over_asyncio_run": 2.5,
    }  # fmt: skip
    lines = of_first_steps(first)
    assert "| seconds from `git clone` to the result of the first job | 61.5 | clone 0.5, install 50 |" in lines
    assert "| `import jobmaster`, ms | 11.2 | 0.25 times `import asyncio` |" in lines
    ratios = {"1": 0.99, "100": 0.964}
    assert of_calls({"call_over_mapping": ratios, "call_over_mapping_cpu": ratios})[-2:] == [
        "| jobs a second | 0.99 | 0.96 |",
        "| jobs a CPU second | 0.99 | 0.96 |",
    ]


def test_the_page_shows_the_kept_reports() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == rewritten(page, text(RESULTS, PLOTS)), "run python -m benchmarks.plots"
