"""Prometheus itself reads the alert rules: each alert fires in the state that it names, and none in a healthy cluster.

The healthy cluster is an exposition of this program, with the figures of a leader. ``promtool`` evaluates the rules in
virtual time.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobmaster.monitoring.alerts import ALERTS
from jobmaster.telemetry import Telemetry

RULES = Path(__file__).parents[3] / "config" / "prometheus" / "alerts.yml"
WHERE = 'job="shop",instance="a:9090"'
MINUTES = 30
STEADY, GROWS, GROWS_FAST = f"0x{MINUTES}", f"0+5x{MINUTES}", f"0+60x{MINUTES}"
HEALTHY = {
    "jobmaster_leading": f"1x{MINUTES}",
    "jobmaster_buckets_owned": f"6x{MINUTES}",
    "jobmaster_slots{kind=async}": f"100x{MINUTES}",
    "jobmaster_backlog_jobs{lane=default,priority=high}": STEADY,
    "jobmaster_oldest_due_seconds{lane=default,priority=high}": STEADY,
    "jobmaster_handler_runs_total{handler=pay,outcome=succeeded}": GROWS,
    "jobmaster_periodic_task_failures_total{task=leader}": STEADY,
}
"""What the exposition of a new process does not have, or has otherwise."""
FIRES: Mapping[str, Mapping[str, str]] = {
    "JobMasterNoLeader": {"jobmaster_leading": STEADY},
    "JobMasterAgentDied": {"jobmaster_supervisor_deaths_total": f"0x20 1x{MINUTES - 20}"},
    "JobMasterCrashLoop": {"jobmaster_supervisor_deaths_in_a_row": f"3x{MINUTES}"},
    "JobMasterOldestDueHigh": {"jobmaster_oldest_due_seconds{lane=default,priority=high}": f"301x{MINUTES}"},
    "JobMasterBacklogNotCounted": {"jobmaster_backlog_jobs{lane=default,priority=high}": ""},
    "JobMasterLaneUnserved": {"jobmaster_groups_unserved": f"1x{MINUTES}"},
    "JobMasterHandlerUnserved": {"jobmaster_handlers_unserved": f"1x{MINUTES}"},
    "JobMasterHandlerFailing": {"jobmaster_handler_runs_total{handler=pay,outcome=failed}": GROWS_FAST},
    "JobMasterHandlerTimingOut": {"jobmaster_handler_runs_total{handler=pay,outcome=timed_out}": f"0+1x{MINUTES}"},
    "JobMasterSlotsTaken": {"jobmaster_jobs_running": f"96x{MINUTES}"},
    "JobMasterHandlersStuck": {"jobmaster_threads_stuck": f"1x{MINUTES}"},
    "JobMasterFiresMissed": {"jobmaster_schedule_fires_total{outcome=missed}": f"0x5 1x{MINUTES - 5}"},
    "JobMasterSuspended": {"jobmaster_suspended": f"1x{MINUTES}"},
    "JobMasterLeaseRenewalsFailing": {"jobmaster_lease_renewals_total{result=failed}": GROWS_FAST},
    "JobMasterMasterSlow": {"jobmaster_outcome_write_seconds_bucket{le=+Inf}": GROWS},
    "JobMasterOutcomesKept": {"jobmaster_outcomes_kept": f"1x{MINUTES}"},
    "JobMasterStoreSilent": {"jobmaster_stores_silent": f"1x{MINUTES}"},
    "JobMasterClockWrong": {"jobmaster_clock_ahead_seconds": f"-2x{MINUTES}"},
    "JobMasterJobsAtRisk": {"jobmaster_jobs_at_risk_total": GROWS},
    "JobMasterRowsWithoutMemory": {"jobmaster_rows_without_memory_total": GROWS},
    "JobMasterEntriesQuarantined": {"jobmaster_jobs_quarantined_total": GROWS},
    "JobMasterJobsConflicting": {"jobmaster_jobs_conflicting_total": GROWS},
    "JobMasterBucketsLost": {"jobmaster_buckets_lost_total": GROWS},
    "JobMasterRescueStuck": {"jobmaster_drains_postponed_total": GROWS},
    "JobMasterJobsGivenUp": {"jobmaster_jobs_too_slow_total": GROWS},
    "JobMasterJobsNotSealed": {"jobmaster_jobs_not_sealed_total": GROWS},
    "JobMasterPeriodicTaskFailing": {"jobmaster_periodic_task_failures_total{task=leader}": GROWS},
    "JobMasterLoopStalled": {"jobmaster_loop_stalls_total": GROWS},
}
"""Alert -> the series of a cluster in which this alert fires, and no other one."""


@pytest.fixture(scope="module")
def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("there is no promtool: apt-get install prometheus")
    return path


def ran(promtool: str, *arguments: str) -> str:
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def named(series: str) -> str:
    """``name{label=value}`` as Prometheus writes it, with the labels that Prometheus adds."""
    name, _, labels = series.removesuffix("}").partition("{")
    quoted = [re.sub(r"=(.*)", r'="\1"', each) for each in labels.split(",") if each]
    return f"{name}{{{','.join([WHERE, *quoted])}}}"


def healthy() -> dict[str, str]:
    """Series -> its values by the minute."""
    telemetry = Telemetry()
    telemetry.serve(["pay"])
    found = {}
    for line in telemetry.exposition().decode().splitlines():
        sample = re.fullmatch(r"(\w+)(?:\{(.*)\})? ([\d.e+]+)", line)
        if sample is not None:
            labels = f",{sample[2]}" if sample[2] else ""
            found[f"{sample[1]}{{{WHERE}{labels}}}"] = f"{float(sample[3]):g}x{MINUTES}"
    return found | {named(series): values for series, values in HEALTHY.items()}


def case(series: Mapping[str, str], firing: str | None) -> dict[str, Any]:
    """A case of ``promtool``: after half an hour one alert fires, or none."""
    labels = f'{{alertname="{firing}"}}'
    return {
        "name": firing or "a healthy cluster",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items() if values],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{MINUTES}m",
                "exp_samples": [{"labels": labels, "value": 1}] if firing else [],
            }
        ],
    }


def test_prometheus_accepts_the_rules(promtool: str) -> None:
    assert f"{len(ALERTS)} rules found" in ran(promtool, "check", "rules", str(RULES))


@pytest.mark.slow
def test_each_alert_fires_alone_and_none_in_a_healthy_cluster(promtool: str, tmp_path: Path) -> None:
    assert {*FIRES, "JobMasterMetricsAbsent"} == {alert.name for alert in ALERTS}
    series = healthy()
    cases = [case(series, None), case({}, "JobMasterMetricsAbsent")]
    for name, changed in FIRES.items():
        wanted = {named(each): values for each, values in changed.items()}
        cases.append(case(series | wanted, name))
    file = tmp_path / "cases.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    ran(promtool, "test", "rules", str(file))
