"""Configurations as files in a temporary directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from jobmaster.settings.loader import LoadedSettings, load_settings
from jobmaster.settings.problems import InvalidSettings

Load = Callable[..., LoadedSettings]
Complain = Callable[..., list[str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def load(here: Path) -> Load:
    """Writes ``cluster.yaml`` and loads it (``None``: no file)."""

    def run(
        text: str | bytes | None, env: Mapping[str, str] | None = None, overrides: Sequence[str] = ()
    ) -> LoadedSettings:
        if text is None:
            return load_settings(None, env or {}, overrides)
        content = text.encode() if isinstance(text, str) else text
        Path("cluster.yaml").write_bytes(content)
        return load_settings(Path("cluster.yaml"), env or {}, overrides)

    return run


@pytest.fixture
def complain(load: Load) -> Complain:
    """The problem lines of a configuration that must be refused."""

    def run(text: str | bytes | None, env: Mapping[str, str] | None = None, overrides: Sequence[str] = ()) -> list[str]:
        with pytest.raises(InvalidSettings) as caught:
            load(text, env, overrides)
        assert caught.value.exit_code == 78
        assert list(caught.value.problems) == [str(detail) for detail in caught.value.details]
        return list(caught.value.problems)

    return run


@pytest.fixture
def as_unprivileged(here: Path) -> Callable[[Callable[[], str]], str]:
    """Runs a function as a user whom file permissions stop (root passes them), and hands back its text."""

    def run(work: Callable[[], str]) -> str:
        if os.geteuid() != 0:
            return work()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                # Entered while still root: the parents of a scratch directory may be closed to others.
                os.setgid(65534)
                os.setuid(65534)
                text = work()
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writing, text.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            text = stream.read().decode()
        os.waitpid(child, 0)
        return text

    return run
