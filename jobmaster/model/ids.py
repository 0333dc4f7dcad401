"""Ids as distinct types. A job id is the 16 bytes of a UUIDv7: its first 48 bits are milliseconds since 1970.

Agents and buckets have UUIDv7 ids too. The process that creates them makes the id, so that no failover of the master can
assign the same number twice.
"""

from __future__ import annotations

from typing import NamedTuple, NewType
from uuid import UUID

ID_BYTES = 16
JobId = NewType("JobId", bytes)
"""16 bytes, UUIDv7."""
BucketId = NewType("BucketId", bytes)
"""16 bytes, UUIDv7."""
AgentId = NewType("AgentId", bytes)
"""16 bytes, UUIDv7; new at every start of a process."""


class Identity(NamedTuple):
    """The assignment of a job that a write belongs to; every write about the job compares all three values."""

    token: int
    bucket_id: bytes
    bucket_epoch: int


class Fence(NamedTuple):
    """The right to change a bucket in the store: every call of an owner is compared with it."""

    bucket_id: BucketId
    epoch: int
    owner: AgentId


def created_ms(job_id: bytes) -> int:
    """Milliseconds since 1970 from the time part of a UUIDv7."""
    return int.from_bytes(job_id[:6], "big")


def text(id_: bytes) -> str:
    """Canonical text of a 16-byte id, for people and logs."""
    return str(UUID(bytes=id_))


def parse(value: str | bytes | UUID) -> bytes:
    """16 bytes from canonical text, hex, UUID or bytes; ``ValueError`` when it is none of these."""
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, bytes):
        if len(value) != 16:
            raise ValueError(f"an id has 16 bytes, not {len(value)}")
        return value
    return UUID(value).bytes


def following(id_: bytes) -> bytes:
    """The next higher id; the highest itself has none, and comes back."""
    return min(int.from_bytes(id_, "big") + 1, (1 << 8 * ID_BYTES) - 1).to_bytes(ID_BYTES, "big")
