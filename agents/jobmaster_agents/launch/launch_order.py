"""The launch order of a child process, and the messages that follow it.

The order is sent through the control pipe, not in arguments or environment: it holds passwords, and other users can read
both. The pipe stays open afterwards: the supervisor sends one message a line, and the end of the pipe means that it died.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from jobmaster.model.errors import CodeError
from jobmaster.settings.model import ClusterSettings
from jobmaster_agents.launch.shared_deadline import Deadline

if TYPE_CHECKING:
    from jobmaster_agents.launch.control_pipe import ControlPipe

_ORDER_BYTES_MAX = 16 * 1024 * 1024


class ControlMessage(StrEnum):
    """Messages of the supervisor after the order."""

    RESCUE = "rescue"
    """A sibling was certified dead: look for lost buckets now."""
    SETTINGS = "settings"
    """The configuration was read again; the settings follow on the same line, as JSON."""


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Order to start one agent."""

    settings: ClusterSettings
    agent: str
    """Key under ``settings.agents``."""
    name: str
    """Label of the agent; its identity is ``agent_id``."""
    agent_id: bytes
    index: int
    """Number among the supervisor's children, from 0."""
    sys_path: tuple[str, ...] = ()
    """Put before the child's import path, so that it finds handler modules where the parent found them."""


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """Input of ``run_agent``. ``deadline`` and ``control`` are None without a supervisor (tests, embedded in a program)."""

    settings: ClusterSettings
    agent: str
    name: str
    agent_id: bytes
    index: int = 0
    deadline: Deadline | None = None
    control: ControlPipe | None = None


class CertificateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to write one death certificate."""

    settings: ClusterSettings
    agent_id: bytes
    reason: str


def write_order(fd: int, order: LaunchOrder) -> None:
    """Send an order over a blocking descriptor: its length as eight digits, then JSON."""
    data = msgspec.json.encode(order)
    view = memoryview(b"%08d" % len(data) + data)
    while view:
        view = view[os.write(fd, view) :]


def read_order(fd: int) -> LaunchOrder:
    """Receive an order; ``CodeError`` when the pipe ends before it is whole."""
    length = int(_read_exactly(fd, 8))
    if length > _ORDER_BYTES_MAX:
        raise CodeError(f"the supervisor announced an order of {length} bytes")
    return msgspec.json.decode(_read_exactly(fd, length), type=LaunchOrder)


def _read_exactly(fd: int, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(fd, count - len(parts))
        if not part:
            raise CodeError("the supervisor's pipe ended before the order was whole")
        parts += part
    return bytes(parts)
