"""The handlers of ``jobs`` in an agent whose program knows no capability, as that of an older version."""

from __future__ import annotations

from jobmaster.rules import capabilities
from tests.system.jobs import handlers

__all__ = ["handlers"]

capabilities.CAPABILITIES = frozenset()
