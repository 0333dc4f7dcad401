"""The identity of a cluster."""

from __future__ import annotations

from typing import NamedTuple


class ClusterRow(NamedTuple):
    """The cluster to which a schema belongs."""

    name: str
    uid: bytes
    """Random per creation; agent stores record it."""
