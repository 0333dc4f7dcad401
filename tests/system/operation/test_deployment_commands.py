"""The commands of the compose file and of the units, as plain processes: read from the files, run with real servers.

What a container or systemd adds is played: the environment of the image, the interpolation of variables, the working
directory, the socket of the service manager, the signals. Replaced are the addresses of servers, the ports, and the paths of
the program and of the configuration.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from tests.support.deployment import ENVIRONMENT, REPOSITORY
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import free_port
from tests.support.service_socket import ServiceSocket
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

DEPLOY = REPOSITORY / "config" / "deploy"
COMPOSE = DEPLOY / "compose"
SYSTEMD = DEPLOY / "systemd"
JOBMASTER = [sys.executable, "-m", "jobmaster.cli.main"]
SECRETS = {name: f"{name.lower()}-0123456789abcdef" for name in ("POSTGRES_PASSWORD", "VALKEY_PASSWORD", "WEB_TOKEN")}
EXIT_SECONDS = 40.0
"""TimeoutStopSec= and stop_grace_period, which another test compares with the grace time."""


class Started:
    """Processes that a test started; they are killed at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
        """One that stays."""
        with (self._folder / f"log-{len(self._processes)}").open("wb") as log:
            process = subprocess.Popen(argv, env=environment, cwd=cwd, stdout=log, stderr=log, start_new_session=True)
        self._processes.append(process)
        return process

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("log-*")))

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    processes = Started(tmp_path)
    yield processes
    processes.close()


