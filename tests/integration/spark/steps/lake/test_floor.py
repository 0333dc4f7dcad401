"""The floor never rises past an id that a store may hold alone: asked of a real store and a real master."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import new_id
from jobmaster.model.errors import Conflict, InputError
from jobmaster.model.ids import Fence, created_ms
from jobmaster.model.job import JobState
from jobmaster.ports import ReplyStatus
from jobmaster.retention.floor import age_checked, refuse_if_held_alone
from jobmaster.settings.model import StoreSettings
from tests.integration.store.fixture import make_items, new_fence, submit

SKEW = 3600.0


class Master:
    """Rows of the master, by hand."""

    def __init__(self) -> None:
        self.rows: dict[bytes, JobState] = {}

    async def states(self, job_ids: object) -> dict[bytes, JobState]:
        return self.rows


class StoreAndMaster(NamedTuple):
    store: AgentStore
    fence: Fence
    master: Master

    async def ask(self, hi: bytes, registered: tuple[str, ...] = ("default",), lost: tuple[str, ...] = ()) -> None:
        await refuse_if_held_alone(
            hi,
            stores={"default": self.store},
            registered=registered,
            lost_stores=lost,
            queries=self.master,
            skew_seconds=SKEW,
        )


@pytest.fixture
async def store_and_master(store_url: str, cluster_name: str) -> AsyncIterator[StoreAndMaster]:
    store = AgentStore(cluster=cluster_name, name="default", url=store_url, settings=StoreSettings())
    await store.open()
    await store.initialise(new_id(), new_id())
    fence = new_fence()
    assert await store.open_bucket(fence) is ReplyStatus.OK
    yield StoreAndMaster(store, fence, Master())
    await store.close()


def _id(hours: float) -> bytes:
    """Lowest id of so many hours from now."""
    return int(created_ms(new_id()) + hours * 3_600_000).to_bytes(6, "big") + bytes(10)


async def test_an_empty_store_holds_up_nothing(store_and_master: StoreAndMaster) -> None:
    await store_and_master.ask(_id(1))


async def test_what_waits_unclaimed_holds_up_every_range_it_may_lie_in(store_and_master: StoreAndMaster) -> None:
    """The head was made now, but one behind it may bear an id that is two hours older: both clocks may be off."""
    await submit(store_and_master.store, store_and_master.fence.bucket_id, make_items(3))
    await store_and_master.ask(_id(-2.1))
    for hours in (-1.9, 1.0):
        with pytest.raises(Conflict, match=r"has jobs waiting since .* that the master does not have"):
            await store_and_master.ask(_id(hours))


async def test_a_claimed_job_holds_up_its_range_until_it_has_a_row(store_and_master: StoreAndMaster) -> None:
    await submit(store_and_master.store, store_and_master.fence.bucket_id, make_items(2))
    claimed = await store_and_master.store.claim(store_and_master.fence, "one", 10)
    await store_and_master.ask(min(entry.id for entry in claimed.entries))
    with pytest.raises(Conflict, match="has 2 claimed jobs that the master does not have"):
        await store_and_master.ask(_id(1))
    store_and_master.master.rows = {claimed.entries[0].id: JobState.PROCESSING}
    with pytest.raises(Conflict, match="has 1 claimed jobs"):
        await store_and_master.ask(_id(1))
    store_and_master.master.rows[claimed.entries[1].id] = JobState.ASSIGNED
    await store_and_master.ask(_id(1))


async def test_an_outcome_that_waits_for_the_master_holds_up_every_range(store_and_master: StoreAndMaster) -> None:
    await submit(store_and_master.store, store_and_master.fence.bucket_id, make_items(1))
    await store_and_master.store.claim(store_and_master.fence, "one", 10)
    assert await store_and_master.store.keep_outcomes(store_and_master.fence, [b"outcome"], ["one"]) is ReplyStatus.OK
    with pytest.raises(Conflict, match="keeps 1 outcomes"):
        await store_and_master.ask(_id(-1000))


async def test_a_store_that_is_not_asked_delays_every_range_until_it_is_given_up(
    store_and_master: StoreAndMaster,
) -> None:
    with pytest.raises(Conflict, match="store 'old' may hold jobs"):
        await store_and_master.ask(_id(-1000), registered=("default", "old"))
    await store_and_master.ask(_id(-1000), registered=("default", "old"), lost=("old",))


def test_ranges_that_skewed_clocks_may_still_fill_are_not_retired() -> None:
    assert age_checked(7200.0, SKEW) == 7200.0
    with pytest.raises(InputError, match="when they are 2h old, not 1h"):
        age_checked(3600.0, SKEW)
