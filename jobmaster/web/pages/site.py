"""What the pages of one application share: the cluster, the sampler, shared reads; and errors as pages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobmaster.client.cluster import Cluster
from jobmaster.model.errors import JobMasterError, OutcomeUnknown, Unavailable
from jobmaster.rules.access import Scope
from jobmaster.web.answers import status_of
from jobmaster.web.context import WebContext, context_of
from jobmaster.web.guard import GuardedRoute, principal_of
from jobmaster.web.pages.overview import draw_live_part
from jobmaster.web.pages.rendering import environment
from jobmaster.web.pages.sampler import Sampler
from jobmaster.web.pages.samples import SampleReader
from jobmaster.wiring import open_reader

SHARED_SECONDS = 1.0
"""How long an answer of the master is given to further viewers of the same page."""
SHARED_MAX = 200
"""Answers that are kept."""
READ_SECONDS = 15.0
"""No read for a page may take longer."""

_log = logging.getLogger(__name__)
T = TypeVar("T")
_HEADINGS = {
    404: "Not found",
    408: "Not done in time",
    409: "Not possible now",
    422: "This cannot be shown",
    500: "Unexpected error",
    503: "The cluster cannot be read",
}
"""Status of an error -> heading of its page."""


class Site:
    """The pages of one application. Belongs to one event loop."""

    def __init__(self, context: WebContext) -> None:
        self.context = context
        samples = SampleReader(context.cluster, context.clock)
        self.sampler = Sampler(samples.read, samples.rest, draw_live_part, context.clock, context.stopping)
        self._shared: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}

    @property
    def cluster(self) -> Cluster:
        """The cluster of the application."""
        return self.context.cluster

    async def shared(self, key: Hashable, read: Callable[[], Awaitable[T]], seconds: float = SHARED_SECONDS) -> T:
        """What ``read`` returns; viewers who ask for the same within some seconds share one read.

        Raises:
            JobMasterError: as ``read``.
            Unavailable: it took longer than ``READ_SECONDS``.
        """
        now = self.context.clock.boottime()
        kept = self._shared.get(key)
        if kept is None or kept[0] < now:
            for old in [each for each, (until, task) in self._shared.items() if until < now and task.done()]:
                del self._shared[old]
            while len(self._shared) >= SHARED_MAX:
                del self._shared[next(iter(self._shared))]
            task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(bounded(read))
            task.add_done_callback(_observed)
            kept = self._shared[key] = now + seconds, task
        return await asyncio.shield(kept[1])

    def forget(self) -> None:
        """Give no answer again that was read before now: something was changed."""
        self._shared.clear()

    async def report(self, name: str, *values: object, seconds: float = SHARED_SECONDS) -> list[dict[str, Any]]:
        """Rows of a report of the master, shared as by ``shared``."""

        async def read() -> list[dict[str, Any]]:
            reader = await open_reader(self.cluster.settings)
            try:
                return await reader.report(name, *values)
            finally:
                await reader.close()

        return await self.shared((name, repr(values)), read, seconds)


async def bounded(read: Callable[[], Awaitable[T]]) -> T:
    """What ``read`` returns.

    Raises:
        JobMasterError: as ``read``.
        Unavailable: it took longer than ``READ_SECONDS``.
    """
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await read()
    except TimeoutError:
        raise Unavailable(
            f"the cluster did not answer within {READ_SECONDS:g} seconds", hint="narrow the filters, and try again"
        ) from None


def _observed(task: asyncio.Task[Any]) -> None:
    """Its error is that of the viewers; when all of them have left, it is not reported as lost."""
    if not task.cancelled():
        task.exception()


class View:
    """One request for a page."""

    def __init__(self, site: Site, request: Request) -> None:
        self.site = site
        self.request = request
        self.principal = principal_of(request)

    @property
    def cluster(self) -> Cluster:
        """The cluster of the application."""
        return self.site.cluster

    @property
    def query(self) -> dict[str, str]:
        """What stands behind ``?``; of a name that is given twice the last value. Empty values are left out."""
        return {name: value.strip() for name, value in self.request.query_params.items() if value.strip()}

    @property
    def may_payload(self) -> bool:
        """Whether the viewer may see arguments, results, errors and logs."""
        return Scope.PAYLOAD in self.principal.scopes

    @property
    def may_traceback(self) -> bool:
        """Whether the viewer may see tracebacks."""
        return Scope.TRACEBACK in self.principal.scopes

    def may(self, scope: str) -> bool:
        """Whether the viewer may change what the scope covers, here and now."""
        return not self.site.context.read_only and Scope(scope) in self.principal.scopes

    def page(
        self, template: str, section: str, /, *, status: int = 200, refresh_seconds: int | None = None, **shown: Any
    ) -> Response:
        """One page.

        Args:
            section: key of ``NAVIGATION`` that it belongs to.
            refresh_seconds: how often a script reads its live parts again; ``None``: never.
        """
        root = self.request.scope.get("root_path", "")
        frame = {
            "root": root,
            "section": section,
            "refresh_seconds": refresh_seconds,
            "query": self.query,
            "done": self.query.get("done", ""),
            "cluster": self.cluster.settings.cluster,
            "principal": None if self.principal.anonymous else self.principal.name,
            "may": self.may,
            "scopes": sorted(self.principal.scopes),
            "may_payload": self.may_payload,
            "may_traceback": self.may_traceback,
            "now_us": self.site.context.clock.wall_us(),
        }
        html = environment().get_template(template).render({**frame, **shown})
        return Response(html, status, media_type="text/html")

    def moved(self, path: str, done: str, was: datetime | None = None) -> Response:
        """The answer to a change: the page that shows its effect, with a sentence.

        Args:
            was: the due time before the change of a job, for the form that gives it back.
        """
        self.site.forget()
        root = self.request.scope.get("root_path", "")
        return RedirectResponse(
            f"{root}/{path}?{urlencode({'done': done} | ({} if was is None else {'was': was.isoformat()}))}", 303
        )


PageFunction = Callable[[View], Awaitable[Response]]


class Pages:
    """Makes the routes of one application."""

    def __init__(self) -> None:
        self._site: Site | None = None

    def route(
        self,
        path: str,
        function: PageFunction,
        scope: Scope = Scope.VIEW,
        method: str = "GET",
        effect_at: str | None = None,
    ) -> GuardedRoute:
        """A route whose errors are pages.

        Args:
            effect_at: of a change: path of the page that shows whether it was made, with the parameters of ``path``;
                ``None``: ``path`` without its last part.
        """
        place = (path.rpartition("/")[0] if effect_at is None else effect_at).replace(":path}", "}")

        async def answer(request: Request) -> Response:
            view = View(self._of(request), request)
            try:
                return await function(view)
            except JobMasterError as error:
                if isinstance(error, OutcomeUnknown) and method == "POST":
                    given = {name: quote(str(value)) for name, value in request.path_params.items()}
                    return _unknown_page(view, error, place.format_map(given))
                return _error_page(view, error)

        return GuardedRoute(path, answer, scope=scope, methods=[method])

    def _of(self, request: Request) -> Site:
        if self._site is None:
            self._site = Site(context_of(request))
        return self._site


def _unknown_page(view: View, error: OutcomeUnknown, place: str) -> Response:
    """A change whose answer was lost.

    Args:
        place: path of the page that shows whether it was made.
    """
    _log.warning("%s: %s", view.request.url.path, error)
    view.site.forget()
    return view.page(
        "error.html",
        "",
        status=status_of(error),
        heading="Perhaps changed",
        message="The answer of a server of the cluster was lost. Whether the change was made is not known.",
        hint="Look whether it was made before you make it again. The log of the web server has the details.",
        place=place,
        job_ids=error.job_ids,
    )


def _error_page(view: View, error: JobMasterError) -> Response:
    status = status_of(error)
    heading = _HEADINGS[status]
    if status >= 500:
        # The sentence may name servers and users of the database.
        _log.warning("%s: %s", view.request.url.path, error, exc_info=error if status == 500 else None)
        message, hint = (
            "A server of the cluster does not answer, or refuses.",
            "The log of the web server has the details.",
        )
        return view.page("error.html", "", status=status, heading=heading, message=message, hint=hint)
    return view.page("error.html", "", status=status, heading=heading, message=error.message, hint=error.hint)
