"""The model checker itself, on models whose answers are known."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.explorer import STUCK, Step, explore

Jugs = tuple[int, int]


class TwoJugs:
    """Jugs of three and five litres; it is forbidden to measure four."""

    def start(self) -> Jugs:
        return 0, 0

    def steps(self, state: Jugs) -> Iterator[Step[Jugs]]:
        small, big = state
        yield Step("fill small", (3, big))
        yield Step("fill big", (small, 5))
        yield Step("empty small", (0, big))
        yield Step("empty big", (small, 0))
        poured = min(small, 5 - big)
        yield Step("small into big", (small - poured, big + poured))
        poured = min(big, 3 - small)
        yield Step("big into small", (small + poured, big - poured))

    def broken(self, state: Jugs) -> str:
        return "four litres" if state[1] == 4 else ""

    def promised(self, state: Jugs) -> bool:
        return False


class Counter:
    """Counts to ten; the pit at seven has no exit but a fault."""

    def __init__(self, *, pit: bool, harmful: bool = False) -> None:
        self._pit = pit
        self._harmful = harmful

    def start(self) -> int:
        return 0

    def steps(self, state: int) -> Iterator[Step[int]]:
        if state < 10 and not (self._pit and state == 7):
            yield Step("count", state + 1, broken="counted to nine" if self._harmful and state == 8 else "")
        if state == 7:
            yield Step("lifted", 8, fault=True)

    def broken(self, state: int) -> str:
        return ""

    def promised(self, state: int) -> bool:
        return state != 10


def test_the_trace_to_a_bad_state_is_a_shortest_one() -> None:
    report = explore(TwoJugs())
    assert report.violation is not None
    assert report.violation.kind == "four litres"
    assert len(report.violation.trace) == 6
    state = TwoJugs().start()
    for name in report.violation.trace:
        state = next(step.after for step in TwoJugs().steps(state) if step.name == name)
    assert state[1] == 4


def test_every_state_is_visited() -> None:
    report = explore(Counter(pit=False))
    assert (report.states, report.result(), report.cut) == (11, "holds", False)
    assert report.names == {"count", "lifted"}


def test_a_bad_step_is_named() -> None:
    report = explore(Counter(pit=False, harmful=True))
    assert report.violation is not None
    assert report.violation.kind == "counted to nine"
    assert report.violation.trace[-1] == "count"


def test_a_way_out_that_needs_a_fault_is_no_way_out() -> None:
    report = explore(Counter(pit=True))
    assert report.violation is not None
    assert report.violation.kind == STUCK
    assert report.violation.trace == ()


def test_a_cut_exploration_is_reported_as_cut_and_proves_nothing() -> None:
    report = explore(Counter(pit=True), states_max=5)
    assert report.cut
    assert report.result() == "cut"
    assert report.violation is None
