"""Calls that have not been made yet: arguments by name, and errors for those that cannot fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from jobmaster import Call, InvalidArguments, JobContext, call

TYPED = Path(__file__).with_name("typed_calls.py")
"""A program of a user; lines with ``# refused`` must be refused by a type checker, and no others."""


async def resize(path: str, width: int = 800) -> int:
    return len(path) * width


def shrink(ctx: JobContext, path: str, *, quality: float = 0.5) -> str:
    return f"{ctx.handler} {path} {quality}"


def by_name_of_its_context(ctx, path):  # type: ignore[no-untyped-def]  # a handler without annotations
    return path


@pytest.mark.parametrize(
    ("made", "arguments"),
    [
        (call(resize, "a.png"), {"path": "a.png"}),
        (call(resize, "a.png", 3), {"path": "a.png", "width": 3}),
        (call(resize, "a.png", width=3), {"path": "a.png", "width": 3}),
        (call(resize, width=3, path="a.png"), {"path": "a.png", "width": 3}),
        (call(shrink, "a.png", quality=0.1), {"path": "a.png", "quality": 0.1}),
        (call(by_name_of_its_context, "a.png"), {"path": "a.png"}),
        (call("images.resize", path="a.png"), {"path": "a.png"}),
    ],
)
def test_arguments_get_their_names(made: Call[object], arguments: dict[str, object]) -> None:
    assert made.arguments == arguments


def test_a_call_shows_what_it_is() -> None:
    assert repr(call(resize, "a.png", width=3)) == "<Call resize(path='a.png', width=3)>"
    assert repr(call("images.resize", path="a.png")) == "<Call images.resize(path='a.png')>"


def test_too_many_arguments_by_position() -> None:
    with pytest.raises(
        InvalidArguments, match=r"call\(resize, \.\.\.\): 3 arguments .* takes 2 \(it takes \(path, width\)"
    ):
        call(resize, "a.png", 3, 4)  # type: ignore[call-overload]
    with pytest.raises(InvalidArguments, match="2 arguments by position, and the function takes 1"):
        call(shrink, "a.png", 0.3)  # type: ignore[call-overload]


def test_an_argument_that_is_given_twice() -> None:
    with pytest.raises(InvalidArguments, match="argument 'path' is given twice"):
        cast(Any, call)(resize, "a.png", path="b.png")  # as a program without type checks gives it


def test_a_handler_given_by_its_name_has_no_positions() -> None:
    with pytest.raises(InvalidArguments, match=r"the arguments of handler 'images.resize' have no names"):
        call("images.resize", "a.png")  # type: ignore[call-overload]


def refused_lines() -> list[int]:
    return [number for number, line in enumerate(TYPED.read_text().splitlines(), 1) if "# refused" in line]


@pytest.mark.slow
def test_pyright_compares_the_arguments_with_the_function() -> None:
    checker = Path(sys.executable).with_name("basedpyright")
    ran = subprocess.run([checker, "--level", "error", TYPED], capture_output=True, text=True, check=False)
    found = {int(line.split(f"{TYPED.name}:")[1].split(":")[0]) for line in ran.stdout.splitlines() if "error:" in line}
    assert sorted(found) == refused_lines(), ran.stdout + ran.stderr
