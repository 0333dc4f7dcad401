"""The handlers of the measurements, in an agent whose way from claim to outcome is stamped (``leg_stamps``)."""

from __future__ import annotations

from benchmarks.support.handlers import handlers
from benchmarks.support.leg_stamps import wrap_agent

__all__ = ["handlers"]

wrap_agent()
