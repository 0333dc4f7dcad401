"""A workflow as JSON is the one that Python makes of the same parts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jobmaster.client.signals.wait import signal
from jobmaster.client.workflows.definition import branch, chain, previous, result_of, step
from jobmaster.codec import decode_headers
from jobmaster.handlers import call
from jobmaster.model.errors import InputError
from jobmaster.model.flow.workflow import NewWorkflow
from jobmaster.web.api.operation import decode_body
from jobmaster.web.api.workflow_body import WorkflowBody, flow_of
from tests.unit.client.test_workflows import charge, compiled, handlers, refund, ship


def name_of(function: Any) -> str:
    handler = handlers.of(function)
    assert handler is not None
    return handler.name


async def of_json(*steps: dict[str, Any]) -> NewWorkflow:
    body = decode_body(WorkflowBody, msgspec.json.encode({"name": "order", "steps": steps}))
    return await compiled(flow_of(body.steps))


def rows(workflow: NewWorkflow) -> list[Any]:
    """The steps without the id of their workflow."""
    return [
        (row._replace(headers=b""), msgspec.structs.replace(decode_headers(row.headers), workflow=None))
        for row in workflow.steps
    ]


async def test_json_and_python_make_the_same_rows() -> None:
    small = step(call(charge, 1), name="small", undo=call(refund, previous.number))
    flow = chain(
        small,
        branch(
            result_of(small).number,
            {1: step(call(ship, "a"), name="paid", tags=["eu"])},
            otherwise=step(call(ship, "b"), name="wide", delay=5, timeout=2.5),
        ),
        step(
            call(ship, count=2, label=result_of(small).lines[0]),
            name="again",
            wait_for=signal("paid", timeout=60, on_timeout="run"),
            tenant="acme",
        ),
    ).on_failure(step(call(refund, 2), name="alert"))
    number = {"step": "small", "path": ["number"]}
    choice = {"result": number, "values": [1]}
    made = await of_json(
        {"name": "small", "handler": name_of(charge), "args": {"order": 1},
         "undo": {"handler": name_of(refund), "results": {"number": number}}},
        {"name": "paid", "handler": name_of(ship), "args": {"label": "a"}, "choice": choice, "tags": ["eu"]},
        {"name": "wide", "handler": name_of(ship), "args": {"label": "b"}, "choice": {**choice, "otherwise": True},
         "delay": 5, "timeout": 2.5},
        {"name": "again", "handler": name_of(ship), "args": {"count": 2}, "after": ["paid", "wide"],
         "wait_for": {"key": "paid", "timeout": 60, "on_timeout": "run"}, "tenant": "acme",
         "results": {"label": {"step": "small", "path": ["lines", 0]}}},
        {"name": "alert", "handler": name_of(refund), "args": {"number": 2}, "runs_on": "failure"},
    )  # fmt: skip
    assert rows(made) == rows(await compiled(flow))


async def test_a_wrong_workflow_is_one_sentence() -> None:
    paid = {"name": "paid", "handler": name_of(refund), "args": {"number": 1}}
    for steps, words in (
        ([paid, paid], "two steps have the name 'paid'"),
        ([{**paid, "after": ["payed"]}], "names step 'payed', which is not in the workflow"),
        ([{**paid, "results": {"number": {"step": "paid"}}}], "argument 'number' is in 'args' and in 'results'"),
        ([{**paid, "after": ["paid"]}], "cycle"),
        ([{**paid, "args": {}}], "missing argument 'number'"),
        ([{**paid, "runs_on": "undo"}], "Invalid enum value 'undo'"),
    ):
        with pytest.raises(InputError, match=words):
            await of_json(*steps)
