"""Structured log: one line per change of state, none per job.

Every event is listed here once. A line has the event's name, a level, and fields; ids are written as canonical UUID text.
The format is text for reading, or JSON (one object a line) for collectors. Control characters in values are escaped, so that
no value can forge a line.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO

from jobmaster.model.ids import text
from jobmaster.model.job_log import RELAYED

LOGGER_NAME = "jobmaster"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Event(StrEnum):
    """Name of every line that an agent or its supervisor may log."""

    AGENT_STARTED = "agent_started"
    AGENT_STOPPING = "agent_stopping"
    AGENT_STOPPED = "agent_stopped"
    METRICS_SERVED = "metrics_served"
    AGENT_FENCED = "agent_fenced"
    AGENT_CERTIFIED_DEAD = "agent_certified_dead"
    DRAIN_REQUESTED = "drain_requested"
    PAUSES_CHANGED = "pauses_changed"
    LEASE_RENEWAL_FAILED = "lease_renewal_failed"
    CLOCK_SKEWED = "clock_skewed"
    LEASE_TRUSTED_AGAIN = "lease_trusted_again"
    AGENT_SUSPENDED = "agent_suspended"
    AGENT_RESUMED = "agent_resumed"
    STORE_BEAT_FAILED = "store_beat_failed"
    STORE_BEAT_AGAIN = "store_beat_again"
    STORE_UNREACHABLE = "store_unreachable"
    STORE_SILENT = "store_silent"
    STORE_HEARD_AGAIN = "store_heard_again"
    STORE_JOINED = "store_joined"
    STORE_UNFIT = "store_unfit"
    STORE_EMPTIED = "store_emptied"
    SUSPICION = "suspicion"
    HOST_CORDONED = "host_cordoned"
    HOST_UNCORDONED = "host_uncordoned"
    BUCKETS_OPENED = "buckets_opened"
    BUCKET_FORGOTTEN = "bucket_forgotten"
    BUCKET_CLOSED = "bucket_closed"
    BUCKET_FROZEN = "bucket_frozen"
    BUCKET_UNFROZEN = "bucket_unfrozen"
    BUCKET_TAKEN = "bucket_taken"
    BUCKET_DRAINED = "bucket_drained"
    JOBS_GIVEN_UP = "jobs_given_up"
    ENTRY_QUARANTINED = "entry_quarantined"
    BUCKET_DRAIN_POSTPONED = "bucket_drain_postponed"
    BUCKET_DRAIN_SUPERSEDED = "bucket_drain_superseded"
    BUCKET_GIVEN_BACK = "bucket_given_back"
    BUCKET_RESURRECTED = "bucket_resurrected"
    BUCKET_DROPPED = "bucket_dropped"
    CALL_FAILED = "call_failed"
    JOB_UNWRITABLE = "job_unwritable"
    JOB_CONFLICT = "job_conflict"
    OUTCOMES_KEPT = "outcomes_kept"
    OUTCOMES_APPLIED = "outcomes_applied"
    BUCKET_KEEPS_NO_MORE = "bucket_keeps_no_more"
    BUCKET_DRAIN_WAITS = "bucket_drain_waits"
    ROWS_RELEASED = "rows_released"
    ROWS_WITHOUT_MEMORY = "rows_without_memory"
    LEADER_ELECTED = "leader_elected"
    LEADER_RESIGNED = "leader_resigned"
    LEADER_SUPERSEDED = "leader_superseded"
    LANE_UNSERVED = "lane_unserved"
    HANDLER_UNSERVED = "handler_unserved"
    HELP_ASKED = "help_asked"
    HELP_ENDED = "help_ended"
    HELP_IDLE = "help_idle"
    BATCH_ENDED = "batch_ended"
    BULK_ENDED = "bulk_ended"
    BULK_UNREADABLE = "bulk_unreadable"
    FIRES_MISSED = "fires_missed"
    FIRES_SKIPPED = "fires_skipped"
    SCHEDULE_UNREADABLE = "schedule_unreadable"
    SCHEDULE_RETIRED = "schedule_retired"
    SCHEDULE_NOT_PUT = "schedule_not_put"
    LIMITS_OVERRIDDEN = "limits_overridden"
    LIMITS_UNKNOWN = "limits_unknown"
    BREAKER_CHANGED = "breaker_changed"
    ORPHANS_RETURNED = "orphans_returned"
    JOBS_EXPIRED = "jobs_expired"
    RANGE_RETIRED = "range_retired"
    RANGE_DISCARDED = "range_discarded"
    RETENTION_BLOCKED = "retention_blocked"
    RETENTION_PROGRESS = "retention_progress"
    LEFTOVERS_FORGOTTEN = "leftovers_forgotten"
    JOBS_UNCONFIRMED = "jobs_unconfirmed"
    SIGNALS_MISSED = "signals_missed"
    JOBS_REASSIGNED = "jobs_reassigned"
    JOBS_TOO_SLOW = "jobs_too_slow"
    JOBS_NOT_ACCEPTED = "jobs_not_accepted"
    PARTITIONS_MADE = "partitions_made"
    PERIODIC_TASK_FAILED = "periodic_task_failed"
    PERIODIC_TASK_RECOVERED = "periodic_task_recovered"
    JOB_FAILED = "job_failed"
    ATTEMPT_FAILED = "attempt_failed"
    JOB_SNOOZED = "job_snoozed"
    ATTEMPT_OVERDUE = "attempt_overdue"
    RETRY_POLICY_FAILED = "retry_policy_failed"
    HANDLER_OUTPUT = "handler_output"
    LIFESPAN_FAILED = "lifespan_failed"
    ONCE_ACTION_DONE = "once_action_done"
    ONCE_ACTION_FAILED = "once_action_failed"
    ONCE_ACTION_WAITS = "once_action_waits"
    EXIT_REFUSED = "exit_refused"
    HANDLER_GIVEN_UP = "handler_given_up"
    THREADS_EXHAUSTED = "threads_exhausted"
    LOOP_STALLED = "loop_stalled"
    CHILD_STARTED = "child_started"
    CHILD_EXITED = "child_exited"
    CHILD_OVERDUE = "child_overdue"
    CHILD_KILLED = "child_killed"
    CHILD_REFUSED = "child_refused"
    CRASH_LOOP = "crash_loop"
    CERTIFICATE_WRITTEN = "certificate_written"
    CERTIFICATE_FAILED = "certificate_failed"
    SUPERVISOR_STARTED = "supervisor_started"
    SUPERVISOR_STOPPING = "supervisor_stopping"
    SUPERVISOR_STOPPED = "supervisor_stopped"
    SUPERVISOR_LOST = "supervisor_lost"
    RELOADED = "reloaded"
    RELOAD_REFUSED = "reload_refused"


Fields = Mapping[str, object]


class EventLog:
    """Writes events with the fixed fields of this process (agent, name)."""

    __slots__ = ("_fixed", "_logger")

    def __init__(self, fixed: Fields | None = None) -> None:
        self._fixed = dict(fixed or {})
        self._logger = logging.getLogger(LOGGER_NAME)

    def with_fields(self, more: Fields) -> EventLog:
        """The same log with more fixed fields."""
        return EventLog({**self._fixed, **more})

    def debug(self, event: Event, fields: Fields | None = None) -> None:
        """For debugging only."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: Event, fields: Fields | None = None) -> None:
        """A normal change of state."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: Event, fields: Fields | None = None) -> None:
        """A failure that the cluster repairs by itself."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: Event, fields: Fields | None = None, *, trace: bool = False) -> None:
        """A failure that an operator should look at; ``trace`` adds the traceback of the current exception."""
        self._write(logging.ERROR, event, fields, trace=trace)

    def _write(self, level: int, event: Event, fields: Fields | None, *, trace: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            values = {**self._fixed, **(fields or {})}
            self._logger.log(level, event.value, extra={"jobmaster_fields": values}, exc_info=trace)


def plain(value: object) -> object:
    """A field as a JSON value: ids as UUID text, seconds with three decimals."""
    if isinstance(value, bytes):
        return text(value) if len(value) == 16 else value.hex()
    if isinstance(value, float):
        return round(value, 3)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)


