"""The public names exist, and importing the package loads no driver and nothing it does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

import jobmaster


@pytest.mark.parametrize("name", jobmaster.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(jobmaster, name) is not None
    assert name in dir(jobmaster)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = jobmaster.nonsense


def test_importing_the_library_loads_no_driver() -> None:
    code = "import sys, jobmaster\n{}\nprint([m for m in ('asyncpg', 'redis', 'msgspec') if m in sys.modules])"
    for touch, expected in (
        ("", "[]"),
        ("jobmaster.Cluster, jobmaster.SyncCluster, jobmaster.Handlers", "['msgspec']"),
    ):
        ran = subprocess.run([sys.executable, "-c", code.format(touch)], capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == expected
