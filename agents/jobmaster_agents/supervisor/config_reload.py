"""Configuration reload: which changes take effect now, and which need a restart.

The supervisor keeps the old value of every setting that cannot change under a running agent. So a child that it starts later
has the settings of its siblings. The log names these keys once per reload.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from jobmaster.settings.model import ClusterSettings
from jobmaster_agents.supervisor.child_process import kill_unreaped

REREAD_SECONDS = 30.0
"""Time limit for reading the configuration."""
_LIVE_AGENT = ("buckets", "lanes", "slots", "priority_slots", "lane_slots", "bucket_buffer", "max_running")
_LIVE = (
    ("leases", "grace_seconds"),
    ("jobs", "timeout_seconds"),
    ("jobs", "max_attempts"),
    ("jobs", "backoff_seconds"),
    ("jobs", "backoff_factor"),
    ("jobs", "backoff_max_seconds"),
    ("jobs", "backoff_jitter"),
    ("observability", "log_level"),
    ("tenants", "weights"),
    ("tenants", "spare"),
)
_UNITS = ("_seconds", "_bytes")

Path = tuple[str, ...]


class ReloadResult(NamedTuple):
    """Result of a reload."""

    settings: ClusterSettings
    """Settings in force from now on."""
    changed: list[str]
    """Keys that changed and took effect."""
    waiting: list[str]
    """Keys that changed and need a restart."""


def apply_reload(old: ClusterSettings, new: ClusterSettings, agent: str) -> ReloadResult:
    """Apply the changes of ``new`` that a running agent under ``old`` can take. Blocks of other agents are ignored."""
    live = {*_LIVE, *(("agents", agent, name) for name in _LIVE_AGENT)}
    before: dict[str, Any] = msgspec.to_builtins(old)
    after: dict[str, Any] = msgspec.to_builtins(new)
    changed: list[str] = []
    waiting: list[str] = []
    for path in sorted({*_leaves(before, live), *_leaves(after, live)}):
        if (path[0] == "agents" and path[1:2] != (agent,)) or _at(before, path) == _at(after, path):
            continue
        if path not in live:
            waiting.append(key_of(path))
            continue
        changed.append(key_of(path))
        place = before
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = _at(after, path)
    return ReloadResult(msgspec.convert(before, ClusterSettings), changed, waiting)


def key_of(path: Path) -> str:
    """Key of a setting as the configuration file writes it."""
    last = next((path[-1].removesuffix(unit) for unit in _UNITS if path[-1].endswith(unit)), path[-1])
    return ".".join((*path[:-1], last))


def _leaves(tree: dict[str, Any], whole: set[Path], above: Path = ()) -> Iterator[Path]:
    for name, value in tree.items():
        path = (*above, name)
        if isinstance(value, dict) and value and path not in whole:
            yield from _leaves(value, whole, path)
        else:
            yield path


def _at(tree: Any, path: Path) -> Any:
    for name in path:
        if not isinstance(tree, dict) or name not in tree:
            return None
        tree = tree[name]
    return tree


class ConfigReload:
    """Reads the configuration in a process of its own, so that the supervisor neither loads a YAML parser nor waits.

    Args:
        command: prints the settings as JSON, or the errors on standard error.
        on_read: called with its exit code, standard output and standard error.
    """

    def __init__(self, command: Sequence[str], on_read: Callable[[int, bytes, str], None]) -> None:
        self._command = command
        self._on_read = on_read
        self._process: subprocess.Popen[bytes] | None = None
        self._out = self._err = -1
        self._until = 0.0
        self._again = False

    def start(self, now: float) -> None:
        """Start to read; while a read is running, another one follows it."""
        if self._process is not None:
            self._again = True
            return
        self._out, self._err = _scratch(), _scratch()
        self._until = now + REREAD_SECONDS
        try:
            self._process = subprocess.Popen(
                list(self._command),
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                start_new_session=True,
            )
        except OSError as error:
            self._close()
            self._on_read(1, b"", f"the configuration could not be read: {error}")

    def turn(self, now: float) -> None:
        """Kill a read that takes too long."""
        if self._process is not None and now >= self._until:
            kill_unreaped(self._process)

    def reaped(self, pid: int, code: int, now: float) -> bool:
        """Note that a process ended; True when it was this one."""
        if self._process is None or self._process.pid != pid:
            return False
        self._process.returncode = code
        self._process = None
        out, err = _read(self._out), _read(self._err).decode(errors="replace")
        self._close()
        self._on_read(code, out, err)
        if self._again:
            self._again = False
            self.start(now)
        return True

    def abandon(self) -> None:
        """End the read, because the supervisor exits."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _close(self) -> None:
        os.close(self._out)
        os.close(self._err)


def _scratch() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("jobmaster-settings")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _read(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)
