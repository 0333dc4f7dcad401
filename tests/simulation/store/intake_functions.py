"""The data of a simulated store, and the twins of the functions that producers may call."""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from jobmaster.agentstore.errors import OutOfMemory
from jobmaster.agentstore.library import sources
from jobmaster.codec import ID_AT

Answer = list[Any]
_FLAGS = re.compile(r"^  flags = \{(.*)\},$", re.MULTILINE)
_ALLOWED = {"allow-oom", "no-writes"}
WORKING = (b"ACTIVE", b"COMPLETING")
INTAKE = (b"ACTIVE",)
EMPTYING = (b"COMPLETING", b"DRAINING")
OWNED = (b"ACTIVE", b"COMPLETING", b"FROZEN", b"DRAINING")
CLOSABLE = (b"COMPLETING", b"DRAINING", b"READY_TO_DELETE")


class SimBucket:
    """The keys of one bucket."""

    __slots__ = (
        "assigned",
        "bytes",
        "cancelled",
        "claimed",
        "epoch",
        "gen",
        "hint",
        "kept",
        "lease_until",
        "listed",
        "lists",
        "owner",
        "pending",
        "recalled",
        "seq",
        "state",
        "taken",
        "ver",
        "wake",
    )  # fmt: skip

    def __init__(self) -> None:
        self.gen = b""
        self.epoch = 0
        self.owner = b""
        self.state: bytes | None = None
        """``None``: there is no meta."""
        self.ver = self.seq = self.bytes = 0
        self.listed = 0
        """Highest number of a claimed list's name."""
        self.taken = 0
        self.hint = False
        self.recalled = b""
        """The copies that clients have recalled last: their identities, one after the other."""
        self.pending: list[bytes] = []
        self.assigned: list[tuple[int, bytes]] = []
        """By due time, then by bytes, as a sorted set."""
        self.claimed: dict[bytes, list[bytes]] = {}
        self.lists: set[bytes] = set()
        self.kept: list[bytes] = []
        self.cancelled: set[bytes] = set()
        self.wake = False
        self.lease_until = (0, 0)
        """Until when (microseconds), and for how long that was said."""

    def copied(self) -> SimBucket:
        twin = SimBucket()
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(twin, name, value.copy() if isinstance(value, list | set | dict) else value)
        twin.claimed = {name: items.copy() for name, items in self.claimed.items()}
        return twin

    def items(self) -> list[bytes]:
        """Every job that lies in it (outcomes apart)."""
        return [
            *self.pending,
            *(item for _, item in self.assigned),
            *(i for items in self.claimed.values() for i in items),
        ]

    @property
    def filled(self) -> bool:
        return bool(self.pending or self.assigned or self.lists or self.kept)


def id_of(item: bytes) -> bytes:
    """Where every entry and outcome has its id."""
    return item[ID_AT]


def identity_of(item: bytes) -> bytes:
    """Id and token, as they stand in an entry."""
    return item[1 : 19 + {0xCC: 2, 0xCD: 3, 0xCE: 5}.get(item[19], 1)]


def made_us(item: bytes) -> int:
    """Microseconds since 1970 in the id."""
    return int.from_bytes(item[3:9], "big") * 1000


@cache
def allowed_at_maxmemory() -> frozenset[str]:
    """As the sources flag them."""
    flags = {name: _FLAGS.search(source) for name, source in sources().items()}
    return frozenset(name for name, found in flags.items() if found and _ALLOWED & set(found[1].split("'")))


