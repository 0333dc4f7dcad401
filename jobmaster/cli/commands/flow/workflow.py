"""``jobmaster workflow``: list workflows, show their steps as a tree, cancel and retry them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.operator_log import operator_name
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, clean, emit_data, emit_record, emit_rows
from jobmaster.model.flow.workflow import RunsOn, StepView, WorkflowState, WorkflowView
from jobmaster.model.job_view import iso

if TYPE_CHECKING:
    from jobmaster.client.workflows.workflows import Workflows

COLUMNS = (
    Column("ID", "id"),
    Column("NAME", "name"),
    Column("STATE", "state"),
    Column("STEPS", "steps_total", right=True),
    Column("ENDED", "steps_ended", right=True),
    Column("FAILED", "steps_failed", right=True),
    Column("STARTED (UTC)", "started_at"),
    Column("ENDED (UTC)", "ended_at"),
)


@click.group("workflow")
def workflow_group() -> None:
    """List, show, cancel and retry workflows."""


@workflow_group.command("list")
@click.option("--state", multiple=True, help="Only workflows in this state; may be given again.")
@click.option("--name", help="Only workflows of this name.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--before", help="Only workflows older than this id: the next page.")
@pass_invocation
def list_(invocation: Invocation, state: tuple[str, ...], name: str | None, limit: int, before: str | None) -> None:
    """List workflows, the newest first. STEPS, ENDED and FAILED do not count compensations.

    \b
    Examples:
      jobmaster workflow list --state failed
      jobmaster workflow list --name order -o json
    """
    views = run_async(
        _with_workflows(
            invocation, lambda workflows: workflows.list(state=state or None, name=name, before=before, limit=limit)
        )
    )
    emit_rows([_record(view) for view in views], COLUMNS, invocation.output, empty="no workflows")


@workflow_group.command("show")
@click.argument("workflow")
@pass_invocation
def show(invocation: Invocation, workflow: str) -> None:
    """Show one workflow and its steps, each below the last of the steps that it waits for.

    \b
    Example:
      jobmaster workflow show 0198f3a2-7c1e-7b44-9d2f-3f5b00000000
    """
    _emit(invocation, run_async(_with_workflows(invocation, lambda workflows: workflows.get(workflow))))


@workflow_group.command("cancel")
@click.argument("workflow")
@pass_invocation
def cancel(invocation: Invocation, workflow: str) -> None:
    """Begin no further step, cancel the steps that run, and undo what was done.

    \b
    Example:
      jobmaster workflow cancel 0198f3a2-7c1e-7b44-9d2f-3f5b00000000
    """
    actor = operator_name()
    _emit(invocation, run_async(_with_workflows(invocation, lambda workflows: workflows.cancel(workflow, actor=actor))))


@workflow_group.command("retry")
@click.argument("workflow")
@pass_invocation
def retry(invocation: Invocation, workflow: str) -> None:
    """Resume a workflow that has failed or was cancelled. Its failed steps get new jobs; what has succeeded stays.

    \b
    Example:
      jobmaster workflow retry 0198f3a2-7c1e-7b44-9d2f-3f5b00000000
    """
    actor = operator_name()
    _emit(invocation, run_async(_with_workflows(invocation, lambda workflows: workflows.retry(workflow, actor=actor))))


def _emit(invocation: Invocation, view: WorkflowView) -> None:
    record = _record(view)
    if emit_data({**record, "steps": [_step(step) for step in view.steps]}, invocation.output):
        return
    emit_record(record, invocation.output)
    click.echo()
    for line in tree(view.steps):
        click.echo(clean(line))


def tree(steps: Sequence[StepView]) -> list[str]:
    """One line for each step, below the parent that comes last; further parents are named."""
    lines: list[str] = []
    names = {step.number: step.name for step in steps}
    depth: dict[int, int] = {}
    children: dict[int, list[StepView]] = {}
    for step in steps:
        children.setdefault(_under(step, depth), []).append(step)
        depth[step.number] = depth.get(_under(step, depth), 0) + 1

    def add(under: int, indent: str) -> None:
        below = children.get(under, [])
        for step in below:
            last = step is below[-1]
            others = [names[parent] for parent in step.parents if parent != under]
            lines.append(indent + ("`- " if last else "|- ") + _line(step, others))
            add(step.number, indent + ("   " if last else "|  "))

    add(0, "")
    return lines


def _under(step: StepView, depth: dict[int, int]) -> int:
    """The parent that a step is shown below: the one with most steps before it."""
    return max(step.parents, key=lambda parent: (depth.get(parent, 0), parent), default=0)


def _line(step: StepView, others: Sequence[str]) -> str:
    words = [step.name, step.state.value]
    if step.runs_on in (RunsOn.FAILURE, RunsOn.END):
        words.append(f"(on {step.runs_on.value})")
    if step.tries > 1:
        words.append(f"({step.tries} tries)")
    if others:
        words.append(f"(also after {', '.join(others)})")
    if step.job is not None:
        words.append(str(step.job))
    return "  ".join(words) + (f": {step.error}" if step.error else "")


def _record(view: WorkflowView) -> dict[str, Any]:
    return {
        "id": str(view.id),
        "name": view.name,
        "state": WorkflowState(view.state).value,
        "steps_total": view.steps_total,
        "steps_ended": view.steps_ended,
        "steps_failed": view.steps_failed,
        "started_at": iso(view.started_us),
        "ended_at": iso(view.ended_us),
    }


def _step(step: StepView) -> dict[str, Any]:
    return {
        "number": step.number,
        "name": step.name,
        "state": step.state.value,
        "runs_on": step.runs_on.value,
        "parents": list(step.parents),
        "handler": step.handler,
        "job": None if step.job is None else str(step.job),
        "tries": step.tries,
        "error": step.error,
    }


async def _with_workflows(invocation: Invocation, work: Callable[[Workflows], Coroutine[Any, Any, Any]]) -> Any:
    from jobmaster.wiring import open_cluster

    async with await open_cluster(invocation.settings) as cluster:
        return await work(cluster.workflows)
