"""The stored form of an outcome that is kept in the agent store while the master is away.

The owner or a rescuer writes it later, always under the identity that it contains (rule H), never under its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from jobmaster.model.errors import CodeError
from jobmaster.model.ids import ID_BYTES, AgentId, BucketId, Fence
from jobmaster.model.job import FinalRow, HoldRow


class KeptKind(StrEnum):
    """Which statement writes it."""

    FINAL = "final"
    HOLD = "hold"


class KeptOutcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """MessagePack array. ``id`` stands first, at the same bytes as in an entry, where the store's functions look for it."""

    id: bytes
    kind: KeptKind
    bucket_id: bytes
    bucket_epoch: int
    owner: bytes
    final: FinalRow | None = None
    hold: HoldRow | None = None

    @property
    def fence(self) -> Fence:
        """The bucket and epoch under which the job was claimed."""
        return Fence(BucketId(self.bucket_id), self.bucket_epoch, AgentId(self.owner))


_PACK = msgspec.msgpack.Encoder()
_UNPACK = msgspec.msgpack.Decoder(KeptOutcome)


def keep_final(fence: Fence, row: FinalRow) -> bytes:
    """Encode a final row, under the identity of the row: its epoch is older than the bucket's if the bucket was unfrozen
    after the claim.

    Raises:
        CodeError: the row is of another bucket.
    """
    if row.bucket_id != fence.bucket_id:
        raise CodeError(f"an outcome of another bucket was to be kept under {fence}")
    own = fence._replace(epoch=row.bucket_epoch)
    return _PACK.encode(KeptOutcome(row.id, KeptKind.FINAL, *own, final=row))


def keep_hold(fence: Fence, row: HoldRow) -> bytes:
    """Encode a job that is given back or retried."""
    return _PACK.encode(KeptOutcome(row.id, KeptKind.HOLD, *fence, hold=row))


def decode_kept(data: bytes) -> KeptOutcome:
    """Decode one; ``msgspec.DecodeError`` when the bytes are no kept outcome."""
    try:
        outcome = _UNPACK.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error
    if (outcome.final is None) == (outcome.hold is None):
        raise msgspec.DecodeError("a kept outcome holds exactly one row")
    ids = [outcome.id, outcome.bucket_id]
    ids += [outcome.final.id, outcome.final.bucket_id] if outcome.final is not None else []
    ids += [outcome.hold.id] if outcome.hold is not None else []
    if any(len(each) != ID_BYTES for each in ids):
        raise msgspec.DecodeError("a kept outcome has an id that is not 16 bytes long")
    return outcome


class KeptRows(NamedTuple):
    """The rows of some kept outcomes, each with its encoded form."""

    finals: list[tuple[FinalRow, bytes]]
    holds: dict[Fence, list[tuple[HoldRow, bytes]]]
    """By the identity under which they are written."""
    unreadable: list[tuple[bytes, msgspec.DecodeError]]


def decode_rows(raw: Sequence[bytes]) -> KeptRows:
    """Decode kept outcomes and sort them by the statement that writes them."""
    rows = KeptRows([], {}, [])
    for encoded in raw:
        try:
            outcome = decode_kept(encoded)
        except msgspec.DecodeError as error:
            rows.unreadable.append((encoded, error))
            continue
        if outcome.final is not None:
            rows.finals.append((outcome.final, encoded))
        if outcome.hold is not None:
            rows.holds.setdefault(outcome.fence, []).append((outcome.hold, encoded))
    return rows
