"""Twins of ``agentstore/lua``: one method per function, with the same keys, arguments and answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from jobmaster.rules.batching import fitting_count
from tests.simulation.store.intake_functions import (
    CLOSABLE,
    EMPTYING,
    INTAKE,
    OWNED,
    WORKING,
    Answer,
    IntakeFunctions,
    SimBucket,
    id_of,
    made_us,
)

__all__ = ["SimBucket", "StoreFunctions", "id_of"]


def number_of(name: bytes) -> int:
    """What the name of a claimed list ends in; 0: no number."""
    tail = name.rpartition(b"-")[2] if b"-" in name else b""
    return int(tail) if tail.isdigit() else 0


NO_BOUND = 2**53


def first_items(items: list[bytes], limit: int, bytes_max: int = NO_BOUND) -> list[bytes]:
    """So many of the first, of so many bytes or one."""
    first = items[:limit]
    return first[: fitting_count([len(item) for item in first], bytes_max)]


class StoreFunctions(IntakeFunctions):
    """All functions of one store."""

    # ------------------------------------------------------------ the fence

    def _refusal(
        self, meta: bytes, args: Sequence[Any], states: Sequence[bytes] | None
    ) -> tuple[Answer | None, SimBucket]:
        generation, epoch, owner, floor = args[:4]
        bucket = self.buckets.get(meta)
        if bucket is None or bucket.state is None or bucket.gen != generation:
            return [b"GEN"], bucket or SimBucket()
        if bucket.ver < floor:
            return [b"ROLLBACK", bucket.ver], bucket
        if (bucket.epoch, bucket.owner) != (epoch, owner):
            return [b"FENCED", bucket.ver, bucket.epoch], bucket
        if states is not None and bucket.state not in states:
            return [b"CLOSED", bucket.ver, bucket.state], bucket
        return None, bucket

    # ------------------------------------------------------------ the store

    def adopt_store(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        if self.owner is None:
            self.owner = (args[0], args[1])
        return [b"OK", self.owner[1]] if self.owner[0] == args[0] else [b"OTHER", self.owner[0]]

    def beat(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        return [b"OK"]

    def open_bucket(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        meta = keys[0]
        if args[3] == 0 and (meta not in self.buckets or self.buckets[meta].state is None):
            bucket = self.buckets.setdefault(meta, SimBucket())
            bucket.gen, bucket.epoch, bucket.owner, bucket.state = args[0], args[1], args[2], b"ACTIVE"
            bucket.ver, bucket.seq, bucket.bytes, bucket.listed, bucket.hint = 1, 0, 0, 0, False
            bucket.taken = 0
            return [b"OK", 1]
        no, bucket = self._refusal(meta, args, INTAKE)
        return no or [b"OK", bucket.ver]

    # ------------------------------------------------------------ the owner

    def assign(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        no, bucket = self._refusal(keys[0], args, INTAKE)
        if no:
            return no
        if len(args) > 4:
            self._add_assigned(keys[0], bucket, args[4:])
            bucket.ver += 1
        return [b"OK", bucket.ver]

    def claim(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        no, bucket = self._refusal(keys[0], args, WORKING)
        if no:
            return no
        limit, name, bytes_max = args[4], args[5], args[6] if len(args) > 6 else NO_BOUND
        now = self.now_us()
        taken: list[bytes] = []
        hinted = 0
        if name in bucket.claimed:
            taken = bucket.claimed[name]
        else:
            number = number_of(name)
            if limit > 0 and not 0 < number <= bucket.listed:
                taken = self._take(bucket, now, limit, bytes_max)
                if taken:
                    bucket.claimed[name] = taken
                    bucket.lists.add(name)
                    bucket.listed = number or bucket.listed
                    bucket.taken += len(taken)
                    bucket.ver += 1
            if bucket.hint:
                bucket.hint, hinted = False, 1
        cancelled = sorted(bucket.cancelled)[:1000]
        next_due = max(bucket.assigned[0][0], 1) if bucket.assigned else 0
        answer = [b"OK", bucket.ver, now, next_due, hinted, len(bucket.pending), cancelled, list(taken)]
        if len(args) > 7:
            answer.append(made_us(bucket.pending[0]) if bucket.pending else 0)
        return answer

    def withdraw(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        no, bucket = self._refusal(keys[0], args, OWNED)
        if no:
            return no
        noted, wanted = args[4], list(dict.fromkeys(zip(args[5::2], args[6::2], strict=True)))
        bucket.cancelled -= {noted[at : at + 16] for at in range(0, len(noted), 16)}
        removed = []
        for due_us, job_id in wanted:
            for pair in bucket.assigned:
                if pair[0] == due_us and id_of(pair[1]) == job_id:
                    bucket.assigned.remove(pair)
                    removed.append(job_id)
                    break
        bucket.ver += bool(removed)
        return [b"OK", bucket.ver, removed]

    @staticmethod
    def _take(bucket: SimBucket, now: int, limit: int, bytes_max: int) -> list[bytes]:
        """The oldest of both, by when they fell due or were made; while the pending alone fit, by their number only."""
        due = [pair for pair in bucket.assigned if pair[0] <= now]
        timed = [(due_us, item) for due_us, item in due if due_us]
        untimed = [(made_us(item), item) for due_us, item in due if not due_us]
        waiting = [(made_us(item), item) for item in bucket.pending]
        taken: list[bytes] = []
        size = 0
        if not due and bucket.bytes <= bytes_max:
            bytes_max = NO_BOUND
        while len(taken) < limit and (queues := [queue for queue in (timed, untimed, waiting) if queue]):
            oldest = min(queues, key=lambda queue: queue[0][0])
            item = oldest[0][1]
            if taken and size + len(item) > bytes_max:
                break
            taken.append(item)
            size += len(item)
            del oldest[0]
        left = len(waiting)
        gone, bucket.pending = bucket.pending[: -left or None], [item for _, item in waiting]
        bucket.assigned = [pair for pair in bucket.assigned if pair not in due or pair[1] not in taken]
        bucket.bytes = max(0, bucket.bytes - sum(map(len, gone)))
        return taken

    def settle(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        if args[5]:
            self._on_finished(args[5])
        no, bucket = self._refusal(keys[0], args, OWNED)
        if no:
            return no
        gone = 0
        for name in args[6:]:
            bucket.claimed.pop(name, None)
            gone += name in bucket.lists
            bucket.lists.discard(name)
        bucket.ver += bool(gone)
        return [b"OK", bucket.ver]

    def keep_outcomes(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        no, bucket = self._refusal(keys[0], args, OWNED)
        if no:
            return no
        count = args[4]
        bucket.kept += args[5 : 5 + count]
        for name in args[5 + count :]:
            bucket.claimed.pop(name, None)
            bucket.lists.discard(name)
        bucket.ver += 1
        return [b"OK", bucket.ver]

    def grant_term(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        no, bucket = self._refusal(keys[0], args, WORKING)
        if no:
            return no
        bucket.lease_until = (self.now_us() + args[4], args[4]) if args[4] else (0, 0)
        return [b"OK", bucket.ver]

    def read_kept(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        no, bucket = self._refusal(keys[0], args, OWNED)
        return no or [b"OK", bucket.ver, len(bucket.kept), first_items(bucket.kept, *args[4:])]

    def remove_kept(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        no, bucket = self._refusal(keys[0], args, OWNED)
        if no:
            return no
        count, digest, *back = args[4:]
        removed = self._cut(bucket, b"kept", b"", count, digest)
        if removed:
            bucket.kept += back
        bucket.ver += 1
        return [b"OK", bucket.ver, removed - len(back) if removed else 0]

    def claimed_lists(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        no, bucket = self._refusal(keys[0], args, None)
        return no or [b"OK", bucket.ver, sorted(bucket.lists)]

    def read_claimed(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        no, bucket = self._refusal(keys[0], args, None)
        name = keys[1].rsplit(b":claimed:", 1)[1]
        return no or [b"OK", bucket.ver, self.now_us(), list(bucket.claimed.get(name, ()))]

    def close_intake(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        no, bucket = self._refusal(keys[0], args, WORKING)
        if no:
            return no
        if bucket.state == b"ACTIVE":
            bucket.state = b"COMPLETING"
            bucket.ver += 1
        return [b"OK", bucket.ver]

    def close_if_empty(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        no, bucket = self._refusal(keys[0], args, CLOSABLE)
        if no:
            return no
        if bucket.filled:
            return [b"NOTEMPTY", bucket.ver]
        if bucket.state != b"READY_TO_DELETE":
            bucket.state = b"READY_TO_DELETE"
            bucket.ver += 1
        return [b"OK", bucket.ver]

    def unfreeze(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        generation, epoch, owner, floor, name = args
        bucket = self.buckets.get(keys[0])
        if bucket is None or bucket.state is None or bucket.gen != generation:
            return [b"GEN"]
        if bucket.ver < floor:
            return [b"ROLLBACK", bucket.ver]
        if bucket.epoch > epoch or bucket.owner != owner:
            return [b"FENCED", bucket.ver, bucket.epoch]
        if bucket.state not in (b"FROZEN", b"ACTIVE"):
            return [b"CLOSED", bucket.ver, bucket.state]
        if bucket.epoch < epoch or bucket.state == b"FROZEN":
            higher, bucket.epoch, bucket.state = bucket.epoch < epoch, epoch, b"ACTIVE"
            if higher and bucket.assigned:
                bucket.claimed.setdefault(name, []).extend(item for _, item in bucket.assigned)
                bucket.lists.add(name)
                bucket.assigned = []
            bucket.ver += 1
            self._wake(keys[0], bucket)
        return [b"OK", bucket.ver]

    # ------------------------------------------------------------ the rescuer

    def fence(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        generation, epoch, owner = args
        bucket = self.buckets.setdefault(keys[0], SimBucket())
        there = bucket.state is not None
        if there and (bucket.epoch > epoch or (bucket.epoch == epoch and bucket.owner != owner)):
            return [b"FENCED", bucket.ver, bucket.epoch]
        bucket.gen, bucket.epoch, bucket.owner, bucket.state = generation, epoch, owner, b"DRAINING"
        bucket.ver += 1
        until, term = bucket.lease_until
        now = self.now_us()
        if (wait := min(until - now, term)) > 0:
            bucket.lease_until = (now + wait, term)
            return [b"LEASED", bucket.ver, wait]
        bucket.lease_until = (0, 0)
        return [b"OK", bucket.ver, epoch]

    def read_page(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        no, bucket = self._refusal(keys[0], args, EMPTYING)
        if no:
            return no
        bounds = args[4], *args[6:]
        if bucket.state == b"DRAINING":
            self.on_emptying(keys[0])
        if bucket.kept:
            return [b"OK", bucket.ver, b"kept", b"", first_items(bucket.kept, *bounds)]
        if bucket.lists:
            name = min(bucket.lists)
            return [b"OK", bucket.ver, b"claimed", name, first_items(bucket.claimed.get(name, []), *bounds)]
        if bucket.pending:
            return [b"OK", bucket.ver, b"pending", b"", first_items(bucket.pending, *bounds)]
        items = first_items([item for _, item in bucket.assigned], *bounds)
        return [b"OK", bucket.ver, b"assigned" if items else b"", b"", items]

    def remove_page(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        no, bucket = self._refusal(keys[0], args, EMPTYING)
        if no:
            return no
        kind, name, count, digest, *members = args[4:]
        removed = 0
        if kind == b"assigned":
            before = len(bucket.assigned)
            bucket.assigned = [pair for pair in bucket.assigned if pair[1] not in members]
            removed = before - len(bucket.assigned)
        else:
            removed = self._cut(bucket, kind, name, count, digest)
        bucket.ver += 1
        return [b"OK", bucket.ver, removed]

    def _cut(self, bucket: SimBucket, kind: bytes, name: bytes, count: int, digest: bytes) -> int:
        """The first items of a list, if they are the very ones."""
        items = {b"kept": bucket.kept, b"pending": bucket.pending}.get(kind, bucket.claimed.get(name, []))
        first = items[:count]
        body = b"".join(first)
        same = len(first) == count and hashlib.sha1(body, usedforsecurity=False).hexdigest().encode() == digest
        removed = count if same else 0
        del items[:removed]
        if same and kind == b"pending":
            bucket.bytes = max(0, bucket.bytes - len(body))
        if kind == b"claimed" and not bucket.claimed.get(name):
            bucket.claimed.pop(name, None)
            bucket.lists.discard(name)
        return removed

    def delete_bucket(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        bucket = self.buckets.get(keys[0])
        if bucket is not None:
            bucket.lists |= bucket.claimed.keys() & set(args)
            if bucket.state in INTAKE or bucket.filled:
                return [b"NOTEMPTY"]
            del self.buckets[keys[0]]
        return [b"OK"]
