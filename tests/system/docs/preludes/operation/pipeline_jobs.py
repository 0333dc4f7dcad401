"""What `docs/pipeline-jobs.md` takes for granted: nothing. An agent loads its handlers and those of the pipeline."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from jobmaster import Cluster
from jobmaster.pipeline.jobs import pipeline_handlers

the_page: Any = import_module("the_page")
handlers = the_page.handlers
steps = pipeline_handlers


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    pass


async def after(names: dict[str, Any]) -> None:
    """The schedule of the page is declared under the name of its handler; the function stays what it was."""
    (schedule,) = await names["cluster"].schedules.list()
    assert schedule.name == "orders.totals"
    assert the_page.totals.__module__ == "the_page"
    assert "pipeline.archive" in steps
