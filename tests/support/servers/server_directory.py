"""Where the servers of a run keep their data: in memory, where this machine has enough of it.

A test makes and removes hundreds of files, one for each table and index. On a disk that is a quarter of its processor time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tests.support.processes import alive

_MEMORY = Path("/dev/shm")
_FREE_BYTES = 6 << 30
_PREFIX = "jobmaster-test-"


def make_server_directory() -> Path:
    """A new directory with a short path, in memory or in the directory for temporary files."""
    parent = _MEMORY if _has_room(_MEMORY) else Path(tempfile.gettempdir())
    for left in parent.glob(f"{_PREFIX}*"):
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdecimal() and not alive(int(pid)):
            shutil.rmtree(left, ignore_errors=True)  # its run was killed
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))


def _has_room(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _FREE_BYTES
