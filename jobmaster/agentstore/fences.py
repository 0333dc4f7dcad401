"""What an owner has seen of its buckets, and sends along with every call: generation and change counter.

A store that was emptied, swapped, or has come back older than it was is noticed by the data itself, at the first call to
a bucket, and not by a server id, which a restored copy shares with its original.
"""

from __future__ import annotations

from jobmaster.agentstore.calls import Answer, Argument, status_of
from jobmaster.model.errors import CodeError
from jobmaster.model.ids import Fence
from jobmaster.ports import ReplyStatus


class Fences:
    """Generation of the store, and (generation, highest counter) of each bucket of this process."""

    def __init__(self) -> None:
        self.generation: bytes | None = None
        self._seen: dict[bytes, tuple[bytes, int]] = {}

    def arguments(self, fence: Fence) -> tuple[Argument, ...]:
        """Generation, epoch, owner, lowest counter: how every owner call begins."""
        generation, counter = self._seen.get(fence.bucket_id) or (self.current(), 0)
        return generation, fence.epoch, fence.owner, counter

    def current(self) -> bytes:
        """The store's generation; ``CodeError`` before ``initialise``."""
        if self.generation is None:
            raise CodeError("initialise the store before touching its buckets: its generation is not known yet")
        return self.generation

    def note(self, bucket_id: bytes, answer: Answer) -> ReplyStatus:
        """Remember the counter of an OK answer; its status."""
        status = status_of(answer)
        if status is ReplyStatus.OK:
            generation, counter = self._seen.get(bucket_id) or (self.current(), 0)
            # Calls overlap, so an answer may be older than one that has been noted.
            self._seen[bucket_id] = (generation, max(counter, answer[1]))
        return status

    def restart(self, bucket_id: bytes, answer: Answer) -> ReplyStatus:
        """As ``note``, for the call that takes a bucket over: what was seen before under another fence is void."""
        status = status_of(answer)
        if status is ReplyStatus.OK:
            self._seen[bucket_id] = (self.current(), answer[1])
        return status

    def forget(self, bucket_id: bytes) -> None:
        """The bucket is gone; its id never comes back."""
        self._seen.pop(bucket_id, None)