class JsonLines(logging.Formatter):
    """One JSON object a line: ``at``, ``level``, ``event``, then the fields. Lines of other loggers have ``message`` and
    ``logger`` in place of ``event``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {"at": _stamp(record), "level": record.levelname.lower()}
        if _is_event(record):
            line["event"] = record.getMessage()
        else:
            line |= {"message": record.getMessage(), "logger": record.name}
        for name, value in _fields(record).items():
            line.setdefault(name, plain(value))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["traceback"] = record.exc_text
        return json.dumps(line, ensure_ascii=True)


class TextLines(logging.Formatter):
    """``2026-01-31T12:00:00.000Z warning bucket_drained bucket=... moved=12``. Lines of other loggers have the message in
    place of the event, and the field ``logger``."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_stamp(record), f"{record.levelname.lower():7}", _one_line(record.getMessage())]
        fields = _fields(record)
        if not _is_event(record):
            logger: Fields = {"logger": record.name}
            fields = {**logger, **fields, **logger}
        parts.extend(f"{_one_line(name)}={_quoted(plain(value))}" for name, value in fields.items())
        line = " ".join(parts)
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        return f"{line}\n{trace}" if trace else line


def trace_fields() -> Fields:
    """Ids of the current trace and span; nothing without one, and where OpenTelemetry is not in use."""
    # Looked up and not imported: it is there only where traces are on, or where handlers use it.
    trace = sys.modules.get("opentelemetry.trace")
    current_span = getattr(trace, "get_current_span", None)  # absent while another thread imports the module
    if current_span is None:
        return {}
    context = current_span().get_span_context()
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"} if context.is_valid else {}


