"""A small explicit-state model checker: breadth first, so that the trace to a violation is a shortest one.

A model is a start state and a function from a state to the steps that can be taken in it. States are hashable tuples.
Three things are checked: what a step itself says is broken, what must hold in every state, and progress: from every state in
which something has been promised, the promise can still be kept by steps that are no faults. Progress needs the whole graph,
so it is checked last, and only when nothing else is broken and the graph was not cut.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

STUCK = "L1 an acknowledged job cannot finish without a further fault"


class Step(NamedTuple, Generic[S]):
    """One atomic step: its name, the state after it."""

    name: str
    after: S
    fault: bool = False
    """Something the outside does to the system (a crash, a lost reply): progress must not need it."""
    broken: str = ""
    """The promise that this very step breaks."""


class Model(Protocol[S]):
    """What can be explored."""

    def start(self) -> S: ...

    def steps(self, state: S) -> Iterable[Step[S]]: ...

    def broken(self, state: S) -> str:
        """The promise that a state breaks, or nothing."""
        ...

    def promised(self, state: S) -> bool:
        """True when something still has to happen."""
        ...


class Violation(NamedTuple):
    """What is broken, and a shortest way to it."""

    kind: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}\n    " + "\n    ".join(self.trace)


class Report(NamedTuple):
    """What an exploration found."""

    states: int
    seconds: float
    violation: Violation | None
    cut: bool
    """True when there were more states than the cap: nothing is proved about those, nor about progress."""
    names: frozenset[str]
    """Names of all steps that were taken."""

    def result(self) -> str:
        """In one word or line."""
        if self.violation is not None:
            return self.violation.kind
        return "cut" if self.cut else "holds"


class _Graph(Generic[S]):
    """The states found so far, in order, each with the step that found it."""

    def __init__(self, start: S) -> None:
        self.index: dict[S, int] = {start: 0}
        self.states: list[S] = [start]
        self.found_by: list[tuple[int, str]] = [(-1, "")]
        self.before: list[list[int]] = [[]]
        """For each state, the states from which a step that is no fault leads to it."""

    def add(self, origin: int, step: Step[S]) -> bool:
        """Note a step; True when its state is new."""
        found = self.index.get(step.after)
        new = found is None
        if found is None:
            found = self.index[step.after] = len(self.states)
            self.states.append(step.after)
            self.found_by.append((origin, step.name))
            self.before.append([])
        if not step.fault:
            self.before[found].append(origin)
        return new

    def trace(self, place: int, *last: str) -> tuple[str, ...]:
        """Names of the steps from the start to a state."""
        names = list(reversed(last))
        while place > 0:
            place, name = self.found_by[place]
            names.append(name)
        return tuple(reversed(names))


@contextmanager
def _without_collector() -> Iterator[None]:
    """States hold no circles; looking for some among millions of tuples takes longer than making them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def explore(model: Model[S], *, states_max: int = 1_000_000) -> Report:
    """Visit every state that can be reached, until something is broken or there are too many of them."""
    with _without_collector():
        return _explore(model, states_max)


def _explore(model: Model[S], states_max: int) -> Report:
    began = time.perf_counter()
    graph = _Graph(model.start())
    names: set[str] = set()
    waiting = deque([0])
    violation: Violation | None = None
    cut = False
    while waiting and violation is None and not cut:
        place = waiting.popleft()
        for step in model.steps(graph.states[place]):
            names.add(step.name)
            kind = step.broken or model.broken(step.after)
            if kind:
                violation = Violation(kind, graph.trace(place, step.name))
                break
            if graph.add(place, step):
                if len(graph.states) > states_max:
                    cut = True
                    break
                waiting.append(len(graph.states) - 1)
    if violation is None and not cut:
        violation = _stuck(model, graph)
    return Report(len(graph.states), time.perf_counter() - began, violation, cut, frozenset(names))


def _stuck(model: Model[S], graph: _Graph[S]) -> Violation | None:
    """The first state found from which the promise cannot be kept any more."""
    good = [not model.promised(state) for state in graph.states]
    waiting = [place for place, is_good in enumerate(good) if is_good]
    while waiting:
        for earlier in graph.before[waiting.pop()]:
            if not good[earlier]:
                good[earlier] = True
                waiting.append(earlier)
    try:
        return Violation(STUCK, graph.trace(good.index(False)))
    except ValueError:
        return None
