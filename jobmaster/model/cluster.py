"""The identity of a cluster."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class ClusterMode(StrEnum):
    """What a cluster does with jobs."""

    ACTIVE = "active"
    """It takes and runs them."""
    MIGRATING = "migrating"
    """It takes them into the master, and runs none: its agents own no buckets. ``jobmaster migrate`` moves them away."""
    ARCHIVED = "archived"
    """It takes none, and all that it has are ended; they can be read."""


class ClusterRow(NamedTuple):
    """The cluster to which a schema belongs."""

    name: str
    uid: bytes
    """Random per creation; agent stores record it."""
