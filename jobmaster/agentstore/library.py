"""The function library: one text made of ``lua/*.lua``, loaded under a name that carries the protocol version.

Functions are global to a server, so the version is part of the library's and of every function's name: agents of two
protocol versions live on one store side by side. Inside one version the rule that keeps two programs of different
builds from replacing each other's library for ever is an order: **the higher (build, digest) stays**. ``lua/BUILD``
holds the build number and the digest of the sources; a test compares them, so a changed function needs a new number.
What lies in the server is read back whole (``FUNCTION LIST WITHCODE``) and its digest computed, so that an altered
library of the same build is seen too.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

PROTOCOL = 2
"""2: the list of kept outcomes and the fields of a term have other names than in 1."""
LIBRARY = f"jobmaster_v{PROTOCOL}"
PREFIX = f"jm{PROTOCOL}_"

_BUILD_LINE = re.compile(rb"^-- build (\d+)$", re.MULTILINE)


class Build(NamedTuple):
    """What is compared: the higher one stays."""

    number: int
    digest: str
    """sha256 of the whole library text."""


@cache
def sources() -> dict[str, str]:
    """Name -> text of every Lua file, the prelude first, then by name."""
    folder = files("jobmaster.agentstore") / "lua"
    texts = {
        item.name.removesuffix(".lua"): item.read_text(encoding="utf-8")
        for item in folder.iterdir()
        if item.name.endswith(".lua")
    }
    return {name: texts[name] for name in sorted(texts, key=lambda name: (name != "prelude", name))}


@cache
def recorded_build() -> tuple[int, str]:
    """Number, and digest of the sources, in ``lua/BUILD``."""
    number, digest = (files("jobmaster.agentstore") / "lua" / "BUILD").read_text(encoding="utf-8").split()
    return int(number), digest


@cache
def text() -> bytes:
    """The library as it is loaded. Each file is a block of its own, so that their locals do not meet."""
    blocks = [f"#!lua name={LIBRARY}", f"-- build {recorded_build()[0]}"]
    for name, source in sources().items():
        blocks.append(source if name == "prelude" else f"do\n{source}end")
    return "\n".join(blocks).encode()


def build_of(code: bytes) -> Build:
    """Build of a library text; number 0 when it does not name one."""
    match = _BUILD_LINE.search(code)
    return Build(int(match.group(1)) if match else 0, hashlib.sha256(code).hexdigest())


def must_load(installed: bytes | None) -> bool:
    """True when the text in the server (``None``: there is none) has to give way to ours."""
    return installed is None or build_of(text()) > build_of(installed)
