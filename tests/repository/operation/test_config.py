"""What is made from the settings is current, the examples load, and every variable that the code reads is known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from jobmaster.cli.commands.config import config_group
from jobmaster.settings.config_file import CONFIG_VARIABLE, SEARCHED_NAMES
from jobmaster.settings.generated_texts import made_texts
from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import ClusterSettings
from jobmaster.settings.overrides import OTHER_VARIABLES, PREFIX, UnknownPath, resolve
from jobmaster.settings.schema import Block, Series, Shape, Table, settings_shape

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "config").glob("*.yaml"))
_NAMED_BY_USERS = {
    "agents.lanes",
    "agents.lane_slots",
    "schedules",
    "job_limits",
    "encryption.keys",
    "tenants.weights",
    "web.tokens",
}
"""Tables without a line by default: their keys are names of users."""


@pytest.mark.parametrize("path", made_texts(ROOT), ids=lambda path: path.name)
def test_what_is_made_from_the_settings_is_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == made_texts(ROOT)[path], (
        "run: python -m jobmaster.settings.generated_texts"
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_loads_without_a_warning_and_names_the_schema(path: Path) -> None:
    assert load_settings(path).warnings == ()
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=jobmaster.schema.json"


def test_the_commented_example_holds_every_key_at_its_default() -> None:
    loaded = load_settings(ROOT / "config" / "cluster.yaml")
    assert loaded.settings == ClusterSettings()
    written = {re.sub(r"(stores|agents)\.default", r"\1", path) for path in loaded.origins}
    assert written >= set(_leaf_paths(settings_shape(), "")) - _NAMED_BY_USERS


def _leaf_paths(shape: Shape, path: str) -> list[str]:
    match shape:
        case Block():
            return [
                found
                for name, key in shape.keys.items()
                for found in _leaf_paths(key.shape, f"{path}.{name}".removeprefix("."))
            ]
        case Table() if path in _NAMED_BY_USERS:
            return [path]
        case Table():
            return _leaf_paths(shape.value, path)
        case _:
            return [path]


def test_every_key_is_explained() -> None:
    def unexplained(shape: Shape, path: str) -> list[str]:
        match shape:
            case Block() if shape.struct.__name__ != "BucketCounts":
                found = [f"{path}.{name}" for name, key in shape.keys.items() if not key.description]
                return found + [
                    at for name, key in shape.keys.items() for at in unexplained(key.shape, f"{path}.{name}")
                ]
            case Table():
                return unexplained(shape.value, f"{path}.<name>")
            case _:
                return []

    assert unexplained(settings_shape(), "") == []


def test_the_guide_names_the_files_and_variables_that_the_loader_knows() -> None:
    guide = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for word in (f"`${CONFIG_VARIABLE}`", *(f"`./{name}`" for name in SEARCHED_NAMES), *OTHER_VARIABLES):
        assert word in guide


def test_every_yaml_of_the_guide_loads(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    assert blocks
    (tmp_path / "pw").write_text("s3cret\n")
    for block in blocks:
        text = block.replace("/run/secrets/master_password", str(tmp_path / "pw"))
        (tmp_path / "c.yaml").write_text(text)
        assert load_settings(tmp_path / "c.yaml").warnings == ()


def test_the_guide_shows_what_validate_really_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    (broken,) = re.findall(r"```yaml broken\n(.*?)```", guide, re.DOTALL)
    (shown,) = re.findall(r"\$ jobmaster config validate cluster.yaml\n(.*?)```", guide, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text(broken)
    assert CliRunner().invoke(config_group, ["validate", "cluster.yaml"]).stderr == shown


def test_every_variable_that_the_code_names_is_known() -> None:
    """A variable of ours that the loader does not know would be refused as a typing error."""
    unknown = []
    for room in ("jobmaster", "agents", "benchmarks"):
        for path in (ROOT / room).rglob("*.py"):
            for name in re.findall(rf"[\"'`]({PREFIX}[A-Z0-9_]+)[\"'`=]", path.read_text(encoding="utf-8")):
                if name in OTHER_VARIABLES or name == PREFIX:
                    continue
                try:
                    resolve(name.removeprefix(PREFIX).lower().split("__"))
                except UnknownPath:
                    unknown.append(f"{path.relative_to(ROOT)}: {name}")
    assert unknown == []


def test_the_schema_has_only_what_the_forms_can_express() -> None:
    """Lists hold leaves, and sections sit in tables or sections: nothing deeper was ever needed."""

    def walk(shape: Shape, depth: int) -> int:
        match shape:
            case Block():
                return max(walk(key.shape, depth + 1) for key in shape.keys.values())
            case Table():
                return walk(shape.value, depth + 1)
            case Series():
                return depth + 1
            case _:
                return depth

    assert walk(settings_shape(), 0) <= 8
