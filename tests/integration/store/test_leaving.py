"""A cluster that is thrown away leaves its store without a trace, and not before its buckets are gone."""

from __future__ import annotations

from tests.integration.store.fixture import OneBucketStore, assert_ok


async def test_the_mark_stays_while_a_bucket_has_keys_here(one_bucket: OneBucketStore) -> None:
    store, fence = one_bucket.store, one_bucket.fence
    assert not await store.leave()
    assert (await store.health()).generation is not None
    await assert_ok(store.close_intake(fence))
    await assert_ok(store.close_if_empty(fence))
    await assert_ok(store.delete_bucket(fence.bucket_id))
    assert await store.leave()
    assert (await store.health()).generation is None
    assert [key async for key in one_bucket.raw.scan_iter(match=f"jm:{{{store.cluster}*", count=1000)] == []
