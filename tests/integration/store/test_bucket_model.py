"""One bucket against a model in plain Python: whatever the order of calls, the store answers as the model does, and no
job is ever anywhere but in exactly one place."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar

import pytest
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

from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import new_id
from jobmaster.codec import decode_entry
from jobmaster.model.bucket import BucketDepth
from jobmaster.model.ids import AgentId, Fence
from jobmaster.ports import Page, ReplyStatus
from jobmaster.settings.model import StoreSettings
from tests.integration.store.fixture import HOUR_MS, ROOM, make_items, new_fence

DUE_US = 1000
LATER_US = 9 * 10**15
HIGH_WATER = 12

names = st.sampled_from(["a", "b", "c"])
owned = precondition(lambda self: self.state in {"ACTIVE", "COMPLETING", "DRAINING"})


class BucketMachine(RuleBasedStateMachine):
    """Rules are the calls of producers, owners (the present and all superseded ones) and rescuers."""

    runner: ClassVar[asyncio.Runner]
    store: ClassVar[AgentStore]

    def __init__(self) -> None:
        super().__init__()
        self.fence = new_fence()
        self.superseded: list[Fence] = []
        self.state = "ACTIVE"
        self.pending: list[bytes] = []
        self.assigned: dict[bytes, int] = {}
        self.claimed: dict[str, list[bytes]] = {}
        self.kept: list[bytes] = []
        self.accepted: set[bytes] = set()
        self.safe_elsewhere: set[bytes] = set()

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    @initialize()
    def open(self) -> None:
        assert self.call(self.store.open_bucket(self.fence)) is ReplyStatus.OK

    # ------------------------------------------------------------ producers

    @rule(count=st.integers(1, 5))
    def submit(self, count: int) -> None:
        items = make_items(count)
        answer = self.call(
            self.store.submit(
                self.fence.bucket_id,
                items,
                high_water_jobs=HIGH_WATER,
                high_water_bytes=10**9,
                skew_ms_max=HOUR_MS,
            )
        )
        waiting = len(self.pending) + sum(due_us == DUE_US for due_us in self.assigned.values())
        if self.state != "ACTIVE":
            assert answer.status is ReplyStatus.CLOSED
        elif waiting + count > HIGH_WATER:
            assert answer.status is ReplyStatus.FULL
        else:
            assert (answer.status, answer.depth) == (ReplyStatus.OK, waiting + count)
            self.pending += items
            self.accepted |= set(items)

    @rule(late=st.booleans(), by_owner=st.booleans())
    def assign(self, late: bool, by_owner: bool) -> None:
        (item,) = make_items(1)
        due_us = LATER_US if late else DUE_US
        if by_owner:
            status = self.call(self.store.assign(self.fence, [(due_us, item)]))
        else:
            status = self.call(self.store.put(self.fence.bucket_id, self.fence.epoch, [(due_us, item)], **ROOM)).status
        assert status is (ReplyStatus.OK if self.state == "ACTIVE" else ReplyStatus.CLOSED)
        if status is ReplyStatus.OK:
            self.assigned[item] = due_us
            self.accepted.add(item)

    # ------------------------------------------------------------ the owner

    @rule(name=names, limit=st.integers(0, 8))
    def claim(self, name: str, limit: int) -> None:
        answer = self.call(self.store.claim(self.fence, name, limit))
        if self.state not in {"ACTIVE", "COMPLETING"}:
            assert answer.status is ReplyStatus.CLOSED
            return
        if name not in self.claimed:
            due = sorted(item for item, due_us in self.assigned.items() if due_us == DUE_US)[:limit]
            waiting = self.pending[: limit - len(due)]
            self.pending = self.pending[len(waiting) :]
            for item in due:
                del self.assigned[item]
            if due or waiting:
                self.claimed[name] = due + waiting
        assert answer.raw == self.claimed.get(name, [])
        assert [entry.id for entry in answer.entries] == [decode_entry(item).id for item in answer.raw]
        assert answer.remaining == len(self.pending)
        assert answer.next_due_us == min(self.assigned.values(), default=0)

    @rule(chosen=st.sets(names))
    def settle(self, chosen: set[str]) -> None:
        lists = sorted(chosen)
        status = self.call(self.store.settle(self.fence, lists, []))
        assert status is (ReplyStatus.CLOSED if self.state == "READY_TO_DELETE" else ReplyStatus.OK)
        for name in lists:
            self.safe_elsewhere |= set(self.claimed.pop(name, []))

    @rule(chosen=st.sets(names))
    def keep_outcomes(self, chosen: set[str]) -> None:
        lists = sorted(chosen & self.claimed.keys())
        items = [item for name in lists for item in self.claimed[name]]
        status = self.call(self.store.keep_outcomes(self.fence, items, lists))
        assert status is (ReplyStatus.CLOSED if self.state == "READY_TO_DELETE" else ReplyStatus.OK)
        for name in lists:
            self.kept += self.claimed.pop(name)

    @rule()
    def close_intake(self) -> None:
        status = self.call(self.store.close_intake(self.fence))
        assert status is (ReplyStatus.OK if self.state in {"ACTIVE", "COMPLETING"} else ReplyStatus.CLOSED)
        if status is ReplyStatus.OK:
            self.state = "COMPLETING"

    @rule(name=names)
    def look(self, name: str) -> None:
        assert self.call(self.store.claimed_lists(self.fence)) == (ReplyStatus.OK, sorted(self.claimed))
        assert self.call(self.store.read_claimed(self.fence, name)).raw == self.claimed.get(name, [])

    # ------------------------------------------------------------ rescuers

    @owned
    @rule(bump=st.integers(1, 3))
    def take(self, bump: int) -> None:
        self.superseded.append(self.fence)
        self.fence = Fence(self.fence.bucket_id, self.fence.epoch + bump, AgentId(new_id()))
        assert self.call(self.store.fence(self.fence)) == (ReplyStatus.OK, self.fence.epoch)
        self.state = "DRAINING"

    @rule(limit=st.integers(1, 6), removals=st.integers(0, 3))
    def page(self, limit: int, removals: int) -> None:
        page = self.call(self.store.read_page(self.fence, limit))
        if self.state not in {"COMPLETING", "DRAINING"}:
            assert page.status is ReplyStatus.CLOSED
            return
        expected = self._next_page(limit)
        assert (page.kind, page.list_name, page.raw) == expected
        for _ in range(removals):
            assert self.call(self.store.remove_page(self.fence, page)) is ReplyStatus.OK
        if removals:
            self._forget(*expected)

    def _next_page(self, limit: int) -> tuple[str, str, list[bytes]]:
        if self.kept:
            return "kept", "", self.kept[:limit]
        if self.claimed:
            name = min(self.claimed)
            return "claimed", name, self.claimed[name][:limit]
        if self.pending:
            return "pending", "", self.pending[:limit]
        by_due = sorted(self.assigned, key=lambda item: (self.assigned[item], item))
        return ("assigned" if by_due else ""), "", by_due[:limit]

    def _forget(self, kind: str, name: str, items: list[bytes]) -> None:
        self.safe_elsewhere |= set(items)
        match kind:
            case "kept":
                self.kept = self.kept[len(items) :]
            case "claimed":
                self.claimed[name] = self.claimed[name][len(items) :]
                if not self.claimed[name]:
                    del self.claimed[name]
            case "pending":
                self.pending = self.pending[len(items) :]
            case "assigned":
                for item in items:
                    del self.assigned[item]

    @rule()
    def close_if_empty(self) -> None:
        status = self.call(self.store.close_if_empty(self.fence))
        if self.state == "ACTIVE":
            assert status is ReplyStatus.CLOSED
        elif self.pending or self.assigned or self.claimed or self.kept:
            assert status is ReplyStatus.NOT_EMPTY
        else:
            assert status is ReplyStatus.OK
            self.state = "READY_TO_DELETE"

    # ------------------------------------------------------------ those who were superseded

    @precondition(lambda self: bool(self.superseded))
    @rule(data=st.data(), name=names)
    def a_superseded_owner_achieves_nothing(self, data: st.DataObject, name: str) -> None:
        old = data.draw(st.sampled_from(self.superseded))
        item = make_items(1)[0]
        words = [
            self.call(self.store.claim(old, name, 5)).status,
            self.call(self.store.settle(old, [name], [])),
            self.call(self.store.keep_outcomes(old, [b"outcome"], [name])),
            self.call(self.store.assign(old, [(DUE_US, item)])),
            self.call(self.store.remove_page(old, Page(ReplyStatus.OK, "pending", "", [], self.pending[:1]))),
            self.call(self.store.close_intake(old)),
            self.call(self.store.close_if_empty(old)),
            self.call(self.store.put(old.bucket_id, old.epoch, [(DUE_US, item)], **ROOM)).status,
        ]
        assert set(words) == {ReplyStatus.FENCED}
        assert self.call(self.store.fence(old)) == (ReplyStatus.FENCED, self.fence.epoch)

    # ------------------------------------------------------------ always

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        (depth,) = self.call(self.store.depths([self.fence.bucket_id]))
        assert depth == BucketDepth(
            len(self.pending), len(self.assigned), len(self.claimed), len(self.kept), sum(map(len, self.pending))
        )

    @invariant()
    def every_accepted_job_is_in_exactly_one_place(self) -> None:
        claimed = [item for items in self.claimed.values() for item in items]
        places = [*self.pending, *self.assigned, *claimed, *self.kept, *self.safe_elsewhere]
        assert len(places) == len(set(places))
        assert set(places) == self.accepted

    @precondition(lambda self: self.state != "READY_TO_DELETE")
    @invariant()
    def nothing_is_deleted_while_it_is_owned_and_filled(self) -> None:
        if self.state == "ACTIVE" or self.pending or self.assigned or self.claimed or self.kept:
            assert self.call(self.store.delete_bucket(self.fence.bucket_id)) is ReplyStatus.NOT_EMPTY


@pytest.mark.parametrize("examples", [40, pytest.param(400, marks=[pytest.mark.slow, pytest.mark.long])])
def test_a_bucket_answers_as_its_model(store_url: str, cluster_name: str, examples: int) -> None:
    with asyncio.Runner() as runner:
        store = runner.run(
            AgentStore.connect(cluster=cluster_name, name="default", url=store_url, settings=StoreSettings())
        )
        runner.run(store.initialise(new_id(), new_id()))
        machine = type("OneBucket", (BucketMachine,), {"runner": runner, "store": store})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=40,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
        runner.run(store.close())
