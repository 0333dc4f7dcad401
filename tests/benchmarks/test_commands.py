"""Every measurement runs, in its smallest form, and says what it is asked for. Figures are not compared here."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from benchmarks import first_steps
from benchmarks.fleet.measure_costs import measured as fleet_costs
from benchmarks.support.leg_stamps import LEGS
from benchmarks.support.limited_handlers import most_at_once
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "agent.busy_workers", "agent.idle", "agent.memory", "agent.rescue", "bulk", "calls", "drain", "first_steps",
    "fleet.__main__", "flow", "latency", "master.fallback", "master.growth", "master.lateness", "master.retire", "onboard",
    "payloads", "pipeline.__main__", "portal", "stream", "submit", "testing", "traces", "web",
)  # fmt: skip


def measured(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", *arguments, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert {"commit", "taken_at", "machine", "packages"} <= found.keys()
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_can_print_json_and_keep_its_report(command: str) -> None:
    main: click.Command = import_module(f"benchmarks.{command}").main
    options = {name for parameter in main.params for name in parameter.opts}
    assert {"--json", "--save"} <= options


def test_testing() -> None:
    found = measured("benchmarks.testing", "--count", "5", "--runs", "1")
    assert found["run_handler_ms"] > 0
    assert found["run_handler_in_thread_ms"] > 0


@pytest.mark.slow
@pytest.mark.cluster
def test_drain() -> None:
    found = measured("benchmarks.drain", "--jobs", "3000", "--runs", "1")
    assert found["jobs"] == found["outcomes_in_master"] == 3000
    assert found["jobs_per_second"] > 0
    assert found["floor_jobs_per_second"] > 0
    assert found["raw_copy_rows_per_second"] > 0
    assert found["share_of_floor"] > 0
    assert found["servers"]["postgres"]["synchronous_commit"] == "on"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_payloads() -> None:
    found = measured("benchmarks.payloads", "--jobs", "200", "--kib", "64", "--runs", "1")
    assert found["outcomes_in_master"] == 200
    assert found["agent_peak_mb"] >= found["agent_before_mb"] > 0
    assert found["servers"]["postgres"]["fsync"] == "on"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_portal() -> None:
    found = measured("benchmarks.portal", "--jobs", "80", "--runs", "1")
    assert found["portal_over_loop"].keys() == found["details"].keys() == {"1", "8"}
    for one in found["details"].values():
        assert one["loop_jobs_per_second"]["median"] > 0
        assert one["portal_over_loop"] > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_traces() -> None:
    found = measured("benchmarks.traces", "--jobs", "1000", "--runs", "1")["cpu_us_per_job"]
    assert found.keys() == {"off", "sample 0", "sample 1"}
    assert all(each.keys() == {"run", "submit", "submit_many"} for each in found.values())


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_submit() -> None:
    found = measured("benchmarks.submit", "--jobs", "200", "--runs", "1")
    for durability in ("store", "store_fsync", "master"):
        assert set(found["single"][durability]) == {"1", "10", "100", "1000"}
        assert found["bulk_jobs_per_second"][durability] > 0
        assert found["single_own_id"][durability]["100"] > 0
        assert found["call_over_single"][durability].keys() == found["single"][durability].keys()
        for way in found["details"][durability].values():
            assert way["cpu_us_per_job"].keys() == {"producer", "store", "postgres"}
            assert way["cpu_us_per_job"]["producer"] > 0
    assert found["servers"]["store_fsync"]["store"]["appendfsync"] == "always"


def test_the_first_steps_are_few_lines() -> None:
    """The measurement installs everything into a new environment: too long for here."""
    assert set(first_steps.files()) == {"tasks.py", "producer.py"}
    assert first_steps.typed_lines() < 15


def test_the_small_figures_are_ratios_too() -> None:
    found = first_steps.small_figures(1)
    assert found.keys() == {
        "import_ms", "import_over_import_of_asyncio", "run_handler_ms", "run_handler_over_asyncio_run",
    }  # fmt: skip
    assert min(found.values()) > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_calls() -> None:
    found = measured("benchmarks.calls", "--jobs", "200", "--runs", "1")
    for ratios in (found["call_over_mapping"], found["call_over_mapping_cpu"]):
        assert ratios.keys() == {"1", "10", "100", "1000"}
        assert min(ratios.values()) > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_rescue() -> None:
    found = measured("benchmarks.agent.rescue", "--trials", "1", "--default-trials", "0")
    for case in ("child", "child_alone", "agent_short_leases"):
        assert 0 < found[case]["p50_seconds"] <= found[case]["p99_seconds"] <= found[case]["max_seconds"]
        assert found[case]["trials"] == 1


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_bulk() -> None:
    found = measured("benchmarks.bulk", "--jobs", "300", "--runs", "0")
    assert found["jobs_per_second"] > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_retire() -> None:
    found = measured("benchmarks.master.retire", "--finished", "300", "--unfinished", "200")
    for case in ("first", "second"):
        assert found[case]["moved"] == 200
        assert found[case]["beside"]["max_ms"] > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_move() -> None:
    found = measured("benchmarks.master.move", "--jobs", "1200")
    assert found["jobs_per_second"] > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_latency_leg_by_leg() -> None:
    found = measured("benchmarks.latency", "--trace", "--seconds", "0.3")
    for load in ("light_load", "half_load"):
        assert found[load]["submit called -> handler started"]["jobs"] > 0
        assert {figures["jobs"] > 0 for figures in found[load].values()} == {True}
    assert found["half_load_jobs_per_second"] > 0
    assert set(LEGS) - {"command written -> agent woken", "agent woken -> claim sent"} <= set(found["light_load"])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_latency() -> None:
    found = measured("benchmarks.latency", "--seconds", "0.3", "--runs", "1")
    assert {"p50_ms", "p99_ms", "max_ms", "floor_p50_ms", "floor_p99_ms"} <= found.keys()
    assert {"p50_ms", "p99_ms", "max_ms"} <= found["held"].keys()
    for load in ("half_load", "half_load_untuned"):
        assert {"p50_ms", "p99_ms", "max_ms", "jobs_per_second"} <= found[load].keys()
    assert found["half_load"]["full_collections"] == 0
    assert found["floor_p50_ms"] > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_onboard() -> None:
    found = measured("benchmarks.onboard", "--held", "5000", "--small", "1000", "--jobs", "2000", "--runs", "1")
    assert found["held"] == 5000
    assert found["jobs_per_second"] > 0
    assert found["jobs_per_second_small_table"] > 0
    assert found["ratio"] > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_busy_workers() -> None:
    found = measured("benchmarks.agent.busy_workers", "--seconds", "1", "--runs", "1")
    assert found["work_jobs_per_second"] > 0, "the worker processes computed meanwhile"
    for name in ("alone", "beside_busy_workers"):
        assert (found[name]["jobs"], found[name]["p50_ms"] <= found[name]["p99_ms"]) == (100, True)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_lateness() -> None:
    found = measured("benchmarks.master.lateness", "--schedules", "20")
    assert (found["schedules"], found["jobs"]) == (20, 20)
    assert 0 < found["p99_ms"] <= found["max_ms"]
    found = measured("benchmarks.master.lateness", "--jobs", "50", "--over", "2")
    assert (found["over_seconds"], found["jobs"]) == (2, 50)
    assert found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_stream() -> None:
    pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
    small = ("--rate", "20", "--seconds", "3", "--warm", "5", "--recorded-rate", "200", "--before", "100")
    found = measured("benchmarks.stream", *small)
    for end in ("sink", "source"):
        assert 0 < found[end]["p50_ms"] <= found[end]["p99_ms"] <= found[end]["max_ms"]
        assert 0 < found[end]["jobs"] <= found["jobs"]
    recorded = found["recorded"]
    assert 0 <= recorded["p50_ms"] <= recorded["p99_ms"] <= recorded["max_ms"]
    assert 0 < recorded["jobs"] <= recorded["recorded_jobs"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.parametrize("part", ["moving", "history", "increment", "export"])
def test_pipeline(part: str) -> None:
    pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
    found = measured("benchmarks.pipeline", "--only", part, "--rows", "500", "--turns", "1", "--submits", "20")
    if part == "moving":
        assert found["read_rows_per_second"] > 0
        assert (found["written"], found["replay_inserted"]) == (250, 0)
        assert found["jdbc_note"]
        for way in ("read", "write"):
            assert (found[f"{way}_over_jdbc"] is None) == (found[f"jdbc_{way}_rows_per_second"] is None)
    elif part == "history":
        assert found["archived_jobs"] == 500
        assert min(found["archive_rows_per_second"], found["audit_seconds"], found["driver_rss_mb"]) > 0
    elif part == "increment":
        assert (found["increment_old_jobs"], found["increment_new_jobs"]) == (500, 100)
        assert found["increment_new_seconds"] > 0
    else:
        assert found["submit_alone"]["jobs"] == found["submit_beside_export"]["jobs"] == 20
        assert found["submit_p99_over_alone"] > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_web() -> None:
    found = measured("benchmarks.web", "--jobs", "3000", "--rounds", "1", "--watch-seconds", "2")
    assert (found["jobs"], found["in_stores"]) == (3000, 60)
    assert all(0 < each["p50_ms"] <= each["p95_ms"] for each in found["pages"].values())
    assert {"overview", "job page", "metrics", "map", "search: rare tag", "search: second page"} <= found[
        "pages"
    ].keys()
    none, one, many, after = (each["statements_per_second"] for each in found["viewers"])
    assert none == after == 0 < one
    assert many < 5 * one + 10


def test_the_most_runs_at_one_moment_are_counted() -> None:
    assert most_at_once([]) == 0
    assert most_at_once([(1, 5), (2, 3), (3, 4), (5, 9)]) == 2, (
        "of an end and a begin at one moment the end comes first"
    )
    assert most_at_once([(1, 5), (2, 6), (3, 7)]) == 3


_SMALL_FLOW = (
    "--rounds", "2", "--children", "2000", "--tenant-seconds", "2", "--tenant-pairs", "1", "--limited-jobs", "400",
    "--limited-agents", "2",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_flow() -> None:
    found = measured("benchmarks.flow", *_SMALL_FLOW)
    assert found["chain_ms"] > 0
    assert found["limited_starts_per_second"] > 0
    assert 0 < found["limited_most_at_once"] <= 100
    assert found["unlimited_starts_per_second"] > 0
    assert found["limited_cpu_ratio"] > 0
    assert len(found["tenant_wait_ratios"]) == 1


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_growth() -> None:
    axes = ["held_rows", "buckets"]
    options = [word for axis in axes for word in ("--axis", axis)]
    words = ("--held", "10000", "--batches", "1", "--jobs", "1000", "--points", "1")
    found = measured("benchmarks.master.growth", *words, *options)
    for axis in axes:
        (point,) = found[axis]
        assert {"x", "cost_us_per_job"} <= point.keys()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_idle_memory_and_fallback() -> None:
    assert measured("benchmarks.agent.idle", "--seconds", "1", "--runs", "1")["agent_cpu_percent"] >= 0
    weights = measured("benchmarks.agent.memory", "--runs", "1", "--jobs", "2000")
    assert weights["agent_mb"] > weights["supervisor_mb"] > 0
    assert measured("benchmarks.master.fallback", "--batches", "2", "--runs", "1")["ratio"] > 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.cluster
def test_unit_costs_of_a_fleet() -> None:
    found = fleet_costs((3, 6), ((1, 5), (10, 5)))
    assert {point["x"] for point in found["control"]["renew"]["points"]} == {3, 6}
    for group, names in (("rows", ("copy", "upsert", "onboard")), ("control", ("renew", "map", "take_lost"))):
        assert all(point["server"] > 0 for name in names for point in found[group][name]["points"])
    assert found["store"]["claim"]["server_us"]["fixed"] > 0
    assert found["flush_us"] > 0
