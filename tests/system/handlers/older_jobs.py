"""Handlers in an agent whose program knows no capability, as that of an older version."""

from __future__ import annotations

from jobmaster.rules import capabilities
from tests.system.handlers.rolling_jobs import declared
from tests.system.jobs import handlers

__all__ = ["handlers", "rolling"]

rolling = declared()
"""Of the program before its deploy: no handler has a limit."""
capabilities.CAPABILITIES = frozenset()
