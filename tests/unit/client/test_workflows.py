"""The definition of a workflow: the graph that calls make, results as arguments, and what is refused before it is stored."""

from __future__ import annotations

import json
import re
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from jobmaster.client.handler_lookup import HandlerLookup
from jobmaster.client.signals.wait import signal
from jobmaster.client.submitter import SubmitChecks
from jobmaster.client.workflows.definition import Flow, branch, chain, group, previous, result_of, step
from jobmaster.client.workflows.graph_compiler import DEPTH_MAX, STEPS_MAX, WAITS_MAX, Compiler
from jobmaster.client.workflows.workflows import Workflows
from jobmaster.clock import SystemClock, new_id
from jobmaster.codec import decode_headers
from jobmaster.handlers import Handlers, call
from jobmaster.model.errors import InputError, InvalidArguments, Refused, Unavailable, UnknownHandler, WaitTimeout
from jobmaster.model.flow.workflow import NewStep, NewWorkflow, StepView, WorkflowState, WorkflowView
from jobmaster.model.ids import text
from jobmaster.model.job import SignalWait
from jobmaster.settings.model import ClusterSettings

handlers = Handlers()


class Payment(msgspec.Struct):
    number: int
    lines: list[str]


@handlers.job
def charge(order: int) -> Payment:
    return Payment(order, [])


@handlers.job
def refund(number: int) -> None: ...


@handlers.job(priority="high", lane="mail")
def ship(label: str, count: int = 1) -> str:
    return label


@handlers.job
def gather(values: list[Any]) -> None: ...


@handlers.job
def is_large(order: int) -> bool:
    return order > 100


class _NoAgents:
    async def handlers(self) -> dict[str, Any]:
        return {}


async def compiled(flow: Flow, name: str = "order") -> NewWorkflow:
    settings, clock = ClusterSettings(cluster="test"), SystemClock()
    checks = SubmitChecks(settings, HandlerLookup(handlers, cast(Any, _NoAgents()), settings.jobs, clock), clock)
    return await Compiler(flow, new_id()[:12] + bytes(4), checks, settings.limits.args_bytes).compile(name)


def edges(workflow: NewWorkflow) -> dict[str, list[str]]:
    names = {row.number: row.name for row in workflow.steps}
    return {row.name: [names[parent] for parent in row.parents] for row in workflow.steps}


def rows(workflow: NewWorkflow) -> dict[str, NewStep]:
    return {row.name: row for row in workflow.steps}


async def test_a_chain_runs_one_after_another_and_a_group_side_by_side() -> None:
    found = await compiled(
        chain(call(charge, 1), group(call(refund, 1), chain(call(ship, "a"), call(ship, "b"))), call(is_large, 1))
    )
    assert edges(found) == {
        "charge": [], "refund": ["charge"], "ship": ["charge"], "ship 2": ["ship"], "is_large": ["refund", "ship 2"],
    }  # fmt: skip
    assert [row.number for row in found.steps] == [1, 2, 3, 4, 5]


async def test_a_row_has_what_its_handler_and_its_step_say() -> None:
    found = await compiled(
        chain(step(call(ship, "a"), name="send", tags=["x"], timeout=5, delay=1.5), step(call(ship, "b"), lane="other"))
    )
    send, second = found.steps
    assert (send.priority, send.lane, send.delay_us, send.args) == (4, "mail", 1_500_000, b'{"label":"a"}')
    assert (second.lane, second.name) == ("other", "ship")
    headers = decode_headers(send.headers)
    assert (headers.tags, headers.timeout_seconds, headers.workflow) == (("x",), 5.0, (text(found.id), 1))


async def test_results_are_cut_out_of_the_arguments_and_make_an_order() -> None:
    pay = step(call(charge, 1))
    found = rows(await compiled(group(step(call(ship, result_of(pay).lines[0], count=result_of(pay).number)), pay)))
    row = found["ship"]
    assert row.args == b'{"label":,"count":}'
    assert json.loads(row.refs) == [[18, 1, ["number"]], [9, 1, ["lines", "0"]]]
    assert row.parents == (1,)
    assert (found["charge"].kept, row.kept) == (True, False)


async def test_places_are_those_of_the_encoded_arguments() -> None:
    pay, other = step(call(charge, 1)), step(call(charge, 2), name="other")
    values: Any = [{"a": result_of(other)}, 5, result_of(pay), ["x", result_of(other).number]]
    row = rows(await compiled(chain(group(pay, other), call(gather, values))))["gather"]
    data = row.args
    for at, number, path in json.loads(row.refs):
        data = data[:at] + json.dumps([number, *path]).encode() + data[at:]
    assert json.loads(data) == {"values": [{"a": [2]}, 5, [1], ["x", [2, "number"]]]}


async def test_previous_is_the_result_before_or_a_list_of_them() -> None:
    found = rows(
        await compiled(
            chain(
                call(charge, 1),
                call(refund, previous.number),
                group(call(ship, "a"), call(charge, 2)),
                call(gather, previous),
            )
        )
    )
    assert json.loads(found["refund"].refs) == [[10, 1, ["number"]]]
    assert found["gather"].args == b'{"values":[,]}'
    assert [number for _, number, _ in json.loads(found["gather"].refs)] == [4, 3]


