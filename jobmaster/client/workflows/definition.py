"""The definition of a workflow: calls that run after one another, side by side, on a branch, or after a failure.

::

    pay = step(call(charge, order), undo=call(refund, order))
    pack = step(call(pack_goods, order))
    ship = step(call(send, pack=result_of(pack), receipt=result_of(pay).number))
    flow = chain(pay, pack, ship).on_failure(call(alert, order))

Values of this module say what shall run and are checked when the workflow is started (``compiled.py``). No value changes
another one: ``then`` and ``on_failure`` return a new flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack, cast

from jobmaster.client.signals.wait import WaitFor
from jobmaster.handlers import Call
from jobmaster.model.errors import InputError
from jobmaster.model.flow.workflow import RunsOn
from jobmaster.model.job import Delivery, Priority, PriorityLabel

R = TypeVar("R")


class StepOptions(TypedDict, total=False):
    """Options of a step and of its compensation. What is left out comes from the handler, then from the cluster."""

    priority: Priority | int | PriorityLabel
    lane: str
    tags: Sequence[str]
    metadata: Mapping[str, str]
    timeout: float | timedelta
    """Seconds that one attempt may run."""
    accept_time: float | timedelta
    complete_time: float | timedelta
    cancel_slow: bool
    max_attempts: int
    delivery: Delivery | Literal["at_most_once"]
    tenant: str
    """For whom the step runs."""
    wait_for: WaitFor | None
    """``signal("order:17", timeout=3600)``: when the steps before it have ended, the step waits for this signal. The time-out
    begins then. Not for its compensation."""
    allow_unregistered: bool


class Choice:
    """When a step of a branch runs: the value is one of ``cases``, or, for ``otherwise``, none of them."""

    __slots__ = ("cases", "otherwise", "value")

    def __init__(self, value: Result, cases: tuple[Any, ...], otherwise: bool) -> None:
        self.value = value
        self.cases = cases
        self.otherwise = otherwise


class Result:
    """The result of a step, or a part of it, as an argument of a later step. Made by ``result_of`` and ``previous``."""

    __slots__ = ("_path", "_step")

    def __init__(self, step: Step[Any] | None, path: tuple[str, ...] = ()) -> None:
        self._step = step
        self._path = path

    def __getattr__(self, name: str) -> Result:
        if name.startswith("__"):
            raise AttributeError(name)
        return Result(self._step, (*self._path, name))

    def __getitem__(self, key: str | int) -> Result:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise InputError(f"a part of a result is named by text or by a number, not by {key!r}")
        return Result(self._step, (*self._path, str(key)))

    def __iter__(self) -> Any:
        raise TypeError(
            "a result is known only when its step has ended: pass it on as a whole, or one part by its name"
        )

    def __bool__(self) -> bool:
        raise TypeError("a result is known only when its step has ended: use branch() to choose by it")

    def __repr__(self) -> str:
        return f"<Result of {self._step.label if self._step else 'previous'}{''.join(f'.{one}' for one in self._path)}>"


previous: Any = Result(None)
"""The result of the step before, as an argument; after ``group`` a list of the results in its order."""


class Flow:
    """Steps and their order. Made by ``step``, ``chain``, ``group`` and ``branch``."""

    def __init__(
        self,
        steps: Iterable[Step[Any]],
        parents: Mapping[Step[Any], tuple[Step[Any], ...]],
        heads: tuple[Step[Any], ...],
        tails: tuple[Step[Any], ...],
        runs_on: Mapping[Step[Any], RunsOn],
        choices: Mapping[Step[Any], Choice],
    ) -> None:
        self.steps = tuple(dict.fromkeys(steps))
        """In the order of the definition."""
        self.parents = dict(parents)
        self.heads = heads
        """Steps that have no step before them in this flow."""
        self.tails = tails
        """Steps that what follows the flow waits for."""
        self.runs_on = dict(runs_on)
        """Of steps that wait for something else than success."""
        self.choices = dict(choices)

    def then(self, *parts: Flow | Call[Any]) -> Flow:
        """This flow, and these parts one after another behind it."""
        return chain(self, *parts)

    def on_failure(self, part: Flow | Call[Any]) -> Flow:
        """This flow; ``part`` runs when a step of it has failed, was cancelled or has expired, and the others have ended."""
        return self._watched(part, RunsOn.FAILURE)

    def at_end(self, part: Flow | Call[Any]) -> Flow:
        """This flow; ``part`` runs when all steps of it have ended, however."""
        return self._watched(part, RunsOn.END)

    def _watched(self, part: Flow | Call[Any], runs_on: RunsOn) -> Flow:
        watcher = as_flow(part)
        joined = _joined((self, watcher))
        for head in watcher.heads:
            joined.parents[head] = (*joined.parents.get(head, ()), *self.steps)
            joined.runs_on[head] = runs_on
        joined.heads, joined.tails = self.heads, self.tails
        return joined

    def __repr__(self) -> str:
        return f"<Flow of {len(self.steps)} steps>"


class Step(Flow, Generic[R]):
    """One call in a workflow. ``R`` is the type of its result."""

    def __init__(
        self,
        call: Call[R],
        *,
        name: str | None,
        after: tuple[Step[Any], ...],
        undo: Call[Any] | None,
        delay: float | timedelta,
        options: StepOptions,
    ) -> None:
        self.call = call
        self.name = name
        self.undo = undo
        self.delay = delay
        self.options = options
        before: dict[Step[Any], None] = {}
        parents: dict[Step[Any], tuple[Step[Any], ...]] = {self: after} if after else {}
        for one in after:
            before.update(dict.fromkeys(one.steps))
            parents.update(one.parents)
        super().__init__([*before, self], parents, (self,), (self,), {}, {})
        if after:
            self.heads = tuple(each for each in self.steps if not parents.get(each))

    @property
    def label(self) -> str:
        """Its name, or that of its handler."""
        handler = self.call.handler
        return self.name or (handler if isinstance(handler, str) else str(getattr(handler, "__name__", handler)))

    def __repr__(self) -> str:
        return f"<Step {self.label}>"


def step(
    call: Call[R],
    /,
    *,
    name: str | None = None,
    after: Step[Any] | Sequence[Step[Any]] = (),
    undo: Call[Any] | None = None,
    delay: float | timedelta = 0.0,
    **options: Unpack[StepOptions],
) -> Step[R]:
    """A step of a workflow.

    Args:
        call: what it does. Arguments may be ``result_of(other)`` or ``previous``.
        name: unique in the workflow; else that of its handler, with a number where it would be there twice.
        after: steps that must have succeeded before it, beside those of ``chain``.
        undo: its compensation: runs when the step has succeeded and the workflow fails or is cancelled. Its arguments may
            have ``result_of`` this step or one before it; ``previous`` is the result of this step.
        delay: seconds between the end of the steps before it and its own start.
        options: see ``StepOptions``.
    """
    if not isinstance(call, Call):
        raise InputError(f"a step is made of a call, not of {call!r}", hint="step(call(resize, 'a.png'))")
    if undo is not None and not isinstance(undo, Call):
        raise InputError(
            f"'undo' of a step is a call, not {undo!r}", hint="step(call(charge, 1), undo=call(refund, 1))"
        )
    unknown = options.keys() - StepOptions.__annotations__.keys()
    if unknown:
        raise InputError(
            f"a step has no option {', '.join(sorted(map(repr, unknown)))}",
            hint=f"valid are name, after, undo, delay, {', '.join(StepOptions.__annotations__)}",
        )
    before = (after,) if isinstance(after, Step) else tuple(after)
    for one in before:
        if not isinstance(one, Step):
            raise InputError(f"'after' of a step takes steps, not {one!r}")
    return Step(call, name=name, after=before, undo=undo, delay=delay, options=options)


def result_of(step: Step[R]) -> R:
    """The result of a step as an argument of a later one; ``result_of(a).number`` or ``result_of(a)["number"]`` is a part of
    it. Type checkers see the type of the result. A step whose argument it is runs after that step."""
    if not isinstance(step, Step):
        raise InputError(f"result_of takes a step, not {step!r}")
    return cast(R, Result(step))


def chain(*parts: Flow | Call[Any]) -> Flow:
    """Parts that run one after another: each begins when the one before it has succeeded."""
    flows = _flows(parts, "chain")
    joined = _joined(flows)
    for before, behind in pairwise(flows):
        for head in behind.heads:
            known = joined.parents.get(head, ())
            joined.parents[head] = (*known, *(tail for tail in before.tails if tail not in known))
    joined.heads, joined.tails = flows[0].heads, flows[-1].tails
    return joined


def group(*parts: Flow | Call[Any]) -> Flow:
    """Parts that run side by side. What follows the group begins when all of them have succeeded."""
    flows = _flows(parts, "group")
    joined = _joined(flows)
    joined.heads = tuple(dict.fromkeys(head for flow in flows for head in flow.heads))
    joined.tails = tuple(dict.fromkeys(tail for flow in flows for tail in flow.tails))
    return joined


def branch(on: object, cases: Mapping[Any, Flow | Call[Any]], otherwise: Flow | Call[Any] | None = None) -> Flow:
    """One of several parts, by a value: that of a step, of a call that decides (a predicate is a handler), or a result.

    Args:
        on: ``call(is_large, order)``; a step; or ``result_of(step)`` or a part of it, of a step that is elsewhere.
        cases: value -> what runs then. Values are text, numbers, booleans or ``None``, compared as JSON is written: ``1`` is
            not ``1.0``.
        otherwise: what runs for any other value; without it, what follows the branch goes on.
    """
    if not cases:
        raise InputError(
            "a branch needs at least one case", hint="branch(call(is_large, order), {True: ..., False: ...})"
        )
    given = on if isinstance(on, Flow | Result) else as_flow(cast("Call[Any]", on))
    if isinstance(given, Flow) and not isinstance(given, Step):
        raise InputError("a branch depends on one step, not on a flow", hint="give the step, or result_of(step)")
    value = given if isinstance(given, Result) else Result(given)
    decides = value._step
    if decides is None:
        raise InputError("a branch names its step: previous stands for none", hint="branch(result_of(step), ...)")
    parts = [as_flow(part) for part in cases.values()]
    chosen = [(part, Choice(value, (case,), False)) for case, part in zip(cases, parts, strict=True)]
    if otherwise is not None:
        chosen.append((as_flow(otherwise), Choice(value, tuple(cases), True)))
    joined = _joined([*([given] if isinstance(given, Flow) else []), *(part for part, _ in chosen)])
    for part, choice in chosen:
        for head in part.heads:
            if head in joined.choices:
                raise InputError(
                    f"step {head.label!r} begins two branches",
                    hint="put a step between them, or use a call that decides",
                )
            joined.choices[head] = choice
            joined.parents[head] = (*joined.parents.get(head, ()), decides)
    tails = [tail for part, _ in chosen for tail in part.tails]
    joined.heads = (
        decides.heads if isinstance(given, Flow) else tuple(head for part, _ in chosen for head in part.heads)
    )
    joined.tails = tuple(tails if otherwise is not None else [decides, *tails])
    return joined


def as_flow(part: Flow | Call[Any]) -> Flow:
    """A part of a workflow as a flow."""
    if isinstance(part, Flow):
        return part
    if isinstance(part, Call):
        return step(part)
    raise InputError(
        f"a part of a workflow is a call or a flow, not {part!r}", hint="chain(call(a), group(call(b), call(c)))"
    )


def _flows(parts: Sequence[Flow | Call[Any]], what: str) -> list[Flow]:
    if not parts:
        raise InputError(f"{what}() needs at least one part", hint=f"{what}(call(a), call(b))")
    return [as_flow(part) for part in parts]


def _joined(flows: Sequence[Flow]) -> Flow:
    """All steps of some flows, with the order that each of them has in itself."""
    joined = Flow([step for flow in flows for step in flow.steps], {}, (), (), {}, {})
    for flow in flows:
        for step, parents in flow.parents.items():
            known = joined.parents.get(step, ())
            joined.parents[step] = (*known, *(parent for parent in parents if parent not in known))
        joined.runs_on.update(flow.runs_on)
        joined.choices.update(flow.choices)
    return joined
