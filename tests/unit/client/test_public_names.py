"""The public names exist, and importing the package loads no driver and nothing it does not need."""

from __future__ import annotations

import enum
import inspect
import pydoc
import subprocess
import sys
import typing
from collections.abc import Iterator

import pytest

import jobmaster
from jobmaster import wiring
from jobmaster.client import options
from jobmaster.model import errors


def test_every_public_name_is_there() -> None:
    assert [name for name in jobmaster.__all__ if getattr(jobmaster, name) is None or name not in dir(jobmaster)] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = jobmaster.nonsense


def everything() -> Iterator[tuple[str, object]]:
    """Every public class and function, and every public member of a class of ours."""
    named = {f"jobmaster.{name}": getattr(jobmaster, name) for name in jobmaster.__all__}
    for module in (errors, options, wiring):
        named |= {f"{module.__name__}.{name}": one for name, one in vars(module).items() if not name.startswith("_")}
    for path, one in named.items():
        if not str(getattr(one, "__module__", "")).startswith("jobmaster"):
            continue
        yield path, one
        if inspect.isclass(one):
            members = ((name, member) for name, member in vars(one).items() if not name.startswith("_"))
            yield from ((f"{path}.{name}", member) for name, member in members if inspect.isroutine(member))


def test_help_and_signature_work_for_everything_that_is_public() -> None:
    for path, one in everything():
        assert pydoc.render_doc(one), path
        if callable(one) and not (inspect.isclass(one) and issubclass(one, enum.Enum | dict)):
            assert str(inspect.signature(one)).startswith("("), path
        if inspect.isclass(one) and "__annotations__" in vars(one):
            assert typing.get_type_hints(one) is not None, path


def test_help_of_the_package_shows_its_classes() -> None:
    text = pydoc.plain(pydoc.render_doc(jobmaster))
    for name in ("class Cluster", "class JobReceipt", "class SyncCluster", "submit("):
        assert name in text


def test_importing_the_library_loads_little_of_the_standard_library_and_nothing_else() -> None:
    """29 modules and 10 ms with Python 3.11. The limit leaves room for other versions of Python."""
    code = "import sys; before = set(sys.modules); import jobmaster; print(*sorted(set(sys.modules) - before))"
    ran = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    loaded = ran.stdout.split()
    assert {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) == {"jobmaster"}
    assert [name for name in loaded if name.startswith("jobmaster.")] == []
    assert len(loaded) <= 40, loaded


def test_importing_the_library_loads_no_driver() -> None:
    code = "import sys, jobmaster\n{}\nprint([m for m in ('asyncpg', 'redis', 'msgspec') if m in sys.modules])"
    for touch, expected in (
        ("", "[]"),
        ("jobmaster.Cluster, jobmaster.SyncCluster, jobmaster.Handlers", "['msgspec']"),
    ):
        ran = subprocess.run([sys.executable, "-c", code.format(touch)], capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == expected