async def test_a_branch_depends_on_a_value() -> None:
    decide = step(call(is_large, 7))
    found = rows(
        await compiled(
            chain(branch(decide, {True: call(charge, 1), False: call(refund, 1)}, call(ship, "x")), call(gather, []))
        )
    )
    assert json.loads(found["charge"].choice or "") == {"step": 1, "path": [], "in": ["true"], "else": False}
    assert json.loads(found["ship"].choice or "") == {"step": 1, "path": [], "in": ["true", "false"], "else": True}
    assert found["gather"].parents == (2, 3, 4)
    assert found["is_large"].kept
    found = rows(await compiled(chain(branch(call(is_large, 7), {True: call(charge, 1)}), call(gather, []))))
    assert found["gather"].parents == (1, 2), "without otherwise it goes on when no case is taken"
    pay = step(call(charge, 1))
    found = rows(await compiled(chain(pay, branch(result_of(pay).number, {1: call(refund, 1)}))))
    assert json.loads(found["refund"].choice or "")["path"] == ["number"]


async def test_what_waits_for_a_failure_or_an_end_has_every_step_before_it() -> None:
    flow = chain(call(charge, 1), call(ship, "a")).on_failure(call(refund, 1)).at_end(call(gather, []))
    found = await compiled(flow.then(call(is_large, 1)))
    assert edges(found) == {
        "charge": [], "ship": ["charge"], "refund": ["charge", "ship"], "gather": ["charge", "ship", "refund"],
        "is_large": ["ship"],
    }  # fmt: skip
    assert {row.name: row.runs_on for row in found.steps} == {
        "charge": "success", "ship": "success", "refund": "failure", "gather": "end", "is_large": "success",
    }  # fmt: skip


async def test_a_compensation_is_a_step_that_knows_what_it_undoes() -> None:
    pay = step(call(charge, 1), undo=call(refund, previous.number))
    found = await compiled(chain(pay, call(ship, "a")))
    (undo,) = [row for row in found.steps if row.runs_on == "undo"]
    assert (undo.number, undo.name, undo.parents) == (3, "undo charge", (1,))
    assert json.loads(undo.refs) == [[10, 1, ["number"]]]
    assert rows(found)["charge"].kept


async def test_after_adds_steps_that_are_elsewhere() -> None:
    first = step(call(charge, 1))
    found = await compiled(step(call(ship, "a"), after=[first]))
    assert edges(found) == {"charge": [], "ship": ["charge"]}


def _cycle() -> Flow:
    first, second = step(call(charge, 1)), step(call(ship, "a"))
    return chain(first, second, first)


def _missing() -> Flow:
    return chain(call(refund, result_of(step(call(charge, 1))).number))


def _missing_of_undo() -> Flow:
    return chain(step(call(ship, "a"), undo=call(refund, result_of(step(call(charge, 1))).number)))


def _undo_of_another() -> Flow:
    """The other one need not have ended when this one is undone."""
    pay = step(call(charge, 1))
    return group(step(call(ship, "a"), undo=call(refund, result_of(pay).number)), pay)


