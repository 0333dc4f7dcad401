"""The import contracts hold, each of them can be broken, and importing the library loads no driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[3]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]

OFFENCES = {
    "a folder of an agent imports one beside it": (
        "agents/jobmaster_agents/rescue/failure_detector.py",
        "import jobmaster_agents.leader.leader",
        "agent",
        "jobmaster_agents.rescue.failure_detector -> jobmaster_agents.leader.leader",
    ),
    "a task of an agent imports a driver": (
        "agents/jobmaster_agents/rescue/failure_detector.py",
        "import asyncpg",
        "asyncpg",
        "jobmaster_agents.rescue.failure_detector -> asyncpg",
    ),
    "the client imports a driver": (
        "jobmaster/client/options.py",
        "import redis",
        "redis",
        "jobmaster.client.options -> redis",
    ),
    "the client imports the master": (
        "jobmaster/client/options.py",
        "import jobmaster.master.driver.statements",
        "layers",
        "jobmaster.client.options -> jobmaster.master.driver.statements",
    ),
    "a rule imports settings": (
        "jobmaster/rules/attempts.py",
        "import jobmaster.settings.model",
        "layers",
        "jobmaster.rules.attempts -> jobmaster.settings.model",
    ),
    "the model imports a rule": (
        "jobmaster/model/ids.py",
        "import jobmaster.rules.attempts",
        "layers",
        "jobmaster.model.ids -> jobmaster.rules.attempts",
    ),
    "the wiring imports the agents": (
        "jobmaster/wiring.py",
        "import jobmaster_agents.event_log",
        "layers",
        "jobmaster.wiring -> jobmaster_agents.event_log",
    ),
    "a package that is not listed": (
        "jobmaster/extra.py",
        "",
        "listed",
        "not listed as layers:\n\n- jobmaster.extra\n",
    ),
    "a module of an agent that is not listed": (
        "agents/jobmaster_agents/extra.py",
        "",
        "agent",
        "not listed as layers:\n\n- jobmaster_agents.extra\n",
    ),
    "a cycle": ("jobmaster/units.py", "import jobmaster.settings.loader", "cycles", "- .units -> .settings"),
}
"""Offence -> its module, the line that it adds, its contract, and what the report of that contract says."""


def lint(tree: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    argv += [word for name in contracts for word in ("--contract", name)]
    paths = os.pathsep.join((str(tree), str(tree / "agents")))
    return subprocess.run(
        [*argv, "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_every_contract_is_kept() -> None:
    answer = lint(ROOT)
    assert answer.returncode == 0, answer.stdout
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in answer.stdout


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is reported of a copy of the packages with every offence in it. To read the packages takes most of a run."""
    folder = tmp_path_factory.mktemp("layers")
    for room in ("jobmaster", "agents"):
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name, line, _, _ in OFFENCES.values():
        with (folder / name).open("a", encoding="utf-8") as module:
            module.write(f"\n{line}\n")
    answer = lint(folder, *sorted({contract for _, _, contract, _ in OFFENCES.values()}))
    assert answer.returncode == 1, answer.stdout
    return answer.stdout


@pytest.mark.parametrize("offence", OFFENCES)
def test_an_offence_breaks_its_contract(broken: str, offence: str) -> None:
    _, _, contract, expected = OFFENCES[offence]
    headings = {each["id"]: f"\n{each['name']}\n{'-' * len(each['name'])}\n" for each in CONTRACTS}
    _, found, report = broken.partition(headings[contract])
    assert found, broken
    for heading in headings.values():
        report = report.partition(heading)[0]
    assert expected in report


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        (
            "jobmaster",
            ("asyncpg", "redis", "yaml", "prometheus_client", "click", "jobmaster_agents", "jobmaster.master"),
        ),
        ("jobmaster.client.cluster", ("asyncpg", "redis", "yaml", "click", "jobmaster_agents", "jobmaster.master")),
        ("jobmaster.settings.model", ("asyncpg", "redis", "yaml", "click")),
        (
            "jobmaster_agents.supervisor.supervisor",
            ("asyncpg", "redis", "asyncio", "jobmaster.master", "jobmaster.agentstore"),
        ),
        ("jobmaster.cli.main", ("asyncpg", "redis", "yaml", "asyncio", "jobmaster.master", "jobmaster_agents")),
        ("jobmaster.pipeline.datasource.cluster_ref", ("redis", "yaml", "jobmaster.agentstore", "jobmaster.client")),
    ],
)
def test_an_import_stays_light(module: str, unwanted: tuple[str, ...]) -> None:
    """An import loads one package only: a producer loads no agent, ``--help`` loads no driver."""
    code = f"import {module}, sys; print(*sorted(set(sys.modules) & set(sys.argv[1].split(','))), sep=',')"
    answer = subprocess.run(
        [sys.executable, "-c", code, ",".join(unwanted)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "agents")))},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert answer.stdout.strip() == ""
