"""The cluster map with its table, and the pages of one agent and one bucket."""

from __future__ import annotations

from uuid import UUID

from markupsafe import Markup
from starlette.responses import Response

from jobmaster.model.errors import InputError, NotFound
from jobmaster.model.inspection.views import Overview
from jobmaster.web.pages.live import event_stream, history, polled
from jobmaster.web.pages.map_state import BucketSample
from jobmaster.web.pages.site import View

TABLE_ROWS = 200
"""Buckets of one page of the table."""
LEGEND = (
    ("ACTIVE", "active"), ("COMPLETING", "completing"), ("FROZEN", "frozen"), ("LOST", "lost"), ("DRAINING", "draining"),
    ("READY_TO_DELETE", "retired"),
)  # fmt: skip
_CALM = frozenset({"ACTIVE", "COMPLETING", "READY_TO_DELETE"})
LATEST_RESCUES = 8
RESCUES_SECONDS = 3600.0
OVERVIEW_SECONDS = 5.0
"""How long the warnings of the overview are shown to further viewers."""


async def overview(view: View) -> Response:
    """``/``."""
    tick = await view.site.sampler.latest()
    inspect = view.cluster.inspect
    rescues = await view.site.shared(
        "latest rescues", lambda: inspect.rescues(since=RESCUES_SECONDS, limit=LATEST_RESCUES)
    )
    overview = await view.site.shared("overview", lambda: _read_overview(view), OVERVIEW_SECONDS)
    return view.page(
        "overview.html",
        "overview",
        refresh_seconds=10,
        live_part=Markup(tick.html),  # noqa: S704  # a template made it
        rescues=rescues,
        warnings=overview.warnings,
    )


async def _read_overview(view: View) -> Overview:
    sample = view.site.sampler.newest
    return await view.cluster.inspect.overview(agents=sample.read_agents, buckets=sample.read_buckets)


async def map_page(view: View) -> Response:
    """``/map``."""
    number = view.query.get("page", "1")
    if not (number.isascii() and number.isdigit() and 1 <= int(number[:9]) < 10_000):
        raise InputError("'page' must be a whole number from 1 on")
    tick = await view.site.sampler.latest()
    sample = view.site.sampler.newest
    first = (int(number) - 1) * TABLE_ROWS
    buckets = sorted(sample.buckets, key=_urgency)
    more = len(buckets) > first + TABLE_ROWS
    return view.page(
        "map.html",
        "map",
        refresh_seconds=5,
        legend=LEGEND,
        total=len(buckets),
        buckets=buckets[first : first + TABLE_ROWS],
        page_size=TABLE_ROWS,
        next_page=f"?page={int(number) + 1}" if more else None,
        names={agent.id: agent.name for agent in sample.agents},
        agents=sorted(sample.agents, key=lambda agent: (agent.store, agent.name, agent.id)),
        at_us=tick.totals.at_us,
    )


def _urgency(bucket: BucketSample) -> tuple[bool, int, str, int, str]:
    return bucket.state in _CALM, -bucket.waiting, bucket.lane, -bucket.priority, bucket.id


async def bucket_page(view: View) -> Response:
    """``/buckets/{id}``."""
    bucket_id, inspect = id_of(view), view.cluster.inspect
    buckets = await view.site.shared("all buckets", lambda: inspect.buckets(retired=True))
    bucket = next((each for each in buckets.buckets if each.id == bucket_id), None)
    events = await view.site.shared(("history", bucket_id), lambda: inspect.bucket_history(bucket_id))
    if bucket is None and not events:
        raise NotFound(f"there is no bucket {bucket_id}", hint="its row may be gone, and its history with it")
    agents = await view.site.shared("all agents", lambda: inspect.agents(ended=True))
    return view.page(
        "bucket.html",
        "map",
        refresh_seconds=5,
        id=bucket_id,
        bucket=bucket,
        events=events[::-1],
        names={agent.id: agent.name for agent in agents},
    )


async def agent_page(view: View) -> Response:
    """``/agents/{id}``."""
    agent_id, inspect = id_of(view), view.cluster.inspect
    agents = await view.site.shared("all agents", lambda: inspect.agents(ended=True))
    agent = next((each for each in agents if each.id == agent_id), None)
    if agent is None:
        raise NotFound(f"there is no agent {agent_id}", hint="its row may be gone")
    await view.site.sampler.latest()
    buckets = [each for each in view.site.sampler.newest.buckets if each.owner == str(agent_id)]
    return view.page(
        "agent.html",
        "map",
        refresh_seconds=5,
        agent=agent,
        total=len(buckets),
        buckets=sorted(buckets, key=_urgency)[:TABLE_ROWS],
    )


def id_of(view: View) -> UUID:
    """The id in the path.

    Raises:
        NotFound: it is no id.
    """
    text = view.request.path_params["id"]
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"{text!r:.60} is not an id") from None


async def stream(view: View) -> Response:
    """``/stream``."""
    last = view.request.headers.get("last-event-id", "")
    await view.site.sampler.latest()
    return event_stream(view.site.sampler, int(last) if last.isascii() and last.isdigit() and len(last) < 19 else None)


async def stream_samples(view: View) -> Response:
    """``/stream/samples``."""
    return await polled(view.site.sampler, view.query.get("since"))


async def stream_history(view: View) -> Response:
    """``/stream/history``."""
    await view.site.sampler.latest()
    return history(view.site.sampler)
