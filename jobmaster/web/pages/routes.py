"""The routes of the pages; and the style sheet, the scripts and the icon: files of this package, read once."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from jobmaster.model.errors import NotFound
from jobmaster.rules.access import Scope
from jobmaster.web.guard import GuardedRoute
from jobmaster.web.pages import actions, bulk_pages, flow_pages, job_pages, map_pages, watch_pages
from jobmaster.web.pages.site import Pages

FOLDER = Path(__file__).parent.parent / "static"
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_CACHE = "private, max-age=0, must-revalidate"
"""A browser asks each time and gets 304, so that an upgrade of the program never mixes scripts of two versions."""


def page_routes() -> list[GuardedRoute]:
    """The routes of the pages of one application."""
    pages = Pages()
    return [
        GuardedRoute("/static/{name}", _static, scope=Scope.VIEW),
        pages.route("/", map_pages.overview),
        pages.route("/stream", map_pages.stream),
        pages.route("/stream/samples", map_pages.stream_samples),
        pages.route("/stream/history", map_pages.stream_history),
        pages.route("/map", map_pages.map_page),
        pages.route("/agents/{id}", map_pages.agent_page),
        pages.route("/agents/{id}/drain", actions.drain_agent, Scope.SERVERS, "POST"),
        pages.route("/buckets/{id}", map_pages.bucket_page),
        pages.route("/buckets/{id}/{action}", actions.change_bucket, Scope.SERVERS, "POST"),
        pages.route("/jobs", job_pages.jobs_page),
        pages.route("/jobs.csv", job_pages.jobs_csv),
        pages.route("/jobs/{id}", job_pages.job_page),
        pages.route("/jobs/{id}/retry", actions.retry_job, Scope.JOBS, "POST"),
        pages.route("/jobs/{id}/cancel", actions.cancel_job, Scope.JOBS, "POST"),
        pages.route("/jobs/{id}/run-now", actions.run_job_now, Scope.JOBS, "POST"),
        pages.route("/jobs/{id}/reschedule", actions.reschedule_job, Scope.JOBS, "POST"),
        pages.route("/bulk", bulk_pages.preview_page, Scope.JOBS),
        pages.route("/bulk", bulk_pages.start, Scope.JOBS, "POST", effect_at="/operations"),
        pages.route("/bulk/{id}", bulk_pages.bulk_page),
        pages.route("/bulk/{id}/cancel", bulk_pages.cancel, Scope.JOBS, "POST"),
        pages.route("/held", watch_pages.held_page),
        pages.route("/failures", watch_pages.failures_page),
        pages.route("/rescues", watch_pages.rescues_page),
        pages.route("/schedules", flow_pages.schedules_page),
        pages.route("/schedules/{name:path}", flow_pages.schedule_page),
        pages.route("/schedules/{name:path}/{action}", actions.change_schedule, Scope.SCHEDULES, "POST"),
        pages.route("/batches", flow_pages.batches_page),
        pages.route("/batches/{id}", flow_pages.batch_page),
        pages.route("/batches/{id}/{action}", actions.change_batch, Scope.JOBS, "POST"),
        pages.route("/workflows", flow_pages.workflows_page),
        pages.route("/workflows/{id}", flow_pages.workflow_page),
        pages.route("/workflows/{id}/{action}", actions.change_workflow, Scope.JOBS, "POST"),
        pages.route("/limits", flow_pages.limits_page),
        pages.route("/pauses/{action}", actions.change_pause, Scope.CONTROL, "POST", effect_at="/limits"),
        pages.route("/breakers/{action}", actions.change_breaker, Scope.CONTROL, "POST", effect_at="/limits"),
        pages.route("/problems", watch_pages.problems_page),
        pages.route("/problems/count", watch_pages.problem_count),
        pages.route("/operations", watch_pages.operations_page),
        pages.route("/system", watch_pages.system_page),
    ]


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Name -> content, type, tag."""
    found = {}
    for path in FOLDER.iterdir():
        if path.suffix in KINDS:
            content = path.read_bytes()
            found[path.name] = content, KINDS[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return found


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _files():
        raise NotFound(f"there is no file {name!r:.60}")
    content, kind, tag = _files()[name]
    headers = {"etag": tag, "cache-control": _CACHE}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
