"""The context of a run for its handler."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Protocol
from uuid import UUID

import msgspec

from jobmaster.clock import Clock, SystemClock
from jobmaster.handlers.decisions import Cancel
from jobmaster.handlers.outbox import Outbox
from jobmaster.handlers.received_signal import ReceivedSignal
from jobmaster.handlers.run_log import LogSink, RunLog
from jobmaster.model.errors import InputError
from jobmaster.model.flow.batch import range_of
from jobmaster.model.job import Headers, Priority
from jobmaster.model.job_log import LINES_DEFAULT, LogLevel, LogLevelName
from jobmaster.model.job_view import moment
from jobmaster.model.redaction import SecretTexts
from jobmaster.model.run_progress import RunProgress, checked_progress

if TYPE_CHECKING:
    # A default of a type variable comes with Python 3.13; type checkers know it from here before that.
    from typing_extensions import TypeVar

    Resources = TypeVar("Resources", default=Any)
else:
    from typing import TypeVar

    Resources = TypeVar("Resources")

_CLOCK = SystemClock()
_FIRST_LINE = Lock()
"""Two threads of a handler may write its first line at once."""


class _NoResources:
    """Stands for the resources of a handler whose registry has no lifespan."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by the language, not by a handler
            raise AttributeError(name)
        raise InputError(
            f"ctx.resources.{name}: the registry of this handler has no lifespan",
            hint="give it one: Handlers(lifespan=...)",
        )

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "<no resources: the registry has no lifespan>"


NO_RESOURCES: Any = _NoResources()


class AttemptRuntime(Protocol):
    """What runs an attempt, and what it offers to the handler beyond its context."""

    @property
    def confirmation(self) -> str: ...

    def transaction(self) -> AbstractAsyncContextManager[Any]: ...

    async def confirm(self, result: object = None) -> None: ...

    async def send_message(self, handler: str, arguments: dict[str, object], key: str | None) -> None: ...


class ProgressSink(Protocol):
    """Takes over the reports of handlers; it may be called on any thread."""

    def note(self, job_id: bytes, token: int, progress: RunProgress) -> None: ...


