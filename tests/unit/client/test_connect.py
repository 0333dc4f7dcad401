"""The front door: where the configuration comes from, and what a wrong use is answered with."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import jobmaster
from jobmaster import ClusterSettings, ConfigError, Handlers, InputError, InvalidSettings, SyncCluster, Unavailable

NOWHERE = {
    "JOBMASTER_MASTER__DSN": "postgresql://postgres@127.0.0.1:1/none",
    "JOBMASTER_STORES__DEFAULT__URL": "redis://127.0.0.1:1/0",
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads the configuration of the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JOBMASTER_CONFIG", raising=False)
    return tmp_path


def test_the_configuration_is_found_as_agents_find_it(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_folder / "jobmaster.yaml").write_text("cluster: from-the-folder\n")
    (empty_folder / "other.yaml").write_text("cluster: from-the-variable\n")
    assert jobmaster.connect()._settings.cluster == "from-the-folder"
    monkeypatch.setenv("JOBMASTER_CONFIG", "other.yaml")
    assert jobmaster.connect()._settings.cluster == "from-the-variable"
    assert jobmaster.connect("jobmaster.yaml")._settings.cluster == "from-the-folder"
    monkeypatch.setenv("JOBMASTER_CLUSTER", "from-the-environment")
    assert jobmaster.connect("jobmaster.yaml")._settings.cluster == "from-the-environment"
    assert jobmaster.connect("jobmaster.yaml", env={})._settings.cluster == "from-the-folder"
    assert jobmaster.connect(overrides=["cluster=given"])._settings.cluster == "given"
    assert jobmaster.connect(ClusterSettings(cluster="made"))._settings.cluster == "made"


def test_a_configuration_that_cannot_work_is_named_before_anything_is_opened(empty_folder: Path) -> None:
    (empty_folder / "jobmaster.yaml").write_text("cluster: a\nleases:\n  lease: soon\n")
    for connect in (jobmaster.connect, jobmaster.connect_sync):
        with pytest.raises(InvalidSettings, match=r"jobmaster\.yaml:3:10: leases\.lease"):
            connect()
    with pytest.raises(ConfigError, match="this file does not exist"):
        jobmaster.connect("nowhere.yaml")


def test_warnings_of_the_configuration_are_logged(empty_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (empty_folder / "jobmaster.yaml").write_text("cluster: a\n")
    (empty_folder / "cluster.yaml").write_text("cluster: b\n")
    jobmaster.connect()
    assert "cluster.yaml lies beside jobmaster.yaml and is not read" in caplog.text


@pytest.mark.parametrize(
    ("config", "named", "sentence"),
    [
        (Handlers(), {}, r"not Handlers \(the registry of handlers is named: connect\(handlers=\.\.\.\)\)"),
        (ClusterSettings(), {"env": {}}, "change nothing in settings that are loaded already"),
        (ClusterSettings(), {"overrides": ["cluster=x"]}, "change nothing in settings that are loaded already"),
        (
            None,
            {"handlers": "tasks"},
            r"handlers= takes a registry .*, not str \(import it: `from tasks import handlers`",
        ),
        (None, {"handlers": jobmaster}, "handlers= takes a registry .*, not module"),
        (None, {"env": "x"}, "env= takes a mapping of variables, not str"),
        (None, {"overrides": 5}, "overrides= takes a list of texts, not 5"),
        (None, {"overrides": "a=b"}, "overrides= takes a list of texts, not 'a=b'"),
        (None, {"overrides": [b"a=b"]}, "overrides= takes a list of texts, not"),
    ],
)
def test_wrong_arguments(config: object, named: dict[str, object], sentence: str) -> None:
    entries: list[Callable[..., object]] = [jobmaster.connect, jobmaster.connect_sync]
    for connect in entries:
        with pytest.raises(InputError, match=sentence):
            connect(config, **named)


def test_a_cluster_that_was_not_awaited_answers_with_the_way_to_open_it() -> None:
    opening = jobmaster.connect(env={})
    with pytest.raises(InputError, match=re.escape("async with jobmaster.connect() as cluster:")):
        opening.submit("images.resize", {})
    for name in ("job", "handlers", "settings", "submit", "nonsense"):
        assert not hasattr(opening, name)
        with pytest.raises(InputError, match=f"has not been awaited, so it has no '{name}' yet"):
            getattr(opening, name)
    assert not hasattr(opening, "_repr_html_")


async def test_a_master_that_is_away_is_named_by_both_ways_to_open(empty_folder: Path) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1.* cannot be reached"):
        await jobmaster.connect(env=NOWHERE)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1.* cannot be reached"):
        async with jobmaster.connect(env=NOWHERE):
            pytest.fail("there is no master")


def test_a_sync_cluster_opens_nothing_before_its_first_call() -> None:
    cluster = jobmaster.connect_sync(env=NOWHERE)
    assert isinstance(cluster, SyncCluster)
    with pytest.raises(Unavailable, match="cannot be reached"):
        cluster.get(jobmaster.new_job_id())
