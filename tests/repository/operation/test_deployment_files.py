"""Each file under ``config/deploy`` is accepted by the linter of its kind.

``tests/system/operation/test_deployment_commands.py`` runs their commands.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

TREE = Path(__file__).parents[3]
DEPLOY = TREE / "config" / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
KUBERNETES_VERSIONS = ("1.30", "1.34")


def ran(*argv: str, folder: Path = TREE) -> str:
    """Both streams of a linter that is content."""
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def program(name: str) -> str:
    """A program of this environment; it comes with the group ``dev``."""
    return str(Path(sys.executable).with_name(name))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def test_hadolint_accepts_the_dockerfile() -> None:
    ran(program("hadolint"), "--failure-threshold", "info", str(DEPLOY / "Dockerfile"))


def test_yamllint_accepts_every_yaml_file() -> None:
    ran(program("yamllint"), "--strict", "-c", str(DEPLOY / ".yamllint"), str(DEPLOY))


def test_the_schemas_of_kubernetes_accept_every_object_of_its_own() -> None:
    """KEDA's ScaledObject is no object of Kubernetes itself: no schema of it is at hand, and it is not checked here."""
    from kubernetes_validate import validate  # type: ignore[import-untyped]

    found = set()
    for path in sorted((KUBERNETES / "base").glob("*.yaml")):
        for document in documents(path):
            if "kind" in document and document["kind"] != "Kustomization":
                found.add(document["kind"])
                for version in KUBERNETES_VERSIONS:
                    validate(document, version, strict=True)
    assert found == {"Deployment", "Job", "PodDisruptionBudget", "Service"}


def test_what_a_kustomization_names_exists() -> None:
    for path in sorted(KUBERNETES.glob("*/kustomization.yaml")):
        (document,) = documents(path)
        files = [*document["resources"], *(f for made in document.get("configMapGenerator", ()) for f in made["files"])]
        assert [name for name in files if not (path.parent / name).exists()] == []
        for patch in document.get("patches", ()):
            assert (patch["target"]["kind"], patch["target"]["name"]) in {
                (each["kind"], each["metadata"]["name"])
                for file in (KUBERNETES / "base").glob("*.yaml")
                for each in documents(file)
                if "metadata" in each
            }


def test_files_that_compose_mounts_exist() -> None:
    (document,) = documents(DEPLOY / "compose" / "compose.yaml")
    for name, service in document["services"].items():
        sources = [volume.split(":")[0] for volume in service.get("volumes", ())]
        missing = [each for each in sources if each.startswith(".") and not (DEPLOY / "compose" / each).exists()]
        assert missing == [], name
        assert "restart" in service or name == "migrate"


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("the units are not verified: this machine has no systemd-analyze (Debian: apt-get install systemd)")
    for unit in UNITS:  # the program of a unit must exist to be verified
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/jobmaster/bin/jobmaster", "/bin/true"))
    assert ran(analyze, "verify", "--man=no", *(str(tmp_path / unit.name) for unit in UNITS), folder=tmp_path) == ""


def test_systemd_finds_a_wrong_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("the units are not verified: this machine has no systemd-analyze (Debian: apt-get install systemd)")
    (tmp_path / "wrong.service").write_text("[Service]\nExecStart=/bin/true\nWatchdogSeconds=60\n")
    assert "WatchdogSeconds" in ran(analyze, "verify", "--man=no", str(tmp_path / "wrong.service"), folder=tmp_path)


def test_units_share_their_hardening() -> None:
    """A directive that one of them has and another has not would be an oversight."""
    parts = {unit.read_text().partition("# Hardening.")[2].partition("[Install]")[0].strip() for unit in UNITS}
    assert len(UNITS) == 3
    assert len(parts) == 1


def test_times_to_stop_are_above_the_grace_time_and_the_watchdog_above_the_lease() -> None:
    from jobmaster.settings.model import Leases
    from jobmaster_agents.supervisor.supervisor import CERTIFICATE_WAIT_SECONDS, STOP_MARGIN_SECONDS

    leases = Leases()
    needed = leases.grace_seconds + STOP_MARGIN_SECONDS + CERTIFICATE_WAIT_SECONDS
    unit = (DEPLOY / "systemd" / "jobmaster-agents.service").read_text()
    compose = (DEPLOY / "compose" / "compose.yaml").read_text()
    kubernetes = (KUBERNETES / "base" / "agents.yaml").read_text()
    for text, pattern in (
        (unit, r"TimeoutStopSec=(\d+)"),
        (compose, r"stop_grace_period: (\d+)s"),
        (kubernetes, r"terminationGracePeriodSeconds: (\d+)"),
    ):
        found = re.search(pattern, text)
        assert found is not None
        assert int(found[1]) > needed
    watchdog = re.search(r"WatchdogSec=(\d+)", unit)
    assert watchdog is not None
    assert int(watchdog[1]) > 3 * leases.lease_seconds


def test_the_image_in_the_kustomization_has_the_version_of_the_tree() -> None:
    version = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]["version"]
    (document,) = documents(KUBERNETES / "base" / "kustomization.yaml")
    assert [image["newTag"] for image in document["images"]] == [version]
