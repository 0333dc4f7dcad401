"""Which files belong to the project: what git tracks, where there is git; never what a run leaves lying about.

A tree is worked in while it is looked at: caches come and go, a pull exchanges files. What vanishes is not there.
"""

from __future__ import annotations

import fnmatch
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path


def _git(root: Path, *words: str) -> bytes | None:
    """Answer of git about this very tree; ``None`` where there is no git, or the tree is only a folder in another one."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        asked = [["git", "-C", str(root), *part] for part in (("rev-parse", "--show-toplevel"), words)]
        top, answer = (subprocess.run(one, env=clean, capture_output=True, check=True).stdout for one in asked)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer if Path(os.fsdecode(top.rstrip(b"\n"))) == root.resolve() else None


def head(root: Path) -> str:
    """The commit that is checked out; empty where there is no git."""
    return (_git(root, "rev-parse", "HEAD") or b"").decode().strip()


def tracked(root: Path) -> list[Path] | None:
    """Every file that git tracks and that is there; ``None`` where there is no git."""
    answer = _git(root, "ls-files", "-z")
    if answer is None:
        return None
    paths = (root / os.fsdecode(name) for name in answer.split(b"\0") if name)
    return sorted(path for path in paths if path.is_file())


def ignored(root: Path) -> tuple[str, ...]:
    """Names of files and folders that are never the project's."""
    lines = (root / ".gitignore").read_text(encoding="utf-8").splitlines()
    return (".git", *(line.rstrip("/") for line in lines if line))


def there(root: Path, path: Path) -> bool:
    """A file, or a folder with one. Of a folder that a pull has taken away its caches are left."""
    return path.is_file() or (path.is_dir() and bool(walked([path], ignored(root))))


def walked(tops: Sequence[Path], ignored: Sequence[str]) -> list[Path]:
    """Every file below the folders whose name, and whose folders' names, match no pattern."""
    found = []
    stack = list(tops)
    while stack:
        try:
            entries = list(stack.pop().iterdir())
        except FileNotFoundError:
            continue
        for path in entries:
            if any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored):
                continue
            if path.is_dir() and not path.is_symlink():
                stack.append(path)
            elif path.is_file():
                found.append(path)
    return sorted(found)
