"""``jobmaster config``: output and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jobmaster.cli.commands.config import config_group
from jobmaster.cli.invocation import attach_common_options
from jobmaster.cli.main import run as run_program
from jobmaster.settings.json_schema import json_schema
from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import ClusterSettings

BROKEN = (
    "clutser: prod\nmaster: {dsn: mysql://app:s3cret@db}\nleases: {lease: 5min}\n"
    "jobs: {timeout: 1:30, lane: a, lane: b}\nagents: {a: {store: x}}\n"
)


@pytest.fixture(autouse=True)
def _alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOBMASTER_CONFIG", "JOBMASTER_CLUSTER"):
        monkeypatch.delenv(name, raising=False)


def run(*args: str) -> Result:
    return CliRunner().invoke(attach_common_options(config_group), list(args))


def test_validate_accepts_a_valid_file() -> None:
    Path("cluster.yaml").write_text("cluster: prod\n")
    result = run("validate")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "cluster.yaml: the configuration is sound\n", "")
    assert run("validate", "cluster.yaml").exit_code == 0


def test_validate_without_a_file_checks_the_defaults() -> None:
    result = run("validate")
    assert (result.exit_code, result.stdout) == (0, "no file: the defaults: the configuration is sound\n")


def test_validate_lists_every_problem_and_their_number_and_ends_with_78() -> None:
    Path("broken.yaml").write_text(BROKEN)
    result = run("validate", "broken.yaml")
    lines = result.stderr.splitlines()
    assert result.exit_code == 78
    assert result.stdout == ""
    assert [line.split(" ")[0] for line in lines[:-1]] == [
        "broken.yaml:1:1:",
        "broken.yaml:2:15:",
        "broken.yaml:3:17:",
        "broken.yaml:4:17:",
        "broken.yaml:4:32:",
        "broken.yaml:5:21:",
        "broken.yaml:4:29:",  # the warning: no agent serves lane "a"
    ]
    assert lines[-1] == "6 problems, 1 warning"
    assert "s3cret" not in result.stderr


def test_validate_prints_the_same_as_json() -> None:
    Path("broken.yaml").write_text(BROKEN)
    result = run("validate", "broken.yaml", "-o", "json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["valid"], report["source"]) == (78, False, "broken.yaml")
    assert len(report["problems"]) == 6
    assert report["problems"][0] == {
        "source": "broken.yaml",
        "kind": "file",
        "line": 1,
        "column": 1,
        "path": "clutser",
        "message": 'unknown key "clutser"',
        "hint": 'did you mean "cluster"?',
    }
    assert report["warnings"][0]["path"] == "jobs.lane"
    assert "s3cret" not in result.stdout
    sound = json.loads(run("validate", "-o", "json").stdout)
    assert sound == {"valid": True, "source": None, "problems": [], "warnings": []}


def test_validate_counts_the_environment_and_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBMASTER_LEASE__LEASE", "3s")
    result = run("validate", "--set", "jobs.timeot=3s")
    assert result.exit_code == 78
    assert "environment JOBMASTER_LEASE__LEASE: " in result.stderr
    assert 'there is no key "timeot" (did you mean "timeout"?)' in result.stderr


def test_validate_names_a_file_that_is_not_there() -> None:
    result = run("validate", "gone.yaml")
    assert result.exit_code == 78
    assert result.stderr.startswith("gone.yaml: this file does not exist (write one with: jobmaster config init)")


def test_init_writes_a_file_that_holds_the_defaults_and_its_schema() -> None:
    result = run("init")
    assert (result.exit_code, result.stdout) == (0, "wrote jobmaster.yaml and jobmaster.schema.json\n")
    assert load_settings(Path("jobmaster.yaml")).settings == ClusterSettings()
    assert "$schema=jobmaster.schema.json" in Path("jobmaster.yaml").read_text()
    assert json.loads(Path("jobmaster.schema.json").read_text()) == json_schema()


def test_init_never_overwrites_without_force() -> None:
    Path("mine.yaml").write_text("cluster: mine\n")
    Path("jobmaster.schema.json").write_text("{}")
    result = run("init", "mine.yaml")
    assert (result.exit_code, Path("mine.yaml").read_text()) == (1, "cluster: mine\n")
    assert result.stderr == "mine.yaml exists and was left alone (use --force to overwrite it)\n"
    other = run("init", "other.yaml")
    assert other.exit_code == 0
    assert "differs and was kept" in other.stdout
    assert Path("jobmaster.schema.json").read_text() == "{}"
    assert run("init", "--force", "mine.yaml").exit_code == 0
    assert load_settings(Path("mine.yaml")).settings == ClusterSettings()
    assert "is current" in run("init", "third.yaml").stdout


def test_init_does_not_follow_a_link_to_somewhere_else() -> None:
    Path("jobmaster.yaml").symlink_to("elsewhere.yaml")
    assert run("init").exit_code == 1
    assert not Path("elsewhere.yaml").exists()


def test_init_reports_a_failed_write_and_can_write_to_standard_output() -> None:
    result = run("init", "no/such/directory/x.yaml")
    assert result.exit_code == 1
    assert "cannot be written: No such file or directory" in result.stderr
    assert run("init", "-").stdout.startswith("# yaml-language-server: $schema=")
    assert list(Path().iterdir()) == []


def test_schema_prints_the_schema() -> None:
    assert json.loads(run("schema").stdout) == json_schema()


def test_show_prints_every_key_with_its_origin_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("cluster.yaml").write_text("master: {dsn: postgresql://app:s3cret@db/jobs}\n")
    monkeypatch.setenv("JOBMASTER_LEASES__LEASE", "15s")
    result = run("show", "--origin", "--set", "jobs.timeout=90")
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert rows["KEY"] == ["VALUE", "ORIGIN"]
    assert rows["master.dsn"] == ["postgresql://app:***@db/jobs", "cluster.yaml:1:15"]
    assert rows["leases.lease"] == ["15s", "environment", "JOBMASTER_LEASES__LEASE"]
    assert rows["jobs.timeout"] == ["1m30s", "command", "line", "--set", "jobs.timeout"]
    assert rows["limits.args"] == ["128KiB", "default"]
    for output in ("table", "json", "yaml"):
        for flags in ((), ("--origin",)):
            assert "s3cret" not in run("show", "-o", output, *flags).output


def test_show_prints_json_and_yaml() -> None:
    Path("x.yaml").write_text("cluster: prod\nhandlers: [a]\n")
    tree = json.loads(run("show", "--config", "x.yaml", "-o", "json").stdout)
    assert (tree["cluster"], tree["handlers"], tree["leases"]["lease"], tree["master"]["dsn"]) == (
        "prod",
        ["a"],
        "10s",
        None,
    )
    rows = json.loads(run("show", "--config", "x.yaml", "-o", "json", "--origin").stdout)
    assert rows[0] == {"key": "cluster", "value": "prod", "origin": "x.yaml:1:10"}
    Path("y.yaml").write_text(run("show", "--config", "x.yaml", "-o", "yaml", "--origin").stdout)
    assert load_settings(Path("y.yaml")).settings == load_settings(Path("x.yaml")).settings


def test_show_of_a_broken_file_lists_its_problems() -> None:
    Path("broken.yaml").write_text(BROKEN)
    result = run("show", "--config", "broken.yaml")
    assert (result.exit_code, result.stdout) == (78, "")
    assert "6 problems" in result.stderr
    error = json.loads(run("show", "--config", "broken.yaml", "-o", "json").stderr)["error"]
    assert (error["code"], len(error["problems"])) == ("config", 6)


def test_importing_the_commands_imports_neither_the_loader_nor_yaml() -> None:
    code = "import sys, jobmaster.cli.commands.config; print(sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_root()
    ).stdout
    for heavy in ("yaml", "asyncpg", "redis", "uvloop"):
        assert f"'{heavy}'" not in loaded


def _root() -> Path:
    return Path(__file__).parents[3]


@pytest.mark.parametrize("before", [True, False])
def test_the_options_may_stand_before_or_after_the_command(before: bool, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.yaml").write_text("clutser: prod\n")
    options, command = ["-o", "json", "--set", "x=1", "--config", "broken.yaml"], ["config", "validate"]
    assert run_program([*options, *command] if before else [*command, *options]) == 78
    report = json.loads(capsys.readouterr().out)
    assert (report["source"], len(report["problems"])) == ("broken.yaml", 2)
