"""The map as deltas: what a viewer puts together from them is the cluster."""

from __future__ import annotations

from typing import Any

import msgspec

from jobmaster.web.pages.map_state import STATES, AgentSample, BucketSample, MapState


def agent(name: str, lease_until_ms: int = 10_000) -> AgentSample:
    return AgentSample(name, name, "host", "default", "full", "ACTIVE", "1", lease_until_ms, 10.0)


def bucket(id_: str, owner: str = "a", **given: Any) -> BucketSample:
    return BucketSample(id_, "default", 3, "default", owner, 1, "ACTIVE", 0, 0)._replace(**given)


class Viewer:
    """What ``map_model.js`` does."""

    def __init__(self) -> None:
        self.cells: dict[int, list[Any]] = {}
        self.agents: dict[int, list[Any]] = {}

    def take(self, data: bytes) -> None:
        change = msgspec.json.decode(data)
        if change.get("whole"):
            self.cells, self.agents = {}, {}
        for number, *rest in change.get("agents", ()):
            if rest[0] is None:
                del self.agents[number]
            else:
                self.agents[number] = rest
        for number, until in change.get("leases", ()):
            self.agents[number][7] = until
        for number, *rest in change.get("new", ()):
            self.cells[number] = rest
        for number, state, waiting, running in change.get("set", ()):
            self.cells[number][6:] = [state, waiting, running]
        for number in change.get("gone", ()):
            del self.cells[number]


def test_deltas_and_the_whole_lead_to_the_same_map() -> None:
    state, viewer = MapState(), Viewer()
    samples = [
        ([agent("a"), agent("b")], [bucket("1"), bucket("2", "b")]),
        ([agent("a", 13_000), agent("b")], [bucket("1", waiting=7), bucket("2", "b", state="LOST")]),
        ([agent("a", 13_000)], [bucket("1", waiting=7), bucket("2", "a", state="DRAINING", epoch=2)]),
        ([agent("a", 16_000)], [bucket("1", running=2), bucket("3")]),
    ]
    for seq, (agents, buckets) in enumerate(samples):
        viewer.take(state.apply(seq, 1000 * seq, agents, buckets))
        late = Viewer()
        late.take(state.snapshot(seq, 1000 * seq))
        assert (late.cells, late.agents) == (viewer.cells, viewer.agents)
        shown = {
            (cell[0], STATES[cell[6]], cell[7], cell[8], viewer.agents[cell[4]][0]) for cell in viewer.cells.values()
        }
        assert shown == {(each.id, each.state, each.waiting, each.running, each.owner) for each in buckets}


def test_a_delta_of_500_buckets_among_10_000_is_small() -> None:
    state = MapState()
    buckets = [bucket(f"bucket-{number}") for number in range(10_000)]
    state.apply(0, 0, [agent("a")], buckets)
    changed = [each._replace(waiting=number) if number % 20 == 0 else each for number, each in enumerate(buckets)]
    assert len(state.apply(1, 1000, [agent("a")], changed)) < 12_000
    assert len(state.apply(2, 2000, [agent("a")], changed)) < 100


def test_the_number_of_a_bucket_is_not_used_again() -> None:
    state = MapState()
    state.apply(0, 0, [agent("a")], [bucket("1")])
    state.apply(1, 0, [agent("a")], [])
    assert msgspec.json.decode(state.apply(2, 0, [agent("a")], [bucket("1")]))["new"][0][0] == 1
