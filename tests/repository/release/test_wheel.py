"""What users install is the wheel: it is built, installed outside the tree, and has to work there."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash_points.faulty_ports import VARIABLE
from tests.support.patience import PATIENCE_SECONDS

TREE = Path(__file__).parents[3]
PACKAGES = {
    "jobmaster": TREE / "jobmaster",
    "jobmaster_agents": TREE / "agents" / "jobmaster_agents",
    "pyspark_jobmaster": TREE / "jobmaster" / "pipeline" / "spark_plugin" / "pyspark_jobmaster",
}
DATA_SUFFIXES = {".sql", ".lua", ".yaml", ".json", ".typed", ".html", ".css", ".js"}

pytestmark = pytest.mark.slow

Run = Callable[..., str]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)], TREE)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of programs of a fresh environment that holds the wheel and, of the tree, nothing.

    The dependencies are those of the running environment: a line in a .pth file adds their directory, but does not read
    the .pth files in it, so an editable install of the tree stays out.
    """
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet"]
    run([*pip, "install", "--no-deps", "--no-index", str(wheel)], home)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"{package}/{path.relative_to(folder)}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.suffix in DATA_SUFFIXES | {".py"} and "__pycache__" not in path.parts
        if package == "pyspark_jobmaster" or not path.is_relative_to(PACKAGES["pyspark_jobmaster"])
    }
    migrations = {f"jobmaster/{path.relative_to(TREE)}" for path in (TREE / "master_schema").rglob("*.sql")}
    assert wanted
    assert migrations
    assert (wanted | migrations) - names == set()
    strangers = {name.split("/")[0] for name in names if ".dist-info/" not in name} - set(PACKAGES)
    assert strangers == set()


def test_what_is_installed_injects_no_fault(wheel: Path) -> None:
    """Neither the variable of the crash points nor a module of the tests is in the wheel."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        assert len([name for name in names if name.endswith(".py")]) > 100
        assert not [name for name in names if {"tests", "crash_points"} & set(Path(name).parts)]
        for name in names:
            found = packed.read(name)
            assert VARIABLE.encode() not in found, name
            assert b"tests.crash_points" not in found, name


def test_the_packages_come_from_the_environment(installed: Path) -> None:
    for package in PACKAGES:
        answer = run([str(installed / "python"), "-c", f"import {package}; print({package}.__path__[0])"], installed)
        assert Path(answer.strip()).is_relative_to(installed.parent)


def test_the_migrations_are_found(installed: Path) -> None:
    code = "from jobmaster.master.schema.migrations import migrations; print(len(migrations()))"
    answer = run([str(installed / "python"), "-c", code], installed)
    assert int(answer) == len(list((TREE / "master_schema" / "migrations").glob("*.sql")))


def test_the_command_shows_its_help(installed: Path) -> None:
    answer = run([str(installed / "jobmaster"), "--help"], installed)
    assert answer.startswith("Usage: jobmaster")


def test_the_embedded_servers_start(installed: Path, server_root: Path) -> None:
    code = (
        "import sys; from jobmaster.embedded import EmbeddedCluster\n"
        "with EmbeddedCluster(sys.argv[1]) as cluster: print(cluster.status().running)"
    )
    answer = run([str(installed / "python"), "-c", code, str(server_root / "from-wheel")], installed)
    assert answer == "True\n"


@pytest.mark.long
def test_a_project_outside_the_tree_tests_its_jobs(installed: Path, tmp_path: Path) -> None:
    """The files of the page about tests: in memory, with a real cluster, with a killed agent, on two processes at once."""
    page = (TREE / "docs" / "how-to" / "test.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"^```\w+\n(?:#) ([\w.]+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text)
    for options in ([], ["-n", "2"]):
        answer = run([str(installed / "python"), "-m", "pytest", "-q", "-p", "no:valkey", *options], tmp_path)
        found = re.search(r"(\d+) passed", answer)
        assert found, answer
        assert int(found[1]) >= len(re.findall(r"^(?:async )?def test_", page, re.MULTILINE)), answer
    code = "import jobmaster.testing.plugin as plugin; print(plugin.__file__)"
    assert Path(run([str(installed / "python"), "-c", code], tmp_path).strip()).is_relative_to(installed.parent)


def run(argv: list[str], folder: Path) -> str:
    """Standard output; a failure shows both streams."""
    answer = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert answer.returncode == 0, f"{argv}\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout
