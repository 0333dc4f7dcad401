"""Schedules, batches, workflows, and what keeps jobs from starting: limits, breakers, pauses, tenants."""

from __future__ import annotations

from starlette.responses import Response

from jobmaster.model.flow.workflow import WorkflowView
from jobmaster.web.pages.map_pages import id_of
from jobmaster.web.pages.site import View

LISTED_MAX = 200
FIRES = 60
UPCOMING = 5


async def schedules_page(view: View) -> Response:
    """``/schedules``."""
    text = view.query.get("name", "").lower()
    everything = await view.site.shared("schedules", view.cluster.schedules.list)
    found = [each for each in everything if text in each.name.lower() or text in each.handler.lower()]
    return view.page(
        "schedules.html",
        "schedules",
        refresh_seconds=10,
        schedules=found[:LISTED_MAX],
        total=len(found),
        listed_max=LISTED_MAX,
    )


async def schedule_page(view: View) -> Response:
    """``/schedules/{name}``."""
    name = view.request.path_params["name"]
    schedules = view.cluster.schedules
    schedule = await view.site.shared(("schedule", name), lambda: schedules.get(name))
    upcoming = await view.site.shared(("upcoming", name), lambda: schedules.next(name, UPCOMING))
    fires = await view.site.shared(("fires", name), lambda: schedules.fires(name, limit=FIRES))
    return view.page(
        "schedule.html", "schedules", refresh_seconds=10, schedule=schedule, upcoming=upcoming, fires=fires
    )


async def batches_page(view: View) -> Response:
    """``/batches``."""
    before = view.query.get("before")
    batches = await view.site.shared(
        ("batches", before), lambda: view.cluster.batches.list(before=before, limit=LISTED_MAX)
    )
    return view.page(
        "batches.html",
        "batches",
        refresh_seconds=None if before else 5,
        batches=batches,
        more=len(batches) == LISTED_MAX,
    )


async def batch_page(view: View) -> Response:
    """``/batches/{id}``."""
    batch_id = id_of(view)
    batch = await view.site.shared(("batch", batch_id), lambda: view.cluster.batches.get(batch_id))
    return view.page("batch.html", "batches", refresh_seconds=None if batch.state.final else 5, batch=batch)


async def workflows_page(view: View) -> Response:
    """``/workflows``."""
    before = view.query.get("before")
    workflows = await view.site.shared(
        ("workflows", before), lambda: view.cluster.workflows.list(before=before, limit=LISTED_MAX)
    )
    return view.page(
        "workflows.html",
        "workflows",
        refresh_seconds=None if before else 5,
        workflows=workflows,
        more=len(workflows) == LISTED_MAX,
    )


async def workflow_page(view: View) -> Response:
    """``/workflows/{id}``."""
    workflow_id = id_of(view)
    workflow = await view.site.shared(("workflow", workflow_id), lambda: view.cluster.workflows.get(workflow_id))
    return view.page(
        "workflow.html",
        "workflows",
        refresh_seconds=None if workflow.state.final else 3,
        workflow=workflow,
        levels=levels_of(workflow),
    )


def levels_of(workflow: WorkflowView) -> list[list[int]]:
    """Numbers of the steps by their distance from the start: a step stands behind the last of its parents."""
    parents = {step.number: step.parents for step in workflow.steps}
    depth: dict[int, int] = {}
    for _ in parents:
        before = len(depth)
        for number, above in parents.items():
            if number not in depth and all(each in depth or each not in parents for each in above):
                depth[number] = 1 + max((depth.get(each, -1) for each in above), default=-1)
        if len(depth) == before:
            break
    levels: list[list[int]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for number in sorted(depth):
        levels[depth[number]].append(number)
    return levels


async def limits_page(view: View) -> Response:
    """``/limits``."""
    cluster = view.cluster
    return view.page(
        "limits.html",
        "limits",
        refresh_seconds=5,
        limits=await view.site.shared("limits", cluster.limits.list),
        breakers=await view.site.shared("breakers", cluster.breakers.list),
        pauses=await view.site.shared("pauses", cluster.pauses),
        waiting=await view.site.shared("signals", cluster.signals.waiting),
        locks=await view.site.shared("locks", cluster.locks),
    )
