"""Bulk operations: what one would change, its start, and its progress."""

from __future__ import annotations

from starlette.responses import Response

from jobmaster.model.errors import InputError
from jobmaster.model.flow.bulk_operation import SKIPPED, BulkKind
from jobmaster.web.pages.actions import form_of
from jobmaster.web.pages.job_search import parsed_search
from jobmaster.web.pages.map_pages import id_of
from jobmaster.web.pages.site import View

KINDS = (BulkKind.RETRY, BulkKind.CANCEL, BulkKind.DELETE)
"""A reschedule takes values that the command line takes."""


def _kind(text: str) -> BulkKind:
    if text not in KINDS:
        raise InputError(f"there is no bulk operation {text!r:.60} here", hint=f"there are {', '.join(KINDS)}")
    return BulkKind(text)


async def preview_page(view: View) -> Response:
    """``/bulk?kind=...&q=...``: what an operation would change, with the form that starts it."""
    text, kind = view.query.get("q", ""), _kind(view.query.get("kind", ""))
    search = parsed_search(text)
    preview = await view.site.shared(
        ("bulk", kind, text), lambda: view.cluster.bulk.preview(kind.value, **search.filters)
    )
    return view.page("bulk_preview.html", "operations", kind=kind, text=text, preview=preview, causes=SKIPPED)


async def start(view: View) -> Response:
    """``POST /bulk``."""
    fields = await form_of(view)
    text, kind = fields.get("q", ""), _kind(fields.get("kind", ""))
    if fields.get("confirm") != fields.get("eligible"):
        raise InputError(
            "the number that was typed is not that of the preview; nothing was changed",
            hint="go back and type it again",
        )
    search = parsed_search(text)
    started = await view.cluster.bulk.start(
        kind.value, reason=fields.get("reason", ""), actor=view.principal.actor, **search.filters
    )
    return view.moved(f"bulk/{started.id}", "The operation is stored; the leader works on it.")


async def bulk_page(view: View) -> Response:
    """``/bulk/{id}``."""
    operation_id = id_of(view)
    operation = await view.site.shared(("bulk", operation_id), lambda: view.cluster.bulk.get(operation_id))
    return view.page(
        "bulk.html",
        "operations",
        refresh_seconds=None if operation.state.final else 1,
        operation=operation,
        filter=operation.filter_json.decode(),
        causes={cause.value: words for cause, words in SKIPPED.items()},
    )


async def cancel(view: View) -> Response:
    """``POST /bulk/{id}/cancel``."""
    operation_id = id_of(view)
    await view.cluster.bulk.cancel(operation_id, actor=view.principal.actor)
    return view.moved(f"bulk/{operation_id}", "The operation has ended; what it has changed stays so.")
