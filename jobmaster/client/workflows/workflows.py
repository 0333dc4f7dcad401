"""``cluster.workflows``: start workflows, follow them, and what a person does to them."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import msgspec

from jobmaster.client.submitter import SubmitChecks
from jobmaster.client.workflows.definition import Flow, Step, StepOptions, as_flow, step
from jobmaster.client.workflows.graph_compiler import Compiler
from jobmaster.clock import Clock, new_id
from jobmaster.handlers import Call, check_name
from jobmaster.model import ids
from jobmaster.model.errors import Conflict, InputError, NotFound, Unavailable, WaitTimeout
from jobmaster.model.flow.workflow import WorkflowState, WorkflowView
from jobmaster.ports.workflows import WorkflowsPort

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster

_log = logging.getLogger(__name__)
LISTED_MAX = 1000
_INDEX_BYTES = 4
"""Last bytes of an id, which number the jobs of a workflow."""
CALLBACKS = ("on_success", "on_failure")
_LOOK_SECONDS, _LOOK_SECONDS_MAX = 0.005, 1.0
_LOOK_SHARE = 0.1
"""Of the time that a wait has taken: how soon it looks again."""

WorkflowRef = UUID | str | bytes | WorkflowView
"""A workflow by its id, or as it was read."""


class Workflows:
    """The workflows of a cluster. Made by ``Cluster``.

    ::

        flow = chain(step(call(charge, 7), undo=call(refund, 7)), call(ship, 7)).on_failure(call(alert, 7))
        started = await cluster.workflows.start("order", flow)
        ended = await cluster.workflows.wait(started, timeout=60)
    """

    def __init__(
        self, cluster: Cluster, port: WorkflowsPort, checks: SubmitChecks, clock: Clock, args_bytes: int
    ) -> None:
        self._cluster = cluster
        self._port = port
        self._checks = checks
        self._clock = clock
        self._args_bytes = args_bytes

    async def start(self, name: str, flow: Flow | Call[Any], *, workflow_id: UUID | None = None) -> UUID:
        """Check a workflow, store it, and start the steps that wait for no other one: a committed write of the master.

        A step becomes a job when the steps before it have ended, in the transaction that records the last of these ends.

        Args:
            name: for lists; 1 to 200 printable characters.
            flow: what runs; see ``step``, ``chain``, ``group`` and ``branch``.
            workflow_id: an id that ``new_id`` made, to be able to start the same workflow again after ``OutcomeUnknown``.

        Returns:
            The id of the workflow.

        Raises:
            InputError: it could never work (a cycle, a missing step, an unknown handler, arguments, options, sizes);
                nothing was stored.
            Conflict: the id belongs to a workflow with another name or other steps.
            OutcomeUnknown: call it again with the same ``workflow_id``.
            Unavailable: the master cannot be reached; nothing was stored.
        """
        of = (self.new_id() if workflow_id is None else _checked_id(workflow_id)).bytes
        with self._cluster._publishing(None) as span:
            compiled = await Compiler(as_flow(flow), of, self._checks, self._args_bytes).compile(name)
            for lane in sorted({row.lane for row in compiled.steps}):
                await self._cluster._router().check_served(lane)
            if await self._port.start(compiled) is None:
                raise Conflict(
                    f"workflow {ids.text(of)} was started with another name or other steps",
                    hint="new_id() makes an id for each workflow; only the same start may be sent again under it",
                )
            if span is not None:
                span.counted(len(compiled.steps))
        return UUID(bytes=of)

    async def start_with_callbacks(self, call: Call[Any], options: Mapping[str, Any]) -> bytes:
        """A submit with ``on_success`` or ``on_failure``: a workflow of one step and these; the id of the step's job."""
        given = {name: value for name, value in options.items() if name not in CALLBACKS}
        if other := given.keys() - StepOptions.__annotations__.keys():
            raise InputError(
                f"a submit with {' or '.join(CALLBACKS)} has no option {', '.join(sorted(map(repr, other)))}",
                hint=f"valid are {', '.join(StepOptions.__annotations__)}; or start a workflow",
            )
        first: Step[Any] = step(call, **cast("StepOptions", given))
        flow: Flow = first
        if options.get("on_failure") is not None:
            flow = flow.on_failure(options["on_failure"])
        if options.get("on_success") is not None:
            flow = flow.then(options["on_success"])
        of = await self.start(first.label, flow)
        job = (await self._port.steps(of.bytes))[0].job
        assert job is not None, "the first step waits for no other one"
        return job.bytes

    @staticmethod
    def new_id() -> UUID:
        """A fresh id for ``start``."""
        return UUID(bytes=new_id()[:-_INDEX_BYTES] + bytes(_INDEX_BYTES))

    async def get(self, workflow: WorkflowRef) -> WorkflowView:
        """A workflow with its steps; ``NotFound`` when there is none of this id, or its retention is over."""
        return await self._with_steps(await self._read(_id_of(workflow)))

    async def _with_steps(self, view: WorkflowView) -> WorkflowView:
        return msgspec.structs.replace(view, steps=await self._port.steps(view.id.bytes))

    async def _read(self, of: bytes) -> WorkflowView:
        """A workflow without its steps."""
        found = await self._port.get(of)
        if found is None:
            raise NotFound(f"there is no workflow {ids.text(of)}", hint="jobmaster workflow list")
        return found

    async def list(
        self,
        *,
        state: WorkflowState | str | Collection[WorkflowState | str] | None = None,
        name: str | None = None,
        before: WorkflowRef | None = None,
        limit: int = 100,
    ) -> builtins.list[WorkflowView]:
        """Workflows without their steps, the newest first.

        Args:
            state, name: only those.
            before: only those that are older; for the next page.
            limit: at most 1000.
        """
        if not 1 <= limit <= LISTED_MAX:
            raise InputError(f"'limit' must be 1 to {LISTED_MAX}, not {limit!r}")
        older = None if before is None else _id_of(before)
        return await self._port.list(limit, states=_states(state), name=name, before=older)

    async def wait(self, workflow: WorkflowRef, *, timeout: float | None = None) -> WorkflowView:
        """Wait until the workflow has ended, compensations included. While the master does not answer the wait goes on.

        Raises:
            WaitTimeout: it has not ended within ``timeout`` seconds; it goes on.
            NotFound: there is none of this id.
            Unavailable: the master did not answer the first look.
        """
        of, began, silent = _id_of(workflow), self._clock.boottime(), False
        view = await self._read(of)
        while not view.state.final:
            waited = self._clock.boottime() - began
            pause = min(max(waited * _LOOK_SHARE, _LOOK_SECONDS), _LOOK_SECONDS_MAX)
            if timeout is not None:
                if waited >= timeout:
                    raise WaitTimeout(f"workflow {view.id} is {view.state.value} after {timeout:g} s; it goes on")
                pause = min(pause, timeout - waited)
            await asyncio.sleep(pause)
            self._cluster._refuse_closed()
            try:
                view = await self._read(of)
            except Unavailable as error:
                if not silent:
                    _log.warning("waiting goes on although the master does not answer: %s", error)
                silent = True
            else:
                silent = False
        return await self._with_steps(view)

    async def cancel(self, workflow: WorkflowRef, *, actor: str = "client") -> WorkflowView:
        """Begin no further step, cancel the jobs of the steps that run, and then undo what was done. What runs after a
        failure or at the end still runs.

        Raises:
            Conflict: it has ended, or undoes its steps already.
            NotFound: there is none of this id.
        """
        of = _id_of(workflow)
        cancelled, jobs = await self._port.cancel(of, check_name(actor, "'actor'"))
        view = await self._read(of)
        if not cancelled and view.state is not WorkflowState.CANCELLING:
            raise Conflict(f"workflow {view.id} is {view.state.value}", hint="only one that runs can be cancelled")
        await asyncio.gather(*map(self._cluster._job_lookup.notify_owner, jobs))  # the requests are stored
        return await self.get(of)

    async def retry(self, workflow: WorkflowRef, *, actor: str = "client") -> WorkflowView:
        """Resume a workflow that has failed or was cancelled: its failed steps get new jobs, and what has succeeded stays.
        What runs after a failure or at the end is decided again. One whose compensation has failed goes on with that one.

        Raises:
            Conflict: it has not failed, or all of it was undone.
            NotFound: there is none of this id.
        """
        resumed = await self._port.retry(_id_of(workflow), check_name(actor, "'actor'"))
        view = await self.get(workflow)
        if not resumed:
            undone = view.state.final and view.state is not WorkflowState.SUCCEEDED
            raise Conflict(
                f"workflow {view.id} is {view.state.value}" + (", and its steps were undone" if undone else ""),
                hint="start a new one" if undone else "only one that has failed or was cancelled can be retried",
            )
        return view


def _checked_id(workflow_id: UUID) -> UUID:
    given = workflow_id.bytes
    if given[6] >> 4 != 7 or given[-_INDEX_BYTES:] != bytes(_INDEX_BYTES):
        raise InputError(f"{workflow_id!r} is no id of a workflow", hint="use cluster.workflows.new_id()")
    return workflow_id


def _id_of(workflow: WorkflowRef) -> bytes:
    if isinstance(workflow, WorkflowView):
        return workflow.id.bytes
    try:
        return bytes(ids.parse(workflow))
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"workflow {workflow!r} is not an id: {error}") from None


def _states(state: WorkflowState | str | Collection[WorkflowState | str] | None) -> builtins.list[WorkflowState] | None:
    if state is None:
        return None
    try:
        return [WorkflowState(str(one).upper()) for one in ([state] if isinstance(state, str) else state)]
    except ValueError as error:
        valid = ", ".join(one.value for one in WorkflowState)
        raise InputError(str(error), hint=f"valid are {valid}") from None
