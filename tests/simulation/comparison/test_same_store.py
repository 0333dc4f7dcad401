"""The simulated store answers as the real one, and holds the same data after every call: Hypothesis chooses the calls of two
processes, lawful and unlawful ones, broken connections, stores that come back older, and stores that lose their keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import msgspec
import pytest
import redis.asyncio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobmaster.agentstore.keys import BucketKeys
from jobmaster.agentstore.library import LIBRARY
from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import new_id
from jobmaster.codec import ID_AT, decode_entry
from jobmaster.model.bucket import BucketBacklog
from jobmaster.model.ids import AgentId, BucketId, Fence, Identity
from jobmaster.model.job import Entry
from jobmaster.ports import Claimed, ReplyStatus
from jobmaster.settings.model import StoreSettings
from tests.integration.store.fixture import HOUR_MS, make_items
from tests.simulation.comparison.direct_calls import DirectStore, store_server
from tests.simulation.store.intake_functions import SimBucket, allowed_at_maxmemory
from tests.simulation.store.sim_store import StoreServer

DUE_US = 1000
LATER_US = 9 * 10**15
OWNERS = (b"a" * 16, b"b" * 16)
names = st.sampled_from(["a", "b", "x-1", "x-2", "x-3"])
processes = st.integers(0, 1)
fences = st.one_of(st.none(), st.none(), st.none(), st.tuples(st.integers(1, 3), st.sampled_from(OWNERS)))
"""``None``: the one that stands."""
counts = st.integers(0, 4)
dues = st.sampled_from([0, 0, DUE_US, LATER_US])
sizes = st.sampled_from([1, 100, 250, 2**30])
"""Bounds in bytes; an entry has some 60."""
some_names = st.sets(names, max_size=2).map(sorted)
COUNTERS = ("ver", "seq", "bytes", "lease_us", "listed", "taken")
Chosen = tuple[int, bytes] | None
Call = Callable[[AgentStore], Coroutine[Any, Any, Any]]


async def test_a_full_store_executes_the_same_functions(store_url: str) -> None:
    async with redis.asyncio.Redis.from_url(store_url) as raw:
        store = AgentStore(cluster="flags", name="default", url=store_url, settings=StoreSettings())
        try:
            await store.load_functions()
            (loaded,) = await raw.function_list(LIBRARY)
        finally:
            await store.close()
    fields = dict(zip(loaded[::2], loaded[1::2], strict=True))
    functions = [dict(zip(each[::2], each[1::2], strict=True)) for each in fields[b"functions"]]
    allowed = {f[b"name"].decode()[4:] for f in functions if {b"allow-oom", b"no-writes"} & set(f[b"flags"])}
    assert allowed_at_maxmemory() == allowed
    assert {"beat", "open_bucket", "adopt_store", "claim", "fence"} <= allowed
    assert not {"submit", "put", "assign"} & allowed


class TwoStores(RuleBasedStateMachine):
    """One bucket in both, two processes that each have seen what they have seen of it."""

    runner: ClassVar[asyncio.Runner]
    new_store: ClassVar[list[Callable[[], AgentStore]]]
    raw: ClassVar[redis.asyncio.Redis]
    generation: ClassVar[bytes]

    def __init__(self) -> None:
        super().__init__()
        self.bucket_id = BucketId(new_id())
        self.real = [self.new_store[0](), self.new_store[0]()]
        self.server: StoreServer = store_server(lambda: time.time_ns() // 1000)
        self.simulated = [DirectStore(self.server, self.real[0].cluster, self.generation) for _ in OWNERS]
        for real, simulated in zip(self.real, self.simulated, strict=True):
            real._fences.generation = self.generation
            simulated.keys = real.keys
        self.keys: BucketKeys = self.real[0].keys.bucket(self.bucket_id)
        self.items: list[bytes] = make_items(6)
        self.snapshots: list[tuple[dict[bytes, Any], dict[bytes, SimBucket]]] = []

    def teardown(self) -> None:
        for store in self.real:
            self.runner.run(store.close())

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    def both(self, process: int, call: Call) -> Any:
        """The same call on both sides, with the same answer."""
        mine = self.wait(call(self.real[process]))
        simulated = self.wait(call(self.simulated[process]))
        assert _clockless(mine) == _clockless(simulated)
        return mine

    def fence_of(self, fence: Chosen) -> Fence:
        if fence is None:
            there = self.server.functions.buckets.get(self.keys.meta)
            fence = (1, OWNERS[0]) if there is None or there.state is None else (there.epoch, there.owner)
        return Fence(self.bucket_id, fence[0], AgentId(fence[1]))

    @initialize()
    def begin(self) -> None:
        self.both(0, lambda store: store.open_bucket(self.fence_of(None)))

    def some_items(self, count: int) -> list[bytes]:
        if len(self.items) < 4:
            self.items += make_items(6)
        taken, self.items = self.items[:count], self.items[count:]
        return taken

    # ------------------------------------------------------------ producers and operators

    @rule(process=processes, fence=fences)
    def open_bucket(self, process: int, fence: Chosen) -> None:
        self.both(process, lambda store: store.open_bucket(self.fence_of(fence)))

    @rule(process=processes, count=counts, high=st.integers(2, 9), again=st.booleans())
    def submit(self, process: int, count: int, high: int, again: bool) -> None:
        items = self.some_items(count)
        for _ in range(2 if again else 1):
            self.both(process, lambda store: store.submit(
                self.bucket_id, items, high_water_jobs=high, high_water_bytes=500, skew_ms_max=HOUR_MS))  # fmt: skip

    @rule(process=processes, epoch=st.integers(1, 3), due_us=dues, count=counts, high=st.integers(2, 9))
    def put(self, process: int, epoch: int, due_us: int, count: int, high: int) -> None:
        items = [(due_us, item) for item in self.some_items(count)]
        self.both(
            process,
            lambda store: store.put(self.bucket_id, epoch, items, high_water_jobs=high, high_water_bytes=500),
        )

    @rule(process=processes, known=st.booleans(), scan=st.sampled_from([1000, 1000, 2]))
    def cancel_and_find(self, process: int, known: bool, scan: int) -> None:
        lying = self.server.functions.buckets.get(self.keys.meta)
        there = lying.items() if lying is not None else []
        job_id = there[-1][ID_AT] if known and there else b"x" * 16
        self.both(process, lambda store: store.request_cancel(self.bucket_id, job_id))
        some = [job_id, *(item[ID_AT] for item in there[:3]), b"y" * 16, job_id]
        self.both(process, lambda store: store.is_claimed(self.bucket_id, job_id, 1000))
        asked = [self.bucket_id, b"z" * 16]
        for wanted in ([job_id], some):
            self.both(process, lambda store, wanted=wanted: store.find(asked, wanted, 1000))  # type: ignore[misc]
        if lying is None or len(lying.lists) < 2:  # a set of names has no order
            self.both(process, lambda store: store.find(asked, some, scan))

    @rule(
        process=processes, fence=fences, known=st.booleans(), place=st.integers(0, 9), most=st.sampled_from([0, 1, 100])
    )
    def recall(self, process: int, fence: Chosen, known: bool, place: int, most: int) -> None:
        """The copy of some job, or a copy that is not there; asked again."""
        lying = self.server.functions.buckets.get(self.keys.meta)
        items = lying.items() if lying is not None else []
        entry = decode_entry(items[place % len(items)]) if items else Entry(b"x" * 16, 1, "handler", b"{}")
        dues = {item: due_us for due_us, item in lying.assigned} if lying is not None else {}
        due_us = dues.get(items[place % len(items)], 0) if items else 0
        token = entry.token if known else entry.token + 1
        identity = Identity(token, self.bucket_id, self.fence_of(fence).epoch)
        for _ in range(2):
            self.both(process, lambda store: store.recall(entry.id, identity, due_us, most))

    @rule(process=processes)
    def hint(self, process: int) -> None:
        self.both(process, lambda store: store.hint(self.bucket_id))

    @rule(process=processes, fence=fences)
    def freeze(self, process: int, fence: Chosen) -> None:
        stands = self.fence_of(fence)
        self.both(process, lambda store: store.freeze(self.bucket_id, stands.epoch, stands.owner))

    # ------------------------------------------------------------ owners

    @rule(process=processes, fence=fences, name=names, limit=st.sampled_from([0, 1, 2, 5]), size=sizes)
    def claim(self, process: int, fence: Chosen, name: str, limit: int, size: int) -> None:
        oldest = limit == 0
        self.both(process, lambda store: store.claim(self.fence_of(fence), name, limit, size, oldest=oldest))

    @rule(process=processes, fence=fences, noted=st.integers(0, 2), copies=st.integers(0, 4), due=st.booleans())
    def withdraw(self, process: int, fence: Chosen, noted: int, copies: int, due: bool) -> None:
        lying = self.server.functions.buckets.get(self.keys.meta)
        requests = sorted(lying.cancelled)[:noted] if lying is not None else []
        pairs = [(due_us, item[ID_AT]) for due_us, item in lying.assigned[-copies:]] if lying is not None else []
        pairs += [(DUE_US if due else LATER_US, job_id) for _, job_id in pairs[:2]]
        for _ in range(2):
            self.both(process, lambda store: store.withdraw(self.fence_of(fence), requests, pairs))

    @rule(process=processes, name=names, count=st.integers(1, 3), limit=st.integers(1, 5), size=sizes)
    def work(self, process: int, name: str, count: int, limit: int, size: int) -> None:
        """The common way: put in, and claimed by the owner that stands."""
        self.submit(process, count, 9, False)
        self.claim(process, None, name, limit, size)

    @rule(process=processes, fence=fences, lists=some_names)
    def settle(self, process: int, fence: Chosen, lists: list[str]) -> None:
        self.both(process, lambda store: store.settle(self.fence_of(fence), lists, []))

    @rule(process=processes, fence=fences, lists=some_names, count=counts)
    def keep_outcomes(self, process: int, fence: Chosen, lists: list[str], count: int) -> None:
        outcomes = self.some_items(count)
        self.both(process, lambda store: store.keep_outcomes(self.fence_of(fence), outcomes, lists))

    @rule(process=processes, fence=fences, late=st.booleans(), count=counts)
    def assign(self, process: int, fence: Chosen, late: bool, count: int) -> None:
        items = [(LATER_US if late else DUE_US, item) for item in self.some_items(count)]
        for _ in range(2):
            self.both(process, lambda store: store.assign(self.fence_of(fence), items))

    @rule(process=processes, fence=fences, name=names)
    def look(self, process: int, fence: Chosen, name: str) -> None:
        self.both(process, lambda store: store.claimed_lists(self.fence_of(fence)))
        self.both(process, lambda store: store.read_claimed(self.fence_of(fence), name))
        self.both(process, lambda store: store.depths([self.bucket_id]))
        self.both(process, lambda store: _ageless(store.backlogs([self.bucket_id, b"z" * 16])))

    @rule(process=processes, fence=fences)
    def close_intake(self, process: int, fence: Chosen) -> None:
        self.both(process, lambda store: store.close_intake(self.fence_of(fence)))

    @rule(process=processes, fence=fences)
    def close_if_empty(self, process: int, fence: Chosen) -> None:
        self.both(process, lambda store: store.close_if_empty(self.fence_of(fence)))

    @rule(process=processes, fence=fences, name=names)
    def unfreeze(self, process: int, fence: Chosen, name: str) -> None:
        self.both(process, lambda store: store.unfreeze(self.fence_of(fence), name))

    @rule(process=processes, fence=fences, seconds=st.sampled_from([0.0, 1000.0]))
    def grant_term(self, process: int, fence: Chosen, seconds: float) -> None:
        self.both(process, lambda store: store.grant_term(self.fence_of(fence), seconds))

    @rule(
        process=processes,
        fence=fences,
        limit=st.integers(1, 4),
        size=sizes,
        times=st.integers(0, 2),
        back=st.integers(0, 4),
    )
    def kept(self, process: int, fence: Chosen, limit: int, size: int, times: int, back: int) -> None:
        kept = self.both(process, lambda store: store.read_kept(self.fence_of(fence), limit, size))
        for _ in range(times if kept.raw else 0):
            self.both(process, lambda store: store.remove_kept(self.fence_of(fence), kept.raw, kept.raw[:back]))

    # ------------------------------------------------------------ rescuers, and the house

    @rule(process=processes, fence=fences)
    def fence(self, process: int, fence: Chosen) -> None:
        self.both(process, lambda store: store.fence(self.fence_of(fence)))

    @rule(process=processes, fence=fences, limit=st.integers(1, 4), size=sizes, removals=st.integers(0, 2))
    def page(self, process: int, fence: Chosen, limit: int, size: int, removals: int) -> None:
        page = self.both(process, lambda store: store.read_page(self.fence_of(fence), limit, size))
        for _ in range(removals):
            self.both(process, lambda store: store.remove_page(self.fence_of(fence), page))

    @rule(process=processes)
    def delete_bucket(self, process: int) -> None:
        lists = self.both(process, lambda store: store.known_lists(self.bucket_id))
        self.both(process, lambda store: store.delete_bucket(self.bucket_id, lists))

    # ------------------------------------------------------------ faults

    @rule(process=processes)
    def the_connection_breaks(self, process: int) -> None:
        self.wait(self.real[process]._connection.close())
        fresh = self.new_store[0]()
        fresh._fences = self.real[process]._fences
        self.real[process] = fresh

    @rule()
    def a_copy_is_made(self) -> None:
        async def dump() -> dict[bytes, Any]:
            return {key: await self.raw.dump(key) for key in await self._present()}

        data = {meta: bucket.copied() for meta, bucket in self.server.functions.buckets.items()}
        self.snapshots.append((self.wait(dump()), data))

    @precondition(lambda self: self.snapshots)
    @rule(which=st.integers(0, 9), lost=st.sampled_from([True, False, False, False]))
    def the_store_comes_back_older(self, which: int, lost: bool) -> None:
        real, simulated = ({}, {}) if lost else self.snapshots[which % len(self.snapshots)]

        async def restore() -> None:
            await self._lose()
            for key, value in real.items():
                await self.raw.restore(key, 0, value)

        self.wait(restore())
        self.server.functions.buckets = {meta: bucket.copied() for meta, bucket in simulated.items()}

    async def _present(self) -> list[bytes]:
        pattern = self.keys.meta.removesuffix(b"meta") + b"*"
        return [key async for key in self.raw.scan_iter(match=pattern, count=1000)]

    async def _lose(self) -> None:
        if present := await self._present():
            await self.raw.delete(*present)

    # ------------------------------------------------------------ the same data

    @invariant()
    def both_hold_the_same(self) -> None:
        simulated = self.server.functions.buckets.get(self.keys.meta)
        assert self.wait(self._real_data()) == _data(simulated)

    async def _real_data(self) -> dict[str, Any]:
        raw: Any = self.raw
        keys = self.keys
        meta = await raw.hgetall(keys.meta)
        names_ = await raw.smembers(keys.lists)
        return {
            "meta": {
                field: meta.get(field.encode()) for field in ("gen", "epoch", "owner", "state", "hint", "recalled")
            },
            "counters": {field: int(meta.get(field.encode(), 0)) for field in COUNTERS},
            "pending": await raw.lrange(keys.pending, 0, -1),
            "assigned": [(int(due), item) for item, due in await raw.zrange(keys.assigned, 0, -1, withscores=True)],
            "claimed": {name: await raw.lrange(keys.claimed_prefix + name, 0, -1) for name in sorted(names_)},
            "kept": await raw.lrange(keys.kept, 0, -1),
            "cancelled": await raw.smembers(keys.cancelled),
            "wake": await raw.llen(keys.wake) > 0,
        }


async def _ageless(answer: Coroutine[Any, Any, list[BucketBacklog | None]]) -> list[BucketBacklog | None]:
    """An answer whose ages say only whether there are any."""
    return [
        each and msgspec.structs.replace(each, oldest_seconds=float(each.oldest_seconds > 0.0)) for each in await answer
    ]


def _clockless(answer: Any) -> Any:
    """An answer without what the clocks of two servers say."""
    if isinstance(answer, Claimed):
        return answer._replace(now_us=0)
    if isinstance(answer, tuple) and answer[0] is ReplyStatus.LEASED:
        return ReplyStatus.LEASED
    return answer


def _data(bucket: SimBucket | None) -> dict[str, Any]:
    bucket = bucket or SimBucket()
    there = bucket.state is not None
    return {
        "meta": {
            "gen": bucket.gen if there else None,
            "epoch": b"%d" % bucket.epoch if there else None,
            "owner": bucket.owner if there else None,
            "state": bucket.state,
            "hint": b"1" if bucket.hint else None,
            "recalled": bucket.recalled or None,
        },
        "counters": {
            "ver": bucket.ver,
            "seq": bucket.seq,
            "bytes": bucket.bytes,
            "lease_us": bucket.lease_until[1],
            "listed": bucket.listed,
            "taken": bucket.taken,
        },
        "pending": bucket.pending,
        "assigned": bucket.assigned,
        "claimed": {name: bucket.claimed.get(name, []) for name in sorted(bucket.lists)},
        "kept": bucket.kept,
        "cancelled": bucket.cancelled,
        "wake": bucket.wake,
    }


@pytest.mark.slow
@pytest.mark.parametrize("examples", [12, pytest.param(300, marks=pytest.mark.long)])
def test_the_simulated_store_is_the_real_one(store_url: str, cluster_name: str, examples: int) -> None:
    with asyncio.Runner() as runner:

        def connect() -> AgentStore:
            return runner.run(
                AgentStore.connect(cluster=cluster_name, name="default", url=store_url, settings=StoreSettings())
            )

        first = connect()
        generation = runner.run(first.initialise(new_id(), new_id()))
        raw = redis.asyncio.Redis.from_url(store_url)
        members = {"runner": runner, "new_store": [connect], "raw": raw, "generation": generation}
        run_state_machine_as_test(
            type("Machine", (TwoStores,), members),
            settings=settings(
                max_examples=examples,
                stateful_step_count=50,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
        runner.run(first.close())
        runner.run(raw.aclose())
