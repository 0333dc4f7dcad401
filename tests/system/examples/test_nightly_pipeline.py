"""``examples/nightly_pipeline``: schedules of a cluster run its own pipeline, and Spark applications are jobs."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import processes_with
from tests.support.waiting import wait_until
from tests.system.cli.conftest import MARK, REPOSITORY, Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.spark]
FOLDER = REPOSITORY / "examples" / "nightly_pipeline"
pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")


def ended(example: Terminal, job: str, code: int = 0) -> Any:
    """The job, when it has ended."""
    waited = example.call("job", "wait", job, "--within", f"{PATIENCE_SECONDS:.0f}s", seconds=2 * PATIENCE_SECONDS)
    shown = example.call("job", "show", job, "-o", "json").json
    assert waited.code == code, (shown, example.call("job", "logs", job).out)
    return shown


def submitted(example: Terminal, *words: str) -> str:
    done = example.call("job", "submit", *words, "-o", "json")
    assert done.code == 0, done.err
    return str(done.json["id"])


def drivers(example: Terminal) -> dict[int, str]:
    """Processes of Spark, with their guards: process ids and command lines."""
    words = ("java", "pyspark", "primes.py", "guard.py")
    found = processes_with(MARK, example.mark)
    return {pid: command for pid, command in found.items() if any(word in command for word in words)}


@pytest.mark.long
def test_a_schedule_audits_the_history_of_the_cluster_that_runs_it(example: Terminal) -> None:
    ended(example, submitted(example, "orders.take", "order=1", "cents=250"))
    listed = {row["name"]: row["every"] for row in example.call("schedule", "list", "-o", "json").json}
    assert listed == {
        "pipeline.archive": "0 2 * * *",
        "pipeline.rollup": "10 * * * *",
        "pipeline.audit": "0 4 * * SUN",
        "orders.totals": "30 5 * * *",
    }
    run = example.call("schedule", "run", "pipeline.audit", "-o", "json").json["id"]
    audit = ended(example, run)["result"]
    assert (audit["audit_violations"], audit["audited_jobs"] >= 1) == (0, True)
    assert Path(audit["report"]).is_file()
    wait_until(lambda: not drivers(example), PATIENCE_SECONDS, lambda: f"the end of {drivers(example)}")


@pytest.mark.long
def test_the_other_steps_are_jobs_too(example: Terminal) -> None:
    ended(example, submitted(example, "orders.take", "order=3", "cents=250"))
    words = {"archive": ["older_than=7d"], "rollup": ["rebuild=false"], "compact": [], "vacuum": ["older_than=1d"]}
    jobs = {step: submitted(example, f"pipeline.{step}", *given) for step, given in words.items()}
    found = {step: ended(example, job) for step, job in jobs.items()}
    assert found["rollup"]["result"]["rolled_up_jobs"] >= 1
    assert found["archive"]["result"]["rows"] == 0


@pytest.mark.long
def test_a_function_over_a_session_is_a_job_with_a_result(example: Terminal) -> None:
    ended(example, submitted(example, "orders.take", "order=2", "cents=250"))
    run = example.call("schedule", "run", "orders.totals", "-o", "json").json["id"]
    assert ended(example, run)["result"]["orders.take"] >= 1


def test_a_program_for_spark_submit_is_a_job_with_progress_and_its_result(example: Terminal) -> None:
    job = submitted(example, "orders.primes", "below=30000")
    shown = ended(example, job)
    assert shown["result"]["result"] == {"primes": 3245}
    assert shown["result"]["exit_code"] == 0
    assert "3245 primes below 30000" in example.call("job", "logs", job).out


def test_the_death_of_the_agent_and_a_cancel_end_a_spark_application(example: Terminal) -> None:
    """The job runs again in another application, which the cancel ends."""
    job = submitted(example, "orders.primes", "below=60000000", "slices=2")

    def shown() -> Any:
        return example.call("job", "show", job, "-o", "json").json

    def logs() -> str:
        return example.call("job", "logs", job).out

    wait_until(lambda: shown()["progress"], PATIENCE_SECONDS, logs)
    assert shown()["progress"]["total"] == 2
    first = set(drivers(example))
    assert first
    (agent,) = example.call("agent", "list", "-o", "json").json
    os.kill(agent["pid"], signal.SIGKILL)
    again = 2 * PATIENCE_SECONDS
    wait_until(lambda: shown()["rescues"] == 1 and set(drivers(example)) - first, again, lambda: str(shown()))
    wait_until(lambda: not first & set(drivers(example)), PATIENCE_SECONDS, "the end of the first application")
    assert example.call("job", "cancel", job).code == 0
    assert ended(example, job, 1)["state"] == "CANCELLED"
    wait_until(lambda: not drivers(example), PATIENCE_SECONDS, lambda: f"the end of {drivers(example)}")


@pytest.mark.parametrize(("file", "package"), [("airflow_dag.py", "airflow"), ("dagster_assets.py", "dagster")])
def test_the_files_for_other_schedulers_load(file: str, package: str, tmp_path: Path) -> None:
    """Executed where the package is installed. It is not among the dependencies of this repository: then only the syntax, and
    that each command line in the file is one of the command line's, are checked."""
    path = FOLDER / file
    if importlib.util.find_spec(package) is not None:
        done = subprocess.run(
            [sys.executable, str(path)], cwd=tmp_path, env={**os.environ, "AIRFLOW_HOME": str(tmp_path)}, check=False
        )
        assert done.returncode == 0
    py_compile.compile(str(path), cfile=str(tmp_path / "compiled"), doraise=True)
    from jobmaster.cli.commands.pipeline.pipeline import pipeline_group

    text = path.read_text(encoding="utf-8")
    steps = [step for step in ("archive", "rollup", "audit") if f'"{step}' in text]
    assert steps == ["archive", "rollup", "audit"]
    assert set(steps) <= set(pipeline_group.commands)
