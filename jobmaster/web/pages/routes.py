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
from jobmaster.web.pages import job_pages, map_pages
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
        pages.route("/buckets/{id}", map_pages.bucket_page),
        pages.route("/jobs", job_pages.jobs_page),
        pages.route("/jobs/{id}", job_pages.job_page),
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
