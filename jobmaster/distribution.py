"""The name under which users install this library, and the commands that install a part of it.

The package is ``jobmaster``. On the package index that name belongs to another job queue for Python, so the distribution has
a name of its own. All install hints are made here; a test finds texts with the other name.
"""

from __future__ import annotations

DISTRIBUTION = "jobmaster-cluster"
"""Name on the package index and in ``importlib.metadata``."""


def install_command(*extras: str) -> str:
    """The shell command that installs the library with ``extras``, such as ``pip install "jobmaster-cluster[embedded]"``."""
    listed = f"[{','.join(extras)}]" if extras else ""
    return f'pip install "{DISTRIBUTION}{listed}"'
