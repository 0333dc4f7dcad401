"""Ids of jobs that come from data: the moment of the batch, and a hash of the handler and the row's key.

The same row of the same batch has the same id, whoever computes it and however often, and the primary key of ``job`` lets it
in once. 74 bits come from the hash: among a billion keys of one batch, two meet with a chance of about 1 in 40,000.
"""

from __future__ import annotations

from hashlib import blake2b

_VERSION_7 = 0x7 << 76
_VARIANT = 0b10 << 62
_RAND_A, _RAND_B = 0xFFF, (1 << 62) - 1


def batch_id(as_of_ms: int, handler: str, key: str) -> bytes:
    """16 bytes of a UUIDv7.

    Args:
        as_of_ms: the batch's moment, milliseconds since 1970.
        key: what makes the row unique among those of its handler.
    """
    digest = blake2b(f"{handler}\0{key}".encode(), digest_size=10).digest()
    bits = int.from_bytes(digest, "big")
    rest = ((bits >> 62) & _RAND_A) << 64 | (bits & _RAND_B)
    return (as_of_ms << 80 | _VERSION_7 | _VARIANT | rest).to_bytes(16, "big")


def moment_bounds(as_of_ms: int) -> tuple[bytes, bytes]:
    """The lowest id of a moment, and the lowest one after it."""
    return (as_of_ms << 80).to_bytes(16, "big"), (as_of_ms + 1 << 80).to_bytes(16, "big")
