"""The list of jobs, and the page of one job."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from starlette.responses import RedirectResponse, Response, StreamingResponse

from jobmaster.client.jobs.listed_job import ListedJob, listed_job
from jobmaster.client.jobs.timeline import TimelineLine, changes_of, timeline
from jobmaster.csv_text import csv_line
from jobmaster.model.errors import InputError, NotFound
from jobmaster.model.ids import created_ms
from jobmaster.model.job import JobState
from jobmaster.model.job_log import LogLine
from jobmaster.model.job_view import JobView
from jobmaster.model.redaction import SecretTexts
from jobmaster.web.pages.job_search import QUALIFIERS, VIEWS, parsed_search, searches_without, span_or_time
from jobmaster.web.pages.map_pages import id_of
from jobmaster.web.pages.site import View, bounded

PAGE_JOBS = 50
SEARCH_SECONDS, DEEP_SECONDS = 0.15, 5.0
"""How long a search looks back; the second for a viewer who has asked for more."""
_STATE = re.compile(r"(?:^|\s)state:\S+")
STATES = ("", "held", "waiting", "assigned", "processing", "succeeded", "failed", "cancelled", "expired")
TEXT_CHARS = 4096
"""Characters of arguments, results and tracebacks that a page shows, until the viewer asks for all."""
LOG_LINES = 500
COLUMNS = {
    "handler": "Handler",
    "state": "State",
    "priority": "Priority, lane",
    "attempt": "Attempt",
    "submitted": "Submitted",
    "due": "Due",
    "waited": "Waited",
    "ran": "Ran",
    "tags": "Tags",
    "tenant": "Tenant",
}
"""Columns of the list, beside the job itself: name in addresses -> title."""
COLUMNS_SHOWN = [name for name in COLUMNS if name not in ("tags", "tenant")]
"""Where the viewer has chosen none."""
CSV_PAGE = 1000
"""Jobs of one read for a table. Only one page is in memory at a time."""
CSV_JOBS_MAX = 10_000
"""Jobs of a table. More are an export (``jobmaster job list``, or the Spark reader)."""
OPERATIONS_MAX = 1000


async def jobs_page(view: View) -> Response:
    """``/jobs``."""
    text = view.query.get("q", "")
    search = parsed_search(text)
    if search.job is not None:
        return await _found(view, search.job)
    chosen = [name for name in view.request.query_params.getlist("c") if name in COLUMNS]
    kept = urlencode([("c", name) for name in chosen])
    after = view.query.get("after")
    seconds = DEEP_SECONDS if view.query.get("deep") == "1" else SEARCH_SECONDS
    jobs = await view.site.shared(
        ("jobs", text, after, seconds),
        lambda: view.cluster.jobs(
            limit=PAGE_JOBS, after=after, payload=False, at_most_seconds=seconds, **search.filters
        ),
    )
    rest = _STATE.sub("", text).strip()
    states = search.filters.get("state", [""])
    return view.page(
        "jobs.html",
        "jobs",
        refresh_seconds=None if after else 5,
        text=text,
        rest=rest,
        tabs=STATES,
        state=states[0].lower() if len(states) == 1 else None,
        jobs=jobs,
        more=len(jobs) == PAGE_JOBS,
        qualifiers=QUALIFIERS,
        columns=COLUMNS,
        shown=chosen or COLUMNS_SHOWN,
        chosen=chosen,
        kept=f"&{kept}" if kept else "",
        chips=searches_without(search.words),
        views=VIEWS,
        csv_jobs=CSV_JOBS_MAX,
        created=_created_us,
        searched_us=None if jobs.searched_to is None else created_ms(jobs.searched_to.bytes) * 1000,
    )


async def jobs_csv(view: View) -> Response:
    """``/jobs.csv``: the jobs of a search, the newest first, as a table for a spreadsheet; at most ``CSV_JOBS_MAX``.

    The fields are those of ``jobmaster job list -o csv``. Messages of errors may quote arguments, secret ones among them, so
    they are left out; metadata needs the scope ``payload``.

    Each page of jobs is read within ``READ_SECONDS``. When a later page cannot be read, the response is cut off: its last
    chunk is missing, and a client reports an error. (A last line with a message would be a row to a program.)
    """
    search = parsed_search(view.query.get("q", ""))
    if search.job is not None:
        raise InputError("a table is made of a search with qualifiers, not of an id", hint="for example state:failed")

    async def page(after: JobView | None) -> list[JobView]:
        return await bounded(lambda: view.cluster.jobs(limit=CSV_PAGE, after=after, payload=False, **search.filters))

    first = await page(None)  # what is refused, or cannot be read, is a page that says so

    async def lines() -> AsyncIterator[str]:
        jobs, sent = first, 0
        yield csv_line(ListedJob._fields)
        while True:
            yield "".join(csv_line(_exported(job, view.may_payload)) for job in jobs)
            sent += len(jobs)
            if len(jobs) < CSV_PAGE or sent >= CSV_JOBS_MAX:
                return
            jobs = await page(jobs[-1])

    headers = {"content-disposition": 'attachment; filename="jobs.csv"'}
    return StreamingResponse(lines(), media_type="text/csv; charset=utf-8", headers=headers)


def _exported(job: JobView, may_payload: bool) -> ListedJob:
    row = listed_job(job)
    error = None if row.error is None else {**row.error, "message": ""}
    return row._replace(error=error, metadata=row.metadata if may_payload else {})


async def _found(view: View, digits: str) -> Response:
    """The page of the job whose id begins with these digits."""
    if len(digits) < 32:
        lowest, highest = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
        rows = await view.site.report("job_ids", lowest, highest)
        if not rows:
            raise NotFound(
                f"no job with a row in the master begins with {digits}",
                hint="a job that only a bucket has is found by its whole id",
            )
        if len(rows) > 1:
            raise NotFound(f"several jobs begin with {digits}", hint="give more digits")
        digits = rows[0]["id"].hex
    root = view.request.scope.get("root_path", "")
    return RedirectResponse(f"{root}/jobs/{UUID(digits)}", 303)


async def job_page(view: View) -> Response:
    """``/jobs/{id}``."""
    job_id = id_of(view)
    stored = await view.site.shared(("job", job_id), lambda: view.cluster.get(job_id))
    job = await view.cluster.redacted(stored)
    attempts = await view.site.shared(("attempts", job_id), lambda: view.cluster.attempts(job_id))
    operations = await view.site.report("operations_of", str(job_id), OPERATIONS_MAX)
    explained = None
    if not (job.state.final or job.state is JobState.PROCESSING):
        explained = await view.site.shared(("explain", job_id), lambda: view.cluster.inspect.explain(job_id))
    lines = timeline(job, attempts, None, changes_of(operations))
    logs: list[LogLine] = []
    if view.may_payload:
        logs = await view.site.shared(("logs", job_id), lambda: view.cluster.logs(job_id, limit=LOG_LINES))
    whole = view.query.get("whole") == "1"
    return view.page(
        "job.html",
        "jobs",
        refresh_seconds=None if job.state.final else 2,
        job=job,
        created_us=_created_us(job),
        lines=_shown_lines(view, lines, stored, job),
        path=_path(job),
        causes=explained.causes if explained is not None else (),
        arguments=_pretty(job.arguments_json, whole) if view.may_payload else None,
        result=_pretty(job.result_json, whole) if view.may_payload and job.result_json is not None else None,
        traceback=_cut(job.error.traceback, whole)
        if view.may_traceback and job.error and job.error.traceback
        else None,
        whole=whole,
        logs=logs,
        log_lines_max=LOG_LINES,
        retryable=job.state in (JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED),
        changeable=job.state in (JobState.HELD, JobState.ASSIGNED, JobState.SAVE_PENDING),
        finals=job.state.final,
        trace_link=view.cluster.settings.observability.traces.link_of(job.trace_id),
        was=_due_before(view),
    )


def _due_before(view: View) -> datetime | None:
    """The due time before the change that has led to this page, which a form gives back."""
    was = span_or_time(view.query.get("was", ""))
    try:
        return was.astimezone(UTC) if isinstance(was, datetime) else None
    except OverflowError:  # an hour before the year 1
        return None


def _created_us(job: JobView) -> int:
    return created_ms(job.id_bytes) * 1000


def _shown_lines(view: View, lines: Sequence[TimelineLine], stored: JobView, shown: JobView) -> list[TimelineLine]:
    """The timeline as it may be shown: errors of attempts may hold arguments, and among these secret ones."""
    if not view.may_payload:
        return [line._replace(detail="") for line in lines]
    if shown.arguments_json == stored.arguments_json:
        return [*lines]
    given = stored.arguments
    texts = SecretTexts(
        stored.arguments_json, [name for name, value in shown.arguments.items() if value != given[name]]
    )
    return [line._replace(detail=texts.cut(line.detail)) for line in lines]


def _path(job: JobView) -> list[tuple[str, int | None, str]]:
    """The way of the job: name of each stop, its time, and ``now``, ``bad`` or nothing."""
    stops: list[tuple[str, int | None, str]] = [("submitted", _created_us(job), "")]
    if job.due_us and job.due_us > _created_us(job) + 1_000_000:
        stops.append(("due", job.due_us, ""))
    if job.state is JobState.SUCCEEDED or job.state is JobState.FAILED:
        if job.changed_us is not None and job.ran_us is not None:
            stops.append((f"run {max(job.attempt, 1)}", job.changed_us - job.ran_us, ""))
        stops.append((job.state.value.lower(), job.changed_us, "now" if job.state is JobState.SUCCEEDED else "bad"))
    else:
        names = {
            JobState.HELD: "waits in the master", JobState.ASSIGNED: "assigned to a bucket", JobState.PROCESSING: "runs",
            JobState.SAVE_PENDING: "lies in a bucket", JobState.QUEUED: "waits for a slot", JobState.WAITING: "waits",
        }  # fmt: skip
        bad = "bad" if job.state in (JobState.CANCELLED, JobState.EXPIRED) else "now"
        stops.append((names.get(job.state, job.state.value.lower()), job.changed_us, bad))
    return stops


def _pretty(data: bytes, whole: bool) -> tuple[str, bool]:
    """JSON with line breaks, and whether it was cut. Numbers keep their digits."""
    return _cut(msgspec.json.format(data, indent=2).decode(), whole)


def _cut(text: str, whole: bool) -> tuple[str, bool]:
    return (text, False) if whole or len(text) <= TEXT_CHARS else (text[:TEXT_CHARS], True)
