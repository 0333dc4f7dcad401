"""Jobs and the ledger in Django's admin: read alone.

The tables may have hundreds of millions of rows. So a list shows the jobs of a day unless another time is chosen, in the
order of the primary key and in no other; it counts ``COUNTED_MAX`` rows and no more; and its queries have ``QUERY_SECONDS``.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ImproperlyConfigured
from django.core.paginator import Paginator
from django.db import OperationalError, connections, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join

from jobmaster.django.models import Job, LedgerLine
from jobmaster.django.options import chosen_backend
from jobmaster.django.same_database import is_master
from jobmaster.model.errors import ConfigError
from jobmaster.units import rounded_us

COUNTED_MAX = 10_000
"""Rows of a list that are counted; the list ends there."""
LEDGER_LINES = 200
"""Lines of the ledger on the page of a job."""
QUERY_SECONDS = 5
SPANS = {
    "hour": (3600, "last hour"),
    "day": (86_400, "last day"),
    "week": (7 * 86_400, "last week"),
    "all": (0, "any time"),
}
_ID_DIGITS = 32
_PREFIX_DIGITS_MIN = 8


class BoundedPaginator(Paginator):
    """Counts no more than ``COUNTED_MAX`` rows."""

    @cached_property
    def count(self) -> int:
        """Rows that the list shows."""
        return int(self.object_list.order_by()[:COUNTED_MAX].count())


class CreatedFilter(admin.SimpleListFilter):
    """Jobs that were created since: a range of the primary key, which begins with the time."""

    title = "created"
    parameter_name = "created"
    span_without_choice = "day"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """The spans, without the one that is chosen at first."""
        return [(name, label) for name, (_, label) in SPANS.items() if name != self.span_without_choice]

    def choices(self, changelist: Any) -> Any:
        """As usual; the first is the span without a choice."""
        for choice in super().choices(changelist):
            if choice["query_string"] == changelist.get_query_string(remove=[self.parameter_name]):
                choice["display"] = SPANS[self.span_without_choice][1]
            yield choice

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        """The rows of the span; of any time while an id is searched for, which has its time."""
        seconds, _ = SPANS.get(self.value() or self.span_without_choice, SPANS[self.span_without_choice])
        if not seconds or _id_range(request.GET.get("q", "")) is not None:
            return queryset
        since_ms = int((timezone.now().timestamp() - seconds) * 1000)
        return queryset.filter(pk__gte=UUID(int=since_ms << 80))


class NewestFirst(ChangeList):
    """A list in the order of the primary key, whatever its address asks for: no other order has an index."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet) -> list[str]:
        """The one order."""
        return ["-pk"]