class IntakeFunctions:
    """The data of one store, and what producers and operators may do with them.

    Args:
        clock_us: the server's clock.
        on_wake: called with the meta key of a bucket that has got a token.
        on_finished: called with the ids that a settle publishes, concatenated.
        on_emptying: called with the meta key of a bucket of which a rescuer reads a page.
    """

    def __init__(
        self,
        clock_us: Callable[[], int],
        on_wake: Callable[[bytes], None],
        on_finished: Callable[[bytes], None],
        on_emptying: Callable[[bytes], None],
    ) -> None:
        self.now_us = clock_us
        self.on_emptying = on_emptying
        self._on_wake = on_wake
        self._on_finished = on_finished
        self.buckets: dict[bytes, SimBucket] = {}
        """By the key of ``meta``."""
        self.full = False
        """At its ``maxmemory``."""
        self.at_maxmemory = allowed_at_maxmemory()
        """Functions that it executes then."""
        self.owner: tuple[bytes, bytes] | None = None
        """Cluster and generation."""

    def call(self, verb: str, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        """FCALL ``jm2_<verb>``."""
        if self.full and verb not in self.at_maxmemory:
            raise OutOfMemory(f"{verb}: out of memory")
        answer: Answer = getattr(self, verb)(keys, args)
        return answer

    def _wake(self, meta: bytes, bucket: SimBucket) -> None:
        if not bucket.wake:
            bucket.wake = True
            self._on_wake(meta)

    # ------------------------------------------------------------ producers

    def submit(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        jobs_max, bytes_max, skew_max, *items = args
        bucket = self.buckets.get(keys[0])
        if bucket is None or bucket.state is None:
            return [b"NOBUCKET"]
        if bucket.state not in INTAKE:
            return [b"CLOSED"]
        depth, waiting_bytes = self._backlog(bucket)
        if not items:
            return [b"OK", depth]
        size = sum(map(len, items))
        if depth + len(items) > jobs_max or waiting_bytes + size > bytes_max:
            return [b"FULL", depth]
        now = self.now_us() // 1000
        times = [int.from_bytes(item[3:9], "big") for item in items]
        if max(times) - now > skew_max:
            return [b"SKEW", max(times) - now]
        if now - min(times) > skew_max:
            return [b"SKEW", min(times) - now]
        bucket.pending += items
        bucket.seq += len(items)
        bucket.bytes += size
        self._wake(keys[0], bucket)
        return [b"OK", depth + len(items)]

    def _backlog(self, bucket: SimBucket) -> tuple[int, int]:
        """Jobs that wait to be run, and about their bytes."""
        due = [item for due_us, item in bucket.assigned if due_us <= self.now_us()]
        sample = due[:10]
        due_bytes = sum(map(len, sample)) * len(due) // len(sample) if sample else 0
        return len(bucket.pending) + len(due), bucket.bytes + due_bytes

    def put(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        bucket = self.buckets.get(keys[0])
        if bucket is None or bucket.state is None:
            return [b"NOBUCKET"]
        if bucket.epoch != args[0]:
            return [b"FENCED"]
        if bucket.state not in INTAKE:
            return [b"CLOSED"]
        jobs_max, bytes_max, *pairs = args[1:]
        depth, waiting_bytes = self._backlog(bucket)
        if depth + len(pairs) // 2 > jobs_max or waiting_bytes + sum(map(len, pairs[1::2])) > bytes_max:
            return [b"FULL", depth]
        self._add_assigned(keys[0], bucket, pairs)
        return [b"OK", depth + len(pairs) // 2]

    def _add_assigned(self, meta: bytes, bucket: SimBucket, pairs: Sequence[Any]) -> None:
        if bucket.recalled:
            kept = [
                pair for pair in zip(pairs[::2], pairs[1::2], strict=True) if not self._is_recalled(pair[1], bucket)
            ]
            pairs = [value for pair in kept for value in pair]
        if not pairs:
            return
        before = bucket.assigned[0][0] if bucket.assigned else None
        for due_us, item in zip(pairs[::2], pairs[1::2], strict=True):
            bucket.assigned = [pair for pair in bucket.assigned if pair[1] != item]
            insort(bucket.assigned, (due_us, item))
        if before is None or min(pairs[::2]) < before:
            self._wake(meta, bucket)

    def _is_recalled(self, item: bytes, bucket: SimBucket) -> bool:
        """True for a copy that a client has recalled."""
        return identity_of(item) in bucket.recalled

    def hint(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        bucket = self.buckets.get(keys[0])
        if bucket is None or bucket.state is None:
            return [b"NOBUCKET"]
        if bucket.state not in INTAKE:
            return [b"CLOSED"]
        bucket.hint = True
        self._wake(keys[0], bucket)
        return [b"OK"]

    def freeze(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        bucket = self.buckets.get(keys[0])
        if bucket is None or bucket.state is None:
            return [b"NOBUCKET"]
        if (bucket.epoch, bucket.owner) != (args[0], args[1]):
            return [b"FENCED", bucket.epoch]
        if bucket.state == b"ACTIVE":
            bucket.state = b"FROZEN"
        return [b"OK"] if bucket.state == b"FROZEN" else [b"CLOSED", bucket.state]

    def request_cancel(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        bucket = self.buckets.get(keys[0])
        if bucket is None or bucket.state is None:
            return [b"NOBUCKET"]
        if bucket.state not in OWNED:
            return [b"CLOSED"]
        bucket.cancelled.add(args[0])
        self._wake(keys[0], bucket)
        return [b"OK"]

    def find(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        bucket = self.buckets.get(keys[0])
        if bucket is None or bucket.state is None:
            return [b"NOBUCKET"]
        wanted = {args[0][at : at + 16] for at in range(0, len(args[0]), 16)}
        found: dict[bytes, tuple[int, bytes]] = {}
        claimed = [item for items in bucket.claimed.values() for item in items]
        places = [[item for _, item in bucket.assigned], claimed, bucket.pending]
        lying = [(place, item) for place, items in enumerate(places) for item in items]
        for place, item in lying[: args[1]]:
            if id_of(item) in wanted:
                found.setdefault(id_of(item), (place, item))
        entries = [item for _, item in found.values()]
        if len(args) > 3:
            return [b"OK", *(sum(place == wanted_ for place, _ in found.values()) for wanted_ in (0, 1)), *entries]
        return [b"OK", *entries]

    def recall(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        epoch, identity, due_us, most = args[:4]
        bucket = self.buckets.get(keys[0])
        if bucket is None or bucket.state is None:
            return [b"NOBUCKET"]
        if bucket.epoch != epoch:
            return [b"FENCED"]
        if bucket.state not in (b"ACTIVE", b"COMPLETING", b"FROZEN"):
            return [b"CLOSED"]

        def among(items: Iterable[bytes]) -> bytes | None:
            return next((item for item in items if item[1:].startswith(identity)), None)

        if any(among(bucket.claimed.get(name, [])[:most]) for name in bucket.lists):
            return [b"OK", b"claimed"]
        if (item := among(item for due, item in bucket.assigned if due == due_us)) is not None:
            bucket.assigned.remove((due_us, item))
        elif bucket.state in INTAKE and (item := among(bucket.pending[:most])) is not None:
            bucket.bytes = max(0, bucket.bytes - bucket.pending.count(item) * len(item))
            bucket.pending = [each for each in bucket.pending if each != item]
        if item is not None:
            bucket.recalled = (bucket.recalled + identity)[-1500:]
        return [b"OK", b"recalled" if identity in bucket.recalled else b"absent"]

    def backlog(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        bucket = self.buckets.get(keys[0])
        if bucket is None or bucket.state is None:
            return [b"NOBUCKET"]
        now = self.now_us()
        due = [(due_us, item) for due_us, item in bucket.assigned if due_us <= now]
        since = [made_us(bucket.pending[0])] if bucket.pending else []
        since += [due[0][0] if due[0][0] > 0 else made_us(due[0][1])] if due else []
        oldest_us = max(now - min(since), 0) if since else 0
        return [b"OK", len(bucket.pending), len(due), oldest_us, bucket.taken]

    def depth(self, keys: Sequence[bytes], args: Sequence[Any]) -> Answer:
        bucket = self.buckets.get(keys[0])
        if bucket is None or bucket.state is None:
            return [b"NOBUCKET"]
        claimed, kept = len(bucket.lists), len(bucket.kept)
        return [b"OK", len(bucket.pending), len(bucket.assigned), claimed, kept, bucket.bytes]
