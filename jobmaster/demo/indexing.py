"""What the demo's jobs do: index one Python source file. Pure but for reading the file.

The handler and the sequential loop that checks it call the same function, so a difference between the two can only come
from the cluster: a job lost, run on another file, or recorded twice.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import warnings
from collections.abc import Iterable
from pathlib import Path

import msgspec

# Invalid escapes in old files are not our business. Once and for the process: `catch_warnings` is not safe in threads.
warnings.filterwarnings("ignore", module="<unknown>")

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


class FileIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one file. One that does not parse is a result like any other."""

    sha256: str
    lines: int
    parses: bool
    definitions: int = 0
    """Functions and classes, nested ones too."""
    imports: int = 0
    """Import statements."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The sum over many files."""

    files: int = 0
    lines: int = 0
    definitions: int = 0
    imports: int = 0
    unparsed: int = 0
    fingerprint: str = ""
    """sha256 over path and index of every file, in order of path: equal only if every single result is."""


def index_source(path: str) -> FileIndex:
    """Parse, count and hash one file; ``OSError`` when it cannot be read."""
    data = Path(path).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return FileIndex(sha256=digest, lines=lines, parses=False)
    definitions = imports = 0
    for node in ast.walk(tree):
        if isinstance(node, _DEFINITIONS):
            definitions += 1
        elif isinstance(node, _IMPORTS):
            imports += 1
    return FileIndex(sha256=digest, lines=lines, parses=True, definitions=definitions, imports=imports)


def standard_library_files() -> list[str]:
    """Every Python source file of the running interpreter's standard library, sorted; installed packages are not it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = (path for path in root.rglob("*.py") if path.is_file())
    return sorted(str(path) for path in found if not {"site-packages", "dist-packages"}.intersection(path.parts))


def add_up(indexes: Iterable[tuple[str, FileIndex]]) -> Totals:
    """Sum over ``(path, index)``; the order given does not matter."""
    files = lines = definitions = imports = unparsed = 0
    digest = hashlib.sha256()
    for path, index in sorted(indexes, key=lambda pair: pair[0]):
        files += 1
        lines += index.lines
        definitions += index.definitions
        imports += index.imports
        unparsed += not index.parses
        digest.update(path.encode("utf-8", "surrogateescape") + b"\0" + msgspec.json.encode(index) + b"\n")
    return Totals(
        files=files,
        lines=lines,
        definitions=definitions,
        imports=imports,
        unparsed=unparsed,
        fingerprint=digest.hexdigest(),
    )
