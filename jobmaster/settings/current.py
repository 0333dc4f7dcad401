"""The settings of the agent that runs the present job, for handlers that start programs of the same cluster."""

from __future__ import annotations

from contextvars import ContextVar

from jobmaster.settings.model import ClusterSettings

_settings: ContextVar[ClusterSettings | None] = ContextVar("jobmaster_settings", default=None)


def current_settings() -> ClusterSettings | None:
    """The settings of the agent; ``None`` outside of handlers of mode ``async`` and ``thread``."""
    return _settings.get()


def set_current_settings(settings: ClusterSettings) -> None:
    """Have ``current_settings`` return these in the present context and in copies of it that are made later."""
    _settings.set(settings)
