"""An outcome kept in the agent store while the master is down: what it is, whose it is, and the row to send.

Whoever applies it later, the owner or a rescuer, does so under the identity written in it (rule H), never under their own.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from jobmaster.model.errors import CodeError
from jobmaster.model.ids import ID_BYTES, AgentId, BucketId, Fence
from jobmaster.model.job import FinalRow, HoldRow

ID_AT = slice(3, 3 + ID_BYTES)
"""Where the id of the job stands in what is kept, readable or not."""


class KeptKind(StrEnum):
    """Which statement applies it."""

    FINAL = "final"
    HOLD = "hold"


class KeptOutcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """MessagePack array. ``id`` stands first, at the same bytes as in an entry, so that the store's functions find it."""

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
    """A concluded job, under the identity that its row bears: its epoch is older than the bucket's when that was unfrozen
    while the outcome was on its way.

    Raises:
        CodeError: the row is of another bucket.
    """
    if row.bucket_id != fence.bucket_id:
        raise CodeError(f"an outcome of another bucket was spilled under {fence}")
    own = fence._replace(epoch=row.bucket_epoch)
    return _PACK.encode(KeptOutcome(row.id, KeptKind.FINAL, *own, final=row))


def keep_hold(fence: Fence, row: HoldRow) -> bytes:
    """A job given back, or to be tried again."""
    return _PACK.encode(KeptOutcome(row.id, KeptKind.HOLD, *fence, hold=row))


def decode_kept(data: bytes) -> KeptOutcome:
    """One spilled outcome; ``msgspec.DecodeError`` when the bytes are none."""
    try:
        outcome = _UNPACK.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error
    if (outcome.final is None) == (outcome.hold is None):
        raise msgspec.DecodeError("a spilled outcome holds exactly one row")
    ids = [outcome.id, outcome.bucket_id]
    ids += [outcome.final.id, outcome.final.bucket_id] if outcome.final is not None else []
    ids += [outcome.hold.id] if outcome.hold is not None else []
    if any(len(each) != ID_BYTES for each in ids):
        raise msgspec.DecodeError("a spilled outcome has an id that is not 16 bytes long")
    return outcome
