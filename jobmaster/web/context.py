"""What the routes of one application share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from jobmaster.client.cluster import Cluster
from jobmaster.clock import Clock, SystemClock


@dataclass(frozen=True, slots=True)
class WebContext:
    """What routes need beside their request."""

    cluster: Cluster
    read_only: bool
    """Nothing can be changed here, so pages show no forms."""
    clock: Clock = field(default_factory=SystemClock)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops: streams end then."""
    streams: set[object] = field(default_factory=set)
    """Streams of events that are open."""


def context_of(connection: HTTPConnection) -> WebContext:
    """The context of the application that a request has reached."""
    context: WebContext = connection.app.state.web
    return context
