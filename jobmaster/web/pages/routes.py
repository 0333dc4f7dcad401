"""The routes of the pages."""

from __future__ import annotations

from jobmaster.web.guard import GuardedRoute
from jobmaster.web.pages import job_pages, map_pages
from jobmaster.web.pages.site import Pages
from jobmaster.web.pages.static import static_route


def page_routes() -> list[GuardedRoute]:
    """The routes of the pages of one application."""
    pages = Pages()
    return [
        static_route(),
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
