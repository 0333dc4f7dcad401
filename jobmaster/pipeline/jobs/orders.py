"""What a handler orders from ``driver_program``, and what comes back."""

from __future__ import annotations

from typing import Any

import msgspec

from jobmaster.pipeline.jobs.driver_errors import DriverError
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


class MapOrder(msgspec.Struct, frozen=True, tag="map"):
    """Answer chunks of rows that come through a socket, until it is closed."""

    module: str
    qualname: str
    master: str
    conf: dict[str, str]
    name: str
    """Of the application."""
    sys_path: tuple[str, ...]
    settings: ClusterSettings | None
    """Of the agent."""
    socket: str = ""
    """Path of the agent's socket."""


class MapRow(msgspec.Struct, frozen=True, array_like=True):
    """A job whose function is to be called."""

    job: str
    """Its id as text."""
    arguments: dict[str, Any]


class MapAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What the function has answered for one job: an error, or JSON of its result."""

    job: str
    error: DriverError | None
    result: msgspec.Raw


Order = FunctionOrder | MapOrder | StepOrder


class DriverResult(msgspec.Struct, frozen=True):
    """The file of ``RESULT_VARIABLE``."""

    value: Any = None
    error: DriverError | None = None