class JobContext(msgspec.Struct, Generic[Resources], kw_only=True):
    """The run a handler is in. Given to a handler whose first parameter is annotated ``JobContext`` or named ``ctx``.

    ``JobContext[Resources]`` names the type of ``resources``: what the registry's lifespan made.

    ``job_id`` is the key by which a handler makes its effects idempotent; ``token`` grows with every assignment, so a
    system that stores the highest one can refuse a superseded run.
    """

    job_id_bytes: bytes
    """The job's id as its 16 bytes."""
    token: int
    handler: str
    lane: str
    priority: Priority
    attempt: int
    """Number of this attempt, 1 for the first."""
    max_attempts: int
    rescues: int = 0
    """Number of times that the agent that had the job died."""
    headers: Headers = Headers()
    deadline_boottime: float = float("inf")
    """When this attempt is cut off, in seconds of ``clock.boottime()``."""
    warn_after: float | None = None
    """Seconds of run after which this attempt is overdue (the handler's option); ``None``: never."""
    overdue_boottime: float = float("inf")
    """When this attempt becomes overdue, in seconds of ``clock.boottime()``."""
    cancelled: bool = False
    """The job has a cancel request, or its agent is giving it back. An async handler is also cancelled by the usual
    ``CancelledError``; a threaded one must look here (or call ``check``) now and then."""
    clock: Clock = _CLOCK
    runtime: AttemptRuntime | None = None
    """Of handlers declared with ``transactional=True`` or ``confirm="explicit"``."""
    progress_sink: ProgressSink | None = None
    last_progress: RunProgress | None = None
    """The last report of this run (``progress``)."""
    log_sink: LogSink | None = None
    run_log: RunLog | None = None
    """Made with the first line of the run."""
    keep_logs: int | None = None
    """Lines of this run that are kept (the handler's option); ``None``: those of ``log`` alone, at most 100."""
    secret_texts: SecretTexts | None = None
    """Values of secret arguments, which no line of this run shows."""
    resources: Resources = NO_RESOURCES
    """What the lifespan of the handler's registry has yielded: ``Handlers(lifespan=...)``."""

    @property
    def job_id(self) -> UUID:
        """The job's id, a UUIDv7, the same in every attempt. It is made when it is read."""
        return UUID(bytes=self.job_id_bytes)

    @property
    def tags(self) -> tuple[str, ...]:
        return self.headers.tags

    @property
    def metadata(self) -> dict[str, str]:
        return self.headers.metadata

    @property
    def snoozes(self) -> int:
        """Number of times that the handler has put this job off (``Snooze``)."""
        return self.headers.snoozes

    @property
    def schedule(self) -> str | None:
        """Name of the schedule whose fire this job is; ``None``: it was submitted."""
        return self.headers.schedule

    @property
    def nominal_at(self) -> datetime | None:
        """Nominal time of that fire (aware, UTC), the same in every attempt: what a report is about, however late it runs."""
        return moment(self.headers.nominal_us)

    @property
    def signal(self) -> ReceivedSignal | None:
        """The signal that the job has waited for (``wait_for=`` of the submit), the same in every attempt; ``None``: it
        waited for none, or runs because none came in time."""
        received = self.headers.received
        if received is None or self.headers.signal is None:
            return None
        return ReceivedSignal(key=self.headers.signal.key, payload_json=received.payload, sent_us=received.sent_us)

    @property
    def batch(self) -> UUID | None:
        """The batch that this job is in, for ``parent=`` of a batch inside it and for ``cluster.batches``; ``None``: in
        none. It is the batch's id, or another one that stands for it."""
        return UUID(bytes=range_of(self.job_id_bytes)) if self.headers.batch else None

    @property
    def last_attempt(self) -> bool:
        """True when a failure now is final."""
        return self.attempt >= self.max_attempts

    @property
    def remaining_seconds(self) -> float:
        """Seconds until this attempt is cut off; infinite without a time-out, never below zero."""
        return max(self.deadline_boottime - self.clock.boottime(), 0.0)

    @property
    def overdue(self) -> bool:
        """True when this attempt has run longer than ``warn_after``: time to hurry, or to stop at a good place."""
        return self.clock.boottime() >= self.overdue_boottime

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """``async with ctx.transaction() as connection``: an asyncpg connection in a transaction on the master's database,
        which is committed together with the job's outcome after the handler has returned. If the handler raises, is
        stopped, or its attempt has been superseded, all of it is rolled back. Once per attempt.

        Raises:
            InputError: the handler is not declared with ``transactional=True``, or has used it already.
        """
        if self.runtime is None:
            raise InputError(
                f"ctx.transaction() is not open to handler {self.handler!r}",
                hint="declare it with transactional=True",
            )
        return self.runtime.transaction()

    @property
    def outbox(self) -> Outbox:
        """Messages to other systems, sent when the transaction of ``ctx.transaction()`` is committed with the outcome:
        ``await ctx.outbox.send("webhooks", {"order": 17})``.

        Raises:
            InputError: the handler is not declared with ``transactional=True``.
        """
        if self.runtime is None:
            raise InputError(
                f"ctx.outbox is not open to handler {self.handler!r}: it has no transaction",
                hint="declare it with transactional=True",
            )
        return Outbox(self.runtime)

    async def confirm(self, result: object = None) -> None:
        """The job is done, with this result: recorded when this returns, whatever the handler does afterwards.

        Raises:
            InputError: the handler is not declared with ``confirm="explicit"``, or has confirmed already; or the result
                cannot be encoded, does not fit the return annotation, or is too large. Nothing was recorded.
            Unavailable: the master cannot be reached; nothing was recorded.
            Conflict: the attempt has been superseded: nothing was recorded.
            OutcomeUnknown: the answer was lost; the agent reads the job's row when the handler has ended.
        """
        await self._confirming().confirm(result)

    @property
    def confirmation(self) -> str:
        """The text that names this attempt; its holder may confirm it from outside, with ``cluster.confirm_run``."""
        return self._confirming().confirmation

    def _confirming(self) -> AttemptRuntime:
        if self.runtime is None:
            raise InputError(
                f"handler {self.handler!r} is done when it returns, and cannot be confirmed",
                hint='declare it with confirm="explicit"',
            )
        return self.runtime

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Report how far this run is, in units of the handler's own. ``JobView.progress`` and ``jobmaster job show`` show the
        last report, about a second later. A call costs a few microseconds, and may come from any thread.

        Args:
            done: what is done, 0 or more.
            total: what there is to do; left out while it is not known.
            text: a few words, such as the name of the step; at most 200 characters are kept.

        Raises:
            InputError: a value is no number, below 0 or infinite, or ``total`` is 0.
        """
        self.last_progress = progress = checked_progress(done, total, text)
        if self.progress_sink is not None:
            self.progress_sink.note(self.job_id_bytes, self.token, progress)

    def log(self, text: str, level: LogLevelName | int = "info") -> None:
        """Keep a line with the job: ``cluster.logs(job)`` and ``jobmaster job logs ID`` show it, about a second later. Of the
        lines of a run, the last 100 are kept, or as many as the handler's ``keep_logs``; the oldest are dropped. A call costs
        a few microseconds, and may come from any thread.

        Args:
            text: at most 2,000 characters are kept.
            level: a name such as ``"warning"``, or a number of ``logging``.

        Raises:
            InputError: the text is none, or there is no such level.
        """
        if not isinstance(text, str):
            raise InputError(f"ctx.log: text must be text, not {type(text).__name__}")
        parsed = LogLevel.parse(level)
        if self.log_sink is None or self.keep_logs == 0:
            return
        if self.run_log is None:
            with _FIRST_LINE:
                if self.run_log is None:
                    lines = LINES_DEFAULT if self.keep_logs is None else self.keep_logs
                    self.run_log = RunLog(self.log_sink, self.job_id_bytes, self.token, lines, self.clock)
        self.run_log.add(parsed, text)

    def check(self) -> None:
        """Raise ``Cancel`` when the run should end: for loops in threaded handlers."""
        if self.cancelled:
            raise Cancel("cancelled while running")
