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

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]

OFFENCES = {
    "a folder of an agent imports one beside it": (
        "agents/jobmaster_agents/rescue/failure_detector.py",
        "import jobmaster_agents.leader.leader",
        "agent",
    ),
    "a task of an agent imports a driver": (
        "agents/jobmaster_agents/rescue/failure_detector.py",
        "import asyncpg",
        "asyncpg",
    ),
    "the client imports a driver": ("jobmaster/client/options.py", "import redis", "redis"),
    "the client imports the master": (
        "jobmaster/client/options.py",
        "import jobmaster.master.driver.statements",
        "layers",
    ),
    "a rule imports settings": ("jobmaster/rules/attempt_delay.py", "import jobmaster.settings.model", "layers"),
    "the model imports a rule": ("jobmaster/model/ids.py", "import jobmaster.rules.attempt_delay", "layers"),
    "the wiring imports the agents": ("jobmaster/wiring.py", "import jobmaster_agents.event_log", "layers"),
    "a package that is not listed": ("jobmaster/extra.py", "", "listed"),
    "a module of an agent that is not listed": ("agents/jobmaster_agents/extra.py", "", "agent"),
    "a cycle": ("jobmaster/units.py", "import jobmaster.settings.loader", "cycles"),
}


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
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages, for offences."""
    folder = tmp_path_factory.mktemp("layers")
    for room in ("jobmaster", "agents"):
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.mark.parametrize("offence", OFFENCES)
def test_an_offence_breaks_its_contract(copy: Path, offence: str) -> None:
    name, line, contract = OFFENCES[offence]
    module = copy / name
    before = module.read_text(encoding="utf-8") if module.exists() else None
    module.write_text(f"{before or ''}\n{line}\n", encoding="utf-8")
    try:
        answer = lint(copy, contract)
    finally:
        module.unlink() if before is None else module.write_text(before, encoding="utf-8")
    assert "BROKEN" in answer.stdout, answer.stdout
    assert answer.returncode == 1


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