def ran(argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> str:
    """Standard output of a command that ends well."""
    done = subprocess.run(
        argv, env=environment, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def config_with(path: Path, target: Path, cluster: str, dsn: str, url: str) -> Path:
    """A copy of a configuration with the addresses of the test's servers. Secrets stay variables."""
    document = yaml.safe_load(path.read_text())
    assert "${POSTGRES_PASSWORD}" in document["master"]["dsn"]
    assert "${VALKEY_PASSWORD}" in document["stores"]["default"]["url"]
    document["cluster"] = cluster
    document["master"]["dsn"] = dsn
    document["stores"]["default"]["url"] = url
    target.write_text(yaml.safe_dump(document))
    return target


def page_of(port: int) -> str:
    """The first page, as a person with the token gets it."""
    request = Request(f"http://127.0.0.1:{port}/", headers={"Authorization": f"Bearer {SECRETS['WEB_TOKEN']}"})
    with urlopen(request, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 - the test's own server
        return str(answer.read().decode())


def answers(argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> bool:
    """True when a health command ends with 0."""
    return subprocess.run(argv, env=environment, cwd=cwd, capture_output=True, check=False).returncode == 0


def stopped_by(process: subprocess.Popen[bytes], signum: int) -> int:
    process.send_signal(signum)
    return process.wait(max(EXIT_SECONDS, PATIENCE_SECONDS))


# ---------------------------------------------------------------- the compose file


def image() -> dict[str, Any]:
    """What the last stage of the Dockerfile sets: ENV, ENTRYPOINT, HEALTHCHECK, STOPSIGNAL."""
    text = (DEPLOY / "Dockerfile").read_text().rpartition("\nFROM ")[2].replace("\\\n", " ")
    lines = dict(line.split(" ", 1) for line in text.splitlines() if re.match(r"[A-Z]+ ", line))
    environment = dict(word.split("=", 1) for word in shlex.split(lines["ENV"]))
    return {
        "environment": {name: value for name, value in environment.items() if name != "PATH"},
        "entrypoint": json.loads(lines["ENTRYPOINT"]),
        "health": json.loads(lines["HEALTHCHECK"].partition("CMD ")[2]),
        "stop": signal.Signals[lines["STOPSIGNAL"].strip()],
    }


def interpolated(value: str) -> str:
    return re.sub(r"\$\{(\w+):\?\}", lambda found: SECRETS[found[1]], value)


def test_the_commands_of_the_compose_file_make_a_cluster(
    tmp_path: Path, started: Started, master_dsn: str, store_url: str, cluster_name: str
) -> None:
    made, services = image(), yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    config = config_with(COMPOSE / "jobmaster.yaml", tmp_path / "jobmaster.yaml", cluster_name, master_dsn, store_url)
    ports = {"JOBMASTER_OBSERVABILITY__METRICS_PORT": str(free_port()), "JOBMASTER_WEB__PORT": str(free_port())}
    handlers = COMPOSE / "handlers"  # ./handlers:/app, the working directory of the image

    def environment(service: str) -> dict[str, str]:
        own = {name: interpolated(value) for name, value in services[service]["environment"].items()}
        return {**ENVIRONMENT, **made["environment"], **own, **ports, "JOBMASTER_CONFIG": str(config)}

    def command(words: Sequence[str]) -> list[str]:
        assert made["entrypoint"] == ["jobmaster"]
        return [*JOBMASTER, *words]

    assert "./handlers:/app:ro" in services["agents"]["volumes"]
    ran(command(services["migrate"]["command"]), environment("migrate"), handlers)
    agents = started.start(command(services["agents"]["command"]), environment("agents"), handlers)
    web = started.start(command(services["web"]["command"]), environment("web"), handlers)
    _, *live = made["health"]
    wait_until(lambda: answers(command(live), environment("agents"), handlers), 30, started.logs)
    ready = [word for word in live if word != "--live"]
    wait_until(lambda: answers(command(ready), environment("agents"), handlers), 30, started.logs)
    _, _, *of_web = services["web"]["healthcheck"]["test"]
    of_web[-1] = of_web[-1].replace("8020", ports["JOBMASTER_WEB__PORT"])
    wait_until(lambda: answers(command(of_web), environment("web"), handlers), 30, started.logs)
    assert cluster_name in page_of(int(ports["JOBMASTER_WEB__PORT"]))
    submit = command(["job", "submit", "greet", "name=Ann", "--wait", "-o", "json"])
    assert '"Hello, Ann"' in ran(submit, environment("agents"), handlers)
    assert stopped_by(web, made["stop"]) == 0
    assert stopped_by(agents, made["stop"]) == 0, started.logs()


# ---------------------------------------------------------------- the units


def unit(name: str) -> configparser.SectionProxy:
    """The section ``[Service]`` of a unit."""
    parser = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(SYSTEMD / f"jobmaster-{name}.service")
    return parser["Service"]


def seconds_of(value: str) -> float:
    found = re.fullmatch(r"(\d+)(min)?", value)
    assert found is not None, value
    return float(found[1]) * (60 if found[2] else 1)


def test_the_commands_of_the_units_make_a_service_that_reports_to_systemd(
    tmp_path: Path, started: Started, master_dsn: str, store_url: str, cluster_name: str
) -> None:
    config = config_with(SYSTEMD / "jobmaster.yaml", tmp_path / "jobmaster.yaml", cluster_name, master_dsn, store_url)
    secrets = [line.split("=")[0] for line in (SYSTEMD / "example.env").read_text().splitlines() if line[:1] != "#"]
    web_port = str(free_port())
    environment = {
        **ENVIRONMENT,
        **{name: SECRETS[name] for name in secrets},
        "JOBMASTER_OBSERVABILITY__METRICS_PORT": str(free_port()),
        "JOBMASTER_WEB__PORT": web_port,
    }
    folder = tmp_path / "srv"
    (folder / "myapp").mkdir(parents=True)
    (folder / "myapp" / "__init__.py").touch()
    (folder / "myapp" / "jobs.py").write_text((COMPOSE / "handlers" / "example_jobs.py").read_text())

    def command(name: str) -> list[str]:
        program, *words = shlex.split(unit(name)["ExecStart"])
        assert program == "/opt/jobmaster/bin/jobmaster"
        return [*JOBMASTER, *(str(config) if word == "/etc/jobmaster/jobmaster.yaml" else word for word in words)]

    ran(command("migrate"), environment, folder)
    agents_unit = unit("agents")
    assert (agents_unit["Type"], agents_unit["KillMode"]) == ("notify", "mixed")
    with ServiceSocket(tmp_path / "notify") as manager:
        reports = manager.environment(seconds_of(agents_unit["WatchdogSec"]))
        agents = started.start(command("agents"), {**environment, **reports}, folder)
        manager.until("READY=1")
        (reload_program, *reload_words) = shlex.split(agents_unit["ExecReload"])
        subprocess.run(
            [reload_program, *(word.replace("$MAINPID", str(agents.pid)) for word in reload_words)], check=True
        )
        manager.until("RELOADING=1")
        assert manager.until("READY=1")["STATUS"] == "The configuration was read again"
        web = started.start(command("web"), environment, folder)
        of_web = [*JOBMASTER, "health", "--live", "--url", f"http://127.0.0.1:{web_port}"]
        wait_until(lambda: answers(of_web, environment, folder), 30, started.logs)
        assert cluster_name in page_of(int(web_port))
        assert stopped_by(web, signal.SIGTERM) == 0
        agents.send_signal(signal.SIGTERM)  # KillMode=mixed: the main process alone
        manager.until("STOPPING=1")
        assert agents.wait(PATIENCE_SECONDS) == 0, started.logs()