class ReadOnlyAdmin(admin.ModelAdmin):
    """A list and pages without anything to change."""

    database = "default"
    """Alias of the database by which the master is read."""
    actions = None
    paginator = BoundedPaginator
    list_per_page = 50
    show_full_result_count = False
    sortable_by = ()
    search_help_text = "the id of a job, its first 8 digits or more, or the name of a handler"
    search_fields = ("pk",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Rows are made by submits."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Rows are changed by agents."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Rows leave with their range."""
        return False

    def get_changelist(self, request: HttpRequest) -> type[ChangeList]:
        """The kind of list."""
        return NewestFirst

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        """Rows of the master."""
        return super().get_queryset(request).using(self.database)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The list; an error of one sentence when it takes longer than ``QUERY_SECONDS``."""
        try:
            with transaction.atomic(using=self.database), connections[self.database].cursor() as cursor:
                cursor.execute("SET LOCAL statement_timeout = %s", [QUERY_SECONDS * 1000])
                response = super().changelist_view(request, extra_context)
                return response.render() if hasattr(response, "render") else response
        except OperationalError as error:
            return HttpResponse(
                f"The master has not answered within {QUERY_SECONDS} s, or not at all: {error}\n"
                "Choose a shorter time under 'created', or search for the id of a job.",
                status=503,
                content_type="text/plain; charset=utf-8",
            )

    def get_search_results(self, request: HttpRequest, queryset: QuerySet, search_term: str) -> tuple[QuerySet, bool]:
        """Rows of a range of ids; without digits of an id, of a handler."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if (found := _id_range(term)) is not None:
            return queryset.filter(pk__gte=found[0], pk__lte=found[1]), False
        return self.of_handler(queryset, term), False

    def of_handler(self, queryset: QuerySet, name: str) -> QuerySet:
        """Rows of jobs of that handler."""
        return queryset.filter(handler=name)


class JobAdmin(ReadOnlyAdmin):
    """The view ``jobs``."""

    list_display = ("id", "state", "handler", "priority", "lane", "attempt", "created_at", "due_at", "ended_at", "ran")
    list_filter = (CreatedFilter, "state", "priority")
    fields = (
        "id", "state", "handler", "priority", "lane", "created_at", "due_at", "started_at", "ended_at", "waited_us", "ran_us",
        "attempt", "rescues", "cancel_requested", "arguments", "options", "outcome", "why", "history",
    )  # fmt: skip
    readonly_fields = ("arguments", "options", "outcome", "why", "history")

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        """Lists leave out what may be large."""
        rows = super().get_queryset(request)
        return rows if request.resolver_match.kwargs else rows.defer("args", "headers", "result", "error")

    @admin.display(description="ran")
    def ran(self, job: Job) -> str:
        """Duration of the last run."""
        return "-" if job.ran_us is None else rounded_us(job.ran_us)

    @admin.display(description="arguments")
    def arguments(self, job: Job) -> str:
        """As indented JSON."""
        return _json(job.args)

    @admin.display(description="options")
    def options(self, job: Job) -> str:
        """Tags, metadata and options of the submit."""
        return _json(job.headers)

    @admin.display(description="result")
    def outcome(self, job: Job) -> str:
        """As indented JSON."""
        return _json(job.result)

    @admin.display(description="error")
    def why(self, job: Job) -> str:
        """Type, message and traceback."""
        if not job.error:
            return "-"
        text = "{}: {}\n\n{}".format(job.error["type"], job.error["message"], job.error.get("traceback", ""))
        return format_html("<pre>{}</pre>", text)

    @admin.display(description="attempts")
    def history(self, job: Job) -> str:
        """The job's lines of the ledger, oldest first."""
        lines = LedgerLine.objects.using(self.database).filter(job_id=job.id).order_by("at")[:LEDGER_LINES]
        rows = [(line.at, line.outcome, line.token, (line.error or {}).get("message", "")) for line in lines.iterator()]
        return format_html_join("", "<div>{} {} (token {}) {}</div>", rows) or "-"


class LedgerAdmin(ReadOnlyAdmin):
    """The view ``ledger``."""

    list_display = ("job", "outcome", "concluding", "at", "ran_us", "token", "reason")
    list_display_links = None
    list_filter = (CreatedFilter, "outcome")

    def of_handler(self, queryset: QuerySet, name: str) -> QuerySet:
        """The view has no handlers."""
        return queryset.none()

    def change_view(self, request: HttpRequest, object_id: str, *_: Any, **__: Any) -> HttpResponse:
        """The page of the job, which has all of its lines."""
        return HttpResponseRedirect(reverse("admin:jobmaster_job_change", args=[object_id]))

    @admin.display(description="job")
    def job(self, line: LedgerLine) -> str:
        """A link to the job's page."""
        return format_html(
            '<a href="{}">{}</a>', reverse("admin:jobmaster_job_change", args=[line.job_id]), line.job_id
        )

    @admin.display(description="error")
    def reason(self, line: LedgerLine) -> str:
        """Its message."""
        return (line.error or {}).get("message", "")


def _id_range(term: str) -> tuple[UUID, UUID] | None:
    """The first and the last id with these digits; ``None``: the text is no beginning of an id."""
    digits = term.strip().replace("-", "").lower()
    if not _PREFIX_DIGITS_MIN <= len(digits) <= _ID_DIGITS or set(digits) - set("0123456789abcdef"):
        return None
    low, high = (UUID(digits.ljust(_ID_DIGITS, fill)) for fill in "0f")
    return low, high


def _json(value: object) -> str:
    return "-" if value is None else format_html("<pre>{}</pre>", json.dumps(value, indent=2, ensure_ascii=False))


def register() -> None:
    """Show the cluster of the backend, if a database of the project leads to its master."""
    try:
        _, options = chosen_backend()
        settings = options.load()
    except (ImproperlyConfigured, ConfigError):
        return  # the checks name what is wrong
    database = options.admin or (options.database if is_master(options.database, settings) else None)
    if database is None:
        return
    for model, view, shown in ((Job, "jobs", JobAdmin), (LedgerLine, "ledger", LedgerAdmin)):
        model._meta.db_table = f'"{settings.schema_name()}"."{view}"'
        admin.site.register(model, type(shown.__name__, (shown,), {"database": database, "__doc__": shown.__doc__}))


register()
