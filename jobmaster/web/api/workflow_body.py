"""The definition of a workflow as JSON: steps by name, and what each of them waits for.

It says what ``step``, ``chain``, ``group`` and ``branch`` say in Python, as the graph that these make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from jobmaster.client.workflows.definition import Choice, Flow, Step, StepOptions, result_of, step
from jobmaster.client.workflows.graph_compiler import STEPS_MAX
from jobmaster.handlers import Call as HandlerCall
from jobmaster.model.errors import InputError
from jobmaster.model.flow.workflow import RunsOn
from jobmaster.model.job import PriorityLabel
from jobmaster.model.suggestion import did_you_mean
from jobmaster.web.api.operation import Body
from jobmaster.web.api.submitting import CallBody, WaitForBody, as_option


class ResultBody(Body, frozen=True, kw_only=True):
    """The result of a step, or a part of it."""

    step: str
    path: list[str | int] = msgspec.field(default_factory=list)
    """Names of fields, and numbers of items, from the outside in."""


class StepCallBody(CallBody, frozen=True, kw_only=True):
    """A handler with its arguments, some of which are results of steps."""

    results: dict[str, ResultBody] = msgspec.field(default_factory=dict)
    """Argument -> the result that it is. The step runs after the one whose result it takes."""


class ChoiceBody(Body, frozen=True, kw_only=True):
    """A branch: the step runs if the result is one of ``values``, or, with ``otherwise``, if it is none of them. Else it is
    skipped."""

    result: ResultBody
    values: Annotated[list[str | int | float | bool | None], Meta(min_length=1)]
    otherwise: bool = False


class StepBody(StepCallBody, frozen=True, kw_only=True):
    """A step of a workflow. Durations are seconds."""

    name: str
    """Unique in the workflow."""
    after: list[str] = msgspec.field(default_factory=list)
    """Names of the steps that it waits for, beside those whose results it takes."""
    runs_on: Literal["success", "failure", "end"] = "success"
    """``failure``: it runs when one of the steps that it waits for has failed, ``end``: however they have ended. Without
    ``after`` these are all steps that run on success."""
    choice: ChoiceBody | None = None
    undo: StepCallBody | None = None
    """Its compensation: runs when the step has succeeded and the workflow fails or is cancelled."""
    delay: float = 0.0
    """Between the end of the steps that it waits for and its own start."""
    priority: PriorityLabel | None = None
    lane: str | None = None
    tags: list[str] | None = None
    metadata: dict[str, str] | None = None
    timeout: float | None = None
    """How long one attempt may run."""
    accept_time: float | None = None
    complete_time: float | None = None
    cancel_slow: bool | None = None
    max_attempts: int | None = None
    delivery: Literal["at_most_once"] | None = None
    tenant: str | None = None
    wait_for: WaitForBody | None = None
    """The signal that the step waits for when the steps before it have ended."""
    allow_unregistered: bool | None = None


class WorkflowBody(Body, frozen=True, kw_only=True):
    """A whole workflow."""

    name: str
    steps: Annotated[list[StepBody], Meta(min_length=1, max_length=STEPS_MAX)]
    workflow_id: UUID | None = None
    """A UUIDv7 made now by the caller, with zeros as its last four bytes, to be able to send the same workflow again."""


def flow_of(bodies: Sequence[StepBody]) -> Flow:
    """The steps as ``Workflows.start`` takes them.

    Raises:
        InputError: two steps of one name, a step that is not there, an argument that is given twice. The other mistakes are
            found at the start.
    """
    steps: dict[str, Step[Any]] = {}
    for body in bodies:
        if body.name in steps:
            raise InputError(f"two steps have the name {body.name!r:.200}")
        steps[body.name] = _step(body)
    parents: dict[Step[Any], tuple[Step[Any], ...]] = {}
    choices: dict[Step[Any], Choice] = {}
    for body in bodies:
        made = steps[body.name]
        _fill(made.call, body, body.name, steps)
        if made.undo is not None and body.undo is not None:
            _fill(made.undo, body.undo, body.name, steps)
        before = [_named(each, body.name, steps) for each in body.after]
        if not before and body.runs_on != "success":
            before = [steps[each.name] for each in bodies if each.runs_on == "success" and each is not body]
        if body.choice is not None:
            given = body.choice
            before.append(_named(given.result.step, body.name, steps))
            result: Any = _result(given.result, body.name, steps)
            choices[made] = Choice(result, tuple(given.values), given.otherwise)
        parents[made] = tuple(dict.fromkeys(before))
    heads = tuple(made for made, before in parents.items() if not before)
    runs_on = {steps[body.name]: RunsOn(body.runs_on) for body in bodies if body.runs_on != "success"}
    return Flow(steps.values(), parents, heads, (), runs_on, choices)


def _step(body: StepBody) -> Step[Any]:
    """The step without the results of others."""
    options: Any = {
        name: as_option(value)
        for name in StepOptions.__annotations__
        if (value := getattr(body, name, None)) is not None
    }
    undo: HandlerCall[Any] | None = None
    if body.undo is not None:
        undo = HandlerCall(body.undo.handler, dict(body.undo.args))
    call: HandlerCall[Any] = HandlerCall(body.handler, dict(body.args))
    return step(call, name=body.name, undo=undo, delay=body.delay, **options)


def _fill(call: HandlerCall[Any], body: StepCallBody, name: str, steps: Mapping[str, Step[Any]]) -> None:
    """Give a call the arguments that are results of steps."""
    for argument, result in body.results.items():
        if argument in call.arguments:
            raise InputError(f"step {name!r:.200}: argument {argument!r:.200} is in 'args' and in 'results'")
        call.arguments[argument] = _result(result, name, steps)


def _result(body: ResultBody, name: str, steps: Mapping[str, Step[Any]]) -> Any:
    return reduce(lambda whole, part: whole[part], body.path, result_of(_named(body.step, name, steps)))


def _named(name: str, of: str, steps: Mapping[str, Step[Any]]) -> Step[Any]:
    found = steps.get(name)
    if found is None:
        raise InputError(
            f"step {of!r:.200} names step {name!r:.200}, which is not in the workflow", hint=did_you_mean(name, steps)
        )
    return found