@pytest.mark.parametrize(
    ("flow", "error", "message"),
    [
        (_undo_of_another, InputError, "step 'undo ship': it needs the result of step 'charge', which need not have"),
        (_cycle, InputError, "cycle: each of these steps waits for another one: charge, ship"),
        (_missing, InputError, "'refund' depends on step 'charge', which is not in the workflow"),
        (_missing_of_undo, InputError, "step 'undo ship': it needs the result of step 'charge', which is not"),
        (lambda: chain(call("nothing.such", a=1)), UnknownHandler, "step 'nothing.such'"),
        (lambda: chain(call(charge, cast(Any, "x"))), InvalidArguments, "step 'charge': handler"),
        (lambda: chain(call(charge, 1), cast(Any, call)(ship, previous, more=1)), InvalidArguments, "argument 'more'"),
        (lambda: chain(call(refund, previous)), InputError, "step 'refund': previous is the result of the step before"),
        (lambda: chain(group(call(charge, 1), call(ship, "a")), call(refund, previous.number)), InputError, "is a list"),
        (lambda: chain(step(call(charge, 1), name="a"), step(call(charge, 1), name="a")), InputError, "the name 'a'"),
        (lambda: chain(step(call(charge, 1), name="a\n")), InputError, "the name of a step"),
        (lambda: chain(step(call(charge, 1), delay=-1)), InputError, "'delay' of step 'charge'"),
        (lambda: chain(step(call(charge, 1), delay=float("nan"))), InputError, "'delay' of step 'charge'"),
        (lambda: chain(step(call(charge, 1), timeout=0)), InputError, "step 'charge': 'timeout'"),
        (lambda: chain(*(call(charge, 1) for _ in range(DEPTH_MAX + 1))), InputError, f"at most {DEPTH_MAX} steps one after"),
        (lambda: group(*(call(charge, 1) for _ in range(STEPS_MAX + 1))), InputError, f"at most {STEPS_MAX} steps"),
        (lambda: branch(call(is_large, 1), {cast(Any, (1, 2)): call(charge, 1)}), InputError, "a case of a branch is"),
    ],
)  # fmt: skip
async def test_what_could_never_work_is_refused(flow: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        await compiled(flow())


@pytest.mark.parametrize(
    "make",
    [
        lambda: step(cast(Any, charge)),
        lambda: step(call(charge, 1), undo=cast(Any, refund)),
        lambda: step(call(charge, 1), after=cast(Any, ["charge"])),
        lambda: cast(Any, step)(call(charge, 1), retries=3),
        chain,
        lambda: group(cast(Any, charge)),
        lambda: branch(call(is_large, 1), {}),
        lambda: branch(cast(Any, previous), {True: call(charge, 1)}),
        lambda: branch(cast(Any, chain(call(charge, 1), call(charge, 2))), {True: call(charge, 1)}),
        lambda: result_of(cast(Any, call(charge, 1))),
        lambda: previous[1.5],
    ],
)  # fmt: skip
def test_a_part_of_another_kind_is_refused_where_it_is_written(make: Any) -> None:
    with pytest.raises(InputError):
        make()


def test_a_result_has_no_value_yet() -> None:
    with pytest.raises(TypeError, match="use branch"):
        bool(previous)
    with pytest.raises(TypeError, match="pass it on"):
        list(previous)


class _Answers:
    """The master's part for workflows: one answer after the other."""

    def __init__(self, *answers: WorkflowState | Exception) -> None:
        self.answers = list(answers)

    async def get(self, of: bytes) -> WorkflowView | None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return WorkflowView(
            id=UUID(bytes=of),
            name="w",
            state=answer,
            started_us=1,
            ended_us=None,
            steps_total=1,
            steps_ended=0,
            steps_failed=0,
        )

    async def steps(self, of: bytes) -> tuple[StepView, ...]:
        return ()


class _Open:
    """A cluster that is closed after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def _refuse_closed(self) -> None:
        self.looks -= 1
        if self.looks < 0:
            raise Refused("closed")


def followed(answers: _Answers, looks: int = 100) -> Workflows:
    checks: Any = None
    return Workflows(cast(Any, _Open(looks)), cast(Any, answers), checks, SystemClock(), 1)


async def test_a_wait_goes_on_while_the_master_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    away = Unavailable("away")
    answers = _Answers(WorkflowState.RUNNING, away, away, WorkflowState.RUNNING, away, WorkflowState.FAILED)
    assert (await followed(answers).wait(Workflows.new_id())).state is WorkflowState.FAILED
    assert caplog.text.count("waiting goes on") == 2
    with pytest.raises(Unavailable):
        await followed(_Answers(away)).wait(Workflows.new_id())
    with pytest.raises(WaitTimeout):
        await followed(_Answers(WorkflowState.RUNNING, away)).wait(Workflows.new_id(), timeout=0.02)
    with pytest.raises(Refused):
        await followed(_Answers(WorkflowState.RUNNING, away), 3).wait(Workflows.new_id())


async def test_groups_that_wait_for_each_other_are_bounded() -> None:
    """The end of each step looks at the steps that are left of those that the next ones wait for."""

    def side(size: int, name: str) -> Flow:
        return group(*(step(call(is_large, 1), name=f"{name} {number}") for number in range(size)))

    found = await compiled(chain(side(158, "a"), side(158, "b")))
    assert sum(len(row.parents) for row in found.steps) == 158 * 158 <= WAITS_MAX
    with pytest.raises(InputError, match="the steps wait for one another 25281 times, the limit is 25000"):
        await compiled(chain(side(159, "a"), side(159, "b")))
    await compiled(chain(side(400, "a"), call(is_large, 1), side(400, "b")))


async def test_the_same_part_in_two_flows_is_not_changed() -> None:
    first = chain(call(charge, 1), call(ship, "a"))
    first.then(call(refund, 1)).on_failure(call(refund, 2))
    assert edges(await compiled(first)) == {"charge": [], "ship": ["charge"]}


async def test_a_step_waits_for_a_signal_and_its_compensation_does_not() -> None:
    wait = signal("paid:17", timeout=60)
    made = rows(await compiled(step(call(charge, 1), name="paid", undo=call(refund, 1), wait_for=wait)))
    headers = {name: decode_headers(row.headers) for name, row in made.items()}
    assert headers["paid"].signal == SignalWait(key="paid:17", seconds=60.0)
    assert headers["paid"].requires == ("signals", "workflows"), "an older agent leaves it to others"
    assert headers["undo paid"].signal is None
    with pytest.raises(InputError, match="step 'charge': 'wait_for' must be a signal, not 'paid:17'"):
        await compiled(step(call(charge, 1), wait_for=cast(Any, "paid:17")))
