"""What a handler orders from ``driver_program``, and what comes back."""

from __future__ import annotations

from typing import Any

import msgspec

from jobmaster.settings.model import ClusterSettings


class FunctionOrder(msgspec.Struct, frozen=True, tag="function"):
    """Call a function with a Spark session."""

    module: str
    qualname: str
    arguments: dict[str, Any]
    master: str
    conf: dict[str, str]
    name: str
    """Of the application."""
    sys_path: tuple[str, ...]
    settings: ClusterSettings | None
    """Of the agent."""


class StepOrder(msgspec.Struct, frozen=True, tag="step"):
    """Run a step of the pipeline."""

    step: str
    arguments: dict[str, Any]
    master: str
    conf: dict[str, str]
    name: str
    lake: str | None
    settings: ClusterSettings


Order = FunctionOrder | StepOrder


class DriverError(msgspec.Struct, frozen=True):
    """An error in the driver."""

    kind: str
    """Name of the class."""
    message: str
    hint: str | None = None
    after: float | None = None
    """Of a ``Retry`` or ``Snooze``: seconds."""


class DriverResult(msgspec.Struct, frozen=True):
    """The file of ``RESULT_VARIABLE``."""

    value: Any = None
    error: DriverError | None = None
