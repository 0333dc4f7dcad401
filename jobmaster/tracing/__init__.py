"""Traces by OpenTelemetry (extra ``otel``). The library is imported only where ``observability.traces.exporter`` is set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobmaster.distribution import install_command
from jobmaster.model.errors import ConfigError
from jobmaster.settings.model import Traces

if TYPE_CHECKING:
    from jobmaster.tracing.tracing import Tracing


def open_tracing(settings: Traces, *, service: str, instance: str) -> Tracing | None:
    """The traces of one program; ``None``: they are off.

    Args:
        service: ``service.name`` of its spans, unless the environment (``OTEL_SERVICE_NAME``) has one.
        instance: ``service.instance.id``.

    Raises:
        ConfigError: the extra ``otel`` is not installed.
    """
    if settings.exporter is None:
        return None
    try:
        from jobmaster.tracing.tracing import Tracing
    except ImportError as error:
        raise ConfigError(
            f"observability.traces.exporter is set, and the module {error.name!r} is not installed",
            hint=install_command("otel"),
        ) from None
    return Tracing(settings, service=service, instance=instance)
