"""Every owner call refuses in the order GEN, ROLLBACK, FENCED, CLOSED, and a refusal writes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import redis.asyncio

from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import new_id
from jobmaster.codec import encode_entry
from jobmaster.model.bucket import BucketState
from jobmaster.model.ids import AgentId, Fence
from jobmaster.ports import Page, ReplyStatus
from tests.integration.store.conftest import Connect
from tests.integration.store.fixture import ROOM, OneBucketStore, assert_ok, make_entry, make_items, new_fence, submit

Call = Callable[[AgentStore, Fence], Awaitable[ReplyStatus]]
ITEM = encode_entry(make_entry())
PAGE = Page(ReplyStatus.OK, "pending", "", [], [])


async def _claim(store: AgentStore, fence: Fence) -> ReplyStatus:
    return (await store.claim(fence, "new", 10)).status


async def _claimed_lists(store: AgentStore, fence: Fence) -> ReplyStatus:
    return (await store.claimed_lists(fence))[0]


async def _read_claimed(store: AgentStore, fence: Fence) -> ReplyStatus:
    return (await store.read_claimed(fence, "kept")).status


async def _read_page(store: AgentStore, fence: Fence) -> ReplyStatus:
    return (await store.read_page(fence, 10)).status


async def _read_kept(store: AgentStore, fence: Fence) -> ReplyStatus:
    return (await store.read_kept(fence, 10)).status


async def _remove_kept(store: AgentStore, fence: Fence) -> ReplyStatus:
    kept = store.keys.bucket(fence.bucket_id).kept
    raw = await store._calls.call(_packed_range(kept), mutating=False)
    return await store.remove_kept(fence, raw or [b"nothing"], [])


async def _remove_page(store: AgentStore, fence: Fence) -> ReplyStatus:
    # The page that really lies there, read behind the function's back: only the guard can keep it.
    pending = store.keys.bucket(fence.bucket_id).pending
    raw = await store._calls.call(_packed_range(pending), mutating=False)
    return await store.remove_page(fence, PAGE._replace(raw=raw))


def _packed_range(key: bytes) -> bytes:
    return b"*4\r\n$6\r\nLRANGE\r\n$%d\r\n%s\r\n$1\r\n0\r\n$2\r\n-1\r\n" % (len(key), key)


WORKING = {"ACTIVE", "COMPLETING"}
EVERY = {state.value for state in BucketState}
OWNED = EVERY - {"LOST", "READY_TO_DELETE"}
EMPTYING = {"COMPLETING", "DRAINING"}
CALLS: dict[str, tuple[Call, set[str]]] = {
    "open_bucket": (lambda store, fence: store.open_bucket(fence), {"ACTIVE"}),
    "claim": (_claim, WORKING),
    "settle": (lambda store, fence: store.settle(fence, ["kept"], []), OWNED),
    "assign": (lambda store, fence: store.assign(fence, [(1, ITEM)]), {"ACTIVE"}),
    "keep_outcomes": (lambda store, fence: store.keep_outcomes(fence, [b"outcome"], ["kept"]), OWNED),
    "grant_term": (lambda store, fence: store.grant_term(fence, 1.0), WORKING),
    "read_kept": (_read_kept, OWNED),
    "remove_kept": (_remove_kept, OWNED),
    "claimed_lists": (_claimed_lists, EVERY),
    "read_claimed": (_read_claimed, EVERY),
    "close_intake": (lambda store, fence: store.close_intake(fence), WORKING),
    "close_if_empty": (lambda store, fence: store.close_if_empty(fence), EMPTYING | {"READY_TO_DELETE"}),
    "read_page": (_read_page, EMPTYING),
    "remove_page": (_remove_page, EMPTYING),
}

every_call = pytest.mark.parametrize("name", CALLS)


@pytest.fixture
async def used(one_bucket: OneBucketStore) -> OneBucketStore:
    """A bucket in which something lies everywhere, seen by its owner at counter 3 or more."""
    await one_bucket.submit(make_items(5))
    await one_bucket.store.claim(one_bucket.fence, "kept", 2)
    await assert_ok(one_bucket.store.assign(one_bucket.fence, [(9 * 10**15, make_items(1)[0])]))
    await one_bucket.store.hint(one_bucket.bucket_id)
    return one_bucket


async def _refused(one_bucket: OneBucketStore, name: str, fence: Fence, status: ReplyStatus) -> None:
    before = await one_bucket.contents()
    assert await CALLS[name][0](one_bucket.store, fence) is status
    assert await one_bucket.contents() == before


@every_call
async def test_a_bucket_that_vanished_is_another_generation(used: OneBucketStore, name: str) -> None:
    await used.raw.delete(used.meta)
    await _refused(used, name, used.fence, ReplyStatus.GENERATION)


@every_call
async def test_a_bucket_of_another_generation_is_refused(used: OneBucketStore, name: str) -> None:
    await used.force(gen=new_id())
    await _refused(used, name, used.fence, ReplyStatus.GENERATION)


@every_call
async def test_a_counter_below_one_that_was_seen_is_a_rollback(used: OneBucketStore, name: str) -> None:
    seen = int(await used.field("ver") or 0)
    await used.force(ver=seen - 1)
    await _refused(used, name, used.fence, ReplyStatus.ROLLBACK)
    # New jobs must not carry the counter past the floor: the loss would never be noticed.
    await used.submit(make_items(5))
    await used.store.put(used.bucket_id, 1, [(9 * 10**15, make_items(1)[0])], **ROOM)
    await _refused(used, name, used.fence, ReplyStatus.ROLLBACK)


@every_call
@pytest.mark.parametrize("how", ["lower epoch", "higher epoch", "another owner"])
async def test_another_fence_is_refused(used: OneBucketStore, name: str, how: str) -> None:
    fences = {
        "lower epoch": used.fence._replace(epoch=0),
        "higher epoch": used.fence._replace(epoch=2),
        "another owner": used.fence._replace(owner=AgentId(new_id())),
    }
    await _refused(used, name, fences[how], ReplyStatus.FENCED)


@every_call
@pytest.mark.parametrize("state", sorted(EVERY))
async def test_a_state_that_does_not_allow_it_is_refused(used: OneBucketStore, name: str, state: str) -> None:
    await used.force(state=state)
    call, allowed = CALLS[name]
    if state in allowed:
        assert await call(used.store, used.fence) in {ReplyStatus.OK, ReplyStatus.NOT_EMPTY}
    else:
        await _refused(used, name, used.fence, ReplyStatus.CLOSED)


@every_call
async def test_the_order_of_refusals(used: OneBucketStore, name: str) -> None:
    """All at once, then one cause after the other taken away."""
    right = {"gen": await used.field("gen"), "ver": await used.field("ver"), "epoch": b"1", "state": b"ACTIVE"}
    await used.force(gen=new_id(), ver=0, epoch=7, state="LOST")
    await _refused(used, name, used.fence, ReplyStatus.GENERATION)
    await used.force(gen=right["gen"] or b"")
    await _refused(used, name, used.fence, ReplyStatus.ROLLBACK)
    await used.force(ver=right["ver"] or b"")
    await _refused(used, name, used.fence, ReplyStatus.FENCED)
    await used.force(epoch=1)
    if "LOST" not in CALLS[name][1]:
        await _refused(used, name, used.fence, ReplyStatus.CLOSED)


async def test_an_emptied_store_is_noticed_by_owners_and_opened_by_none(
    connect: Connect, new_valkey: Callable[..., object]
) -> None:
    server = new_valkey()
    store = await connect(url=server.url)  # type: ignore[attr-defined]
    fence = new_fence()
    await assert_ok(store.open_bucket(fence))
    await submit(store, fence.bucket_id, make_items(3))
    async with redis.asyncio.Redis.from_url(server.url) as raw:  # type: ignore[attr-defined]
        await raw.flushall()
    old = store._fences.current()
    assert (await store.health()).generation is None
    assert (await store.claim(fence, "a", 1)).status is ReplyStatus.GENERATION
    assert await store.initialise(new_id(), new_id()) != old
    assert (await store.claim(fence, "a", 1)).status is ReplyStatus.GENERATION
    # An owner that asks for "its" bucket again must not get an empty one and believe that nothing was lost.
    assert await store.open_bucket(fence) is ReplyStatus.GENERATION
    rescuer = Fence(fence.bucket_id, 2, AgentId(new_id()))
    assert await store.fence(rescuer) == (ReplyStatus.OK, 2)
    assert (await store.read_page(rescuer, 10)).kind == ""
    await assert_ok(store.close_if_empty(rescuer))


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("claim", "ACTIVE"),
        ("settle", "ACTIVE"),
        ("assign", "ACTIVE"),
        ("keep_outcomes", "ACTIVE"),
        ("remove_kept", "ACTIVE"),
        ("close_intake", "ACTIVE"),
        ("remove_page", "DRAINING"),
    ],
)
async def test_every_change_by_the_owner_raises_the_counter_and_the_floor(
    used: OneBucketStore, name: str, state: str
) -> None:
    """Forget the bump in one function, and a store that loses exactly that change goes unnoticed."""
    await used.force(state=state)
    seen = int(await used.field("ver") or 0)
    await assert_ok(CALLS[name][0](used.store, used.fence))
    assert await used.field("ver") == str(seen + 1).encode()
    await used.force(ver=seen)
    assert (await used.store.claimed_lists(used.fence))[0] is ReplyStatus.ROLLBACK


async def test_closing_and_taking_a_bucket_raise_the_counter_and_the_floor(one_bucket: OneBucketStore) -> None:
    await assert_ok(one_bucket.store.close_intake(one_bucket.fence))
    await assert_ok(one_bucket.store.close_if_empty(one_bucket.fence))
    assert await one_bucket.field("ver") == b"3"
    rescuer = Fence(one_bucket.bucket_id, 2, AgentId(new_id()))
    await one_bucket.store.fence(rescuer)
    assert await one_bucket.field("ver") == b"4"
    await one_bucket.force(ver=3)
    assert (await one_bucket.store.claimed_lists(rescuer))[0] is ReplyStatus.ROLLBACK
