"""The same source on a standalone cluster of real processes, started from pip alone, and behind Spark Connect."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.spark.datasource.conftest import PublishedCluster, published_cluster
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.spark]
ROOT = Path(__file__).parents[4]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def alone(migrated_dsn: str, cluster_name: str, tmp_path: Path) -> PublishedCluster:
    """A cluster that no session of this process looks at."""
    pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
    made = published_cluster(migrated_dsn, cluster_name, tmp_path)
    made.ended(2000)
    return made


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts classes of Spark as processes; ends them, and what they started."""
    import pyspark

    from jobmaster.pipeline.spark.java import find_java

    home = Path(pyspark.__file__).parent
    env = {**os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(find_java(os.environ).home)}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "agents")]), "PYSPARK_PYTHON": sys.executable}
    env |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(tmp_path / "work")}
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    env |= {"SPARK_DAEMON_JAVA_OPTS": f"-XX:+IgnoreUnrecognizedVMOptions {quick}"}
    started: list[subprocess.Popen[bytes]] = []

    def run(*words: str) -> subprocess.Popen[bytes]:
        log = (tmp_path / f"spark-{len(started)}.log").open("wb")
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *words], env=env, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        started.append(process)
        return process

    yield run
    for process in reversed(started):
        os.killpg(process.pid, signal.SIGTERM)
    for process in started:
        process.wait(60)


def drive(master: str, published: PublishedCluster) -> dict[str, int]:
    """Run the program as a driver of its own; what it found."""
    program = [sys.executable, "-m", "tests.integration.spark.datasource.cluster_program", master]
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [*program, published.options["dsn"], published.options["schema"]],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(published: PublishedCluster, found: dict[str, int]) -> None:
    assert found == {"read": 2000, "succeeded": 2000}
    assert published.value("SELECT count(*) FROM job WHERE state = 'HELD' AND token = 1") == 4000
    run = published.sql(
        lambda c: c.fetchrow("SELECT offered, inserted, rejected FROM pipeline_write WHERE run_id = 'run'")
    )
    assert tuple(run) == (4000, 4000, 0)


@pytest.mark.long
def test_two_workers_a_task_that_dies_and_speculation(alone: PublishedCluster, start: Start) -> None:
    """A task dies after it has committed chunks and runs again; slow ones run twice. Each row is in once, and so counted."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    host = ("--host", "127.0.0.1")
    start("org.apache.spark.deploy.master.Master", *host, "--port", str(port), "--webui-port", "0")
    wait_for_port(port)
    for _ in range(2):
        start(
            "org.apache.spark.deploy.worker.Worker",
            *host,
            "--cores",
            "1",
            "--memory",
            "600m",
            "--webui-port",
            "0",
            master,
        )
    check(alone, drive(master, alone))


def test_behind_spark_connect(alone: PublishedCluster) -> None:
    pytest.importorskip("grpc", reason="the extra `connect` is not installed")
    check(alone, drive("sc", alone))


def wait_for_port(port: int) -> None:
    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(listens, 12, "the master of the cluster to listen")
