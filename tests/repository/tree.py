"""The files of the project: those that git tracks or, without git, all but ignored ones.

Files may change during a run: caches appear and vanish, a pull replaces files. A file that vanished does not count.
"""

from __future__ import annotations

import fnmatch
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path


def _git(root: Path, *words: str) -> bytes | None:
    """Output of git for this tree; ``None`` without git, or when the tree is a folder of another repository."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        asked = [["git", "-C", str(root), *part] for part in (("rev-parse", "--show-toplevel"), words)]
        top, answer = (subprocess.run(one, env=clean, capture_output=True, check=True).stdout for one in asked)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer if Path(os.fsdecode(top.rstrip(b"\n"))) == root.resolve() else None


def head(root: Path) -> str:
    """The commit that is checked out; empty without git."""
    return (_git(root, "rev-parse", "HEAD") or b"").decode().strip()


def tracked(root: Path) -> list[Path] | None:
    """Every tracked file that exists; ``None`` without git."""
    answer = _git(root, "ls-files", "-z")
    if answer is None:
        return None
    paths = (root / os.fsdecode(name) for name in answer.split(b"\0") if name)
    return sorted(path for path in paths if path.is_file())


def ignored(root: Path) -> tuple[str, ...]:
    """Patterns of ignored files and folders."""
    lines = (root / ".gitignore").read_text(encoding="utf-8").splitlines()
    return (".git", *(line.rstrip("/") for line in lines if line))


def there(root: Path, path: Path) -> bool:
    """True for a file and for a folder with one. (A folder that a pull removed may still have caches.)"""
    return path.is_file() or (path.is_dir() and bool(walked([path], ignored(root))))


def walked(tops: Sequence[Path], ignored: Sequence[str]) -> list[Path]:
    """Every file below the folders; files and folders that match a pattern are left out."""
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