class JobFields(logging.Filter):
    """Adds job, handler and attempt to each line that a running handler logs, and the ids of its trace if it has one."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always true: the line is logged."""
        # Looked up and not imported: a supervisor logs too, and it stays small.
        handlers = sys.modules.get("jobmaster.handlers.current")
        if handlers is None or hasattr(record, "jobmaster_fields"):
            return True
        if (context := handlers.current_job()) is not None:
            record.jobmaster_fields = {
                "job": context.job_id,
                "handler": context.handler,
                "attempt": context.attempt,
                **trace_fields(),
            }
            if context.secret_texts is not None:
                sys.modules["jobmaster.handlers.secrets"].hide_in_record(record, context.secret_texts)
        return True


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "jobmaster_fields", RELAYED}
"""Attributes of every record; the others were given by the caller as ``extra``."""


def _is_event(record: logging.LogRecord) -> bool:
    return record.name == LOGGER_NAME


def extra_of(record: logging.LogRecord) -> Fields:
    """What the caller gave as ``extra``."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _fields(record: logging.LogRecord) -> Fields:
    own: Fields = getattr(record, "jobmaster_fields", {})
    extra = extra_of(record)
    return {**own, **extra, **own} if extra else own  # ours come first, and win


def _stamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z"


def _quoted(value: object) -> str:
    shown = str(value)
    if shown and all(char.isalnum() or char in "-_.:/+%@" for char in shown):
        return shown
    return json.dumps(shown)


def _one_line(value: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in value)


def configure(log_level: str, log_format: str, stream: TextIO | None = None, *, root: bool = False) -> None:
    """Send the events of this process to ``stream`` (standard error by default).

    Args:
        root: the lines of all other loggers, too.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    handler.addFilter(JobFields())
    logger = logging.getLogger(LOGGER_NAME)
    for one in (logger, logging.getLogger()) if root else (logger,):
        for old in list(one.handlers):
            one.removeHandler(old)
        one.addHandler(handler)
    logger.propagate = False
    set_level(log_level, root=root)


def relay(level: str, logger: str, message: str, fields: Fields) -> None:
    """Log a line of a handler in another process by the root logger of this one."""
    number = logging.getLevelNamesMapping().get(level, logging.INFO)
    root = logging.getLogger()
    if not root.isEnabledFor(number):
        return
    # Not by a logger of that name: loggers are never freed, and the name comes from outside.
    name = f"{logger}.handler" if logger == LOGGER_NAME else logger
    values = {"name": name, "levelno": number, "levelname": level, "msg": message, "jobmaster_fields": fields}
    root.handle(logging.makeLogRecord({**values, RELAYED: True}))


def set_level(log_level: str, *, root: bool) -> None:
    """Set the least severe level that is logged."""
    logging.getLogger(LOGGER_NAME).setLevel(_LEVELS[log_level])
    if root:
        logging.getLogger().setLevel(_LEVELS[log_level])
