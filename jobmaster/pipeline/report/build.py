"""The report: aggregates, the last audit, plan, objectives and anomalies on one HTML page, written again after each of these
steps; and the same figures as files beside it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmaster.pipeline.report import html, sections
from jobmaster.pipeline.report.data_files import write_tables
from jobmaster.pipeline.report.page_data import collect_data
from jobmaster.pipeline.report.tables import tables_of
from jobmaster.rules.recurrence import zone_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jobmaster.pipeline.context import PipelineContext
    from jobmaster.pipeline.lake.lake import Lake

PATH = "reports/index.html"
AUDIT, PLAN = "_manifest/audit.json", "_manifest/plan.json"
OBJECTIVES, ANOMALIES = "_manifest/objectives.json", "_manifest/anomalies.json"
_OPTIONS = "_manifest/report.json"
STATE = "_manifest/rollup_state.json"
"""Of the roll-up: until when, and which archived ranges it has seen."""


class PageOptions(NamedTuple):
    """What the reader of the report wants; kept in the lake for the steps that write the page again."""

    zone: str = "UTC"
    """IANA name of the time zone of the page."""
    last_seconds: float | None = None
    """Report only on so much time, up to the last figures; ``None``: on the whole history."""
    price: float | None = None
    """Of a second in a handler."""


def rolled_up_until(lake: Lake) -> datetime | None:
    """What happened before that moment is in the aggregates; ``None``: there was no roll-up."""
    state = lake.read_json(STATE)
    return None if state is None else datetime.fromisoformat(state["as_of"])


def write_report(
    context: PipelineContext, lake: Lake, frames: Mapping[str, DataFrame], options: PageOptions | None = None
) -> str:
    """Write the page and its files; returns the page's path or URL.

    Args:
        options: ``None``: those of the last time.

    Raises:
        InputError: there is no such time zone.
    """
    if options is None:
        options = PageOptions(**(lake.read_json(_OPTIONS) or {}))
    zone = zone_of(options.zone)
    lake.write_json(_OPTIONS, options._asdict())
    found = collect_data(
        frames, zone=(options.zone, zone), until=rolled_up_until(lake), last_seconds=options.last_seconds
    )
    documents = {name: lake.read_json(path) for name, path in _DOCUMENTS.items()}
    tables = tables_of(found, documents["objectives"], documents["anomalies"], options.price)
    files = write_tables(lake, tables)
    view = sections.View(found, tables, zone, options.zone)
    parts = sections.parts_of(view, documents)
    made = datetime.fromtimestamp(context.clock.wall_us() / 1e6, zone).isoformat(" ", "minutes")
    subtitle = f"Cluster {context.settings.cluster}. Made {made}. All times are in the time zone {options.zone}."
    if files:
        parts.append(html.files("These figures as CSV, and beside them as Parquet", files))
    lake.write(PATH, html.page("Jobs, and how they fared", subtitle, parts).encode())
    return str(lake.local / PATH) if lake.local is not None else lake.url(PATH)


_DOCUMENTS: Mapping[str, Any] = {"audit": AUDIT, "plan": PLAN, "objectives": OBJECTIVES, "anomalies": ANOMALIES}
