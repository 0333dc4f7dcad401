"""Builds the row of an outcome from the end of a handler; no other module builds one.

Pure bookkeeping on the hot path: no I/O, no task, one tuple per job. ``rules.attempts`` decides between a retry and the
end; the rows go to the outcome writer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from enum import Enum
from math import inf
from typing import Protocol

import msgspec

from jobmaster.clock import Clock
from jobmaster.codec import encode_error, encode_headers, error_of
from jobmaster.encryption import CannotOpen, NotSealed, SealKind
from jobmaster.handlers import Cancel, Decision, HandlerOptions, JobContext, Retry, RetryDecision, Snooze
from jobmaster.handlers.context import ProgressSink
from jobmaster.handlers.decisions import PAUSE_SECONDS_MAX, asked_seconds, decision_in, pause_seconds
from jobmaster.handlers.lifespan import Lifespan
from jobmaster.handlers.run_log import LogSink
from jobmaster.handlers.secrets import hide_in_context, without_secrets
from jobmaster.model.errors import InvalidArguments
from jobmaster.model.job import Delivery, ErrorInfo, FinalRow, Headers, HoldRow, JobState, Priority, StartRule
from jobmaster.model.redaction import SecretTexts
from jobmaster.rules.attempts import backoff_seconds, listed_seconds, may_retry, may_snooze, runs_alone
from jobmaster.rules.capabilities import lacking
from jobmaster.settings.model import JobDefaults, Limits
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase
from jobmaster_agents.state.time_limits import headers_of, read_headers

_new_tuple = tuple.__new__
_from_bytes = int.from_bytes  # the job's creation time (``model.ids.created_ms``, without a call of Python)
_ENDED, _GONE, _SUCCEEDED = JobPhase.ENDED, JobPhase.GONE, JobState.SUCCEEDED  # as in ``state.job_table``: found once
_BAD_HEADERS = "the headers of the job cannot be read; was it submitted by a newer client?"
_ABANDONED = ErrorInfo(
    type="Abandoned",
    message="stopped because its agent leaves; a job delivered at most once is not started again",
    reason="abandoned",
)
UNCONFIRMED = ErrorInfo(type="Unconfirmed", message="it was not confirmed in time", reason="unconfirmed")
_NEVER_RAN = (JobState.CANCELLED, JobState.EXPIRED)
"""States that a job can reach without a start; they then use up no attempt."""


class StopCause(Enum):
    """Why a running job is being stopped."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    SUPERSEDED = "superseded"
    """Its bucket or its row belongs to another assignment: nothing may be recorded."""
    RELEASE = "release"
    """The job is given back; no attempt is used up."""


class OutcomeSink(Protocol):
    """Takes the rows (the outcome writer)."""

    def final(self, job: ClaimedJob) -> None:
        """``job.row`` is a ``FinalRow``, and ``job.weight`` its bytes."""
        ...

    def hold(self, job: ClaimedJob, *, here: bool) -> None:
        """``job.row`` is a ``HoldRow``; ``here``: keep it in its bucket."""
        ...


class OutcomeBuilder:
    """Builds rows.

    Args:
        retry_here_seconds: a retry due within this time stays in its bucket (the transient threshold).
        on_policy_problem: called with a job and the reason why the answer of its handler's ``retry`` did not count.
    """

    def __init__(
        self,
        sink: OutcomeSink,
        defaults: JobDefaults,
        limits: Limits,
        retry_here_seconds: float,
        clock: Clock,
        chance: random.Random,
        on_policy_problem: Callable[[ClaimedJob, str], None] = lambda job, why: None,
    ) -> None:
        self._sink = sink
        self._clock = clock
        self.defaults = defaults
        self._limits = limits
        self._retry_here_seconds = retry_here_seconds
        self._chance = chance
        self.on_policy_problem = on_policy_problem
        self.resources: Mapping[Lifespan, object] = {}
        """What the lifespans of this process have yielded."""
        self.progress_sink: ProgressSink | None = None
        """Takes over the reports of handlers."""
        self.log_sink: LogSink | None = None
        """Takes over the lines of handlers."""
        self.retried = 0
        self.abandoned = 0
        self.not_sealed = 0

    # ------------------------------------------------------------ before and around the call

    def runs_alone(self, job: ClaimedJob) -> bool:
        """True when the job has been rescued so often that it gets a process of its own."""
        return runs_alone(job.entry.rescues, self.defaults.max_rescues)

    def context(self, job: ClaimedJob, deadline: float) -> JobContext:
        """The ``ctx`` of the handler."""
        entry = job.entry
        owned = job.claimed_list.owned
        context: JobContext = JobContext(
            job_id_bytes=entry.id,
            token=entry.token,
            handler=entry.handler,
            lane=owned.lane,
            priority=Priority(owned.priority),
            attempt=entry.attempt + 1,
            max_attempts=self.max_attempts(job),
            rescues=entry.rescues,
            headers=self.headers(job),
            deadline_boottime=deadline,
            clock=self._clock,
            progress_sink=self.progress_sink,
            log_sink=self.log_sink,
        )
        handler = job.handler
        if handler is None:
            return context
        if handler.lifespan is not None:
            context.resources = self.resources[handler.lifespan]
        context.keep_logs = handler.options.keep_logs
        if secret := handler.options.secret:
            hide_in_context(context, SecretTexts(_open_args(job), secret))
        if (warn_after := handler.options.warn_after_seconds) is not None:
            context.warn_after = warn_after
            context.overdue_boottime = deadline - self.timeout_seconds(job) + warn_after
        return context

    def headers(self, job: ClaimedJob) -> Headers:
        """Decoded headers (most jobs have none). Unreadable ones count as none: such a job is never started."""
        return headers_of(job)

    def timeout_seconds(self, job: ClaimedJob) -> float:
        """In seconds: of the submit, else of the handler, else the default."""
        own = self.headers(job).timeout_seconds if job.entry.headers else None
        if own is None and job.handler is not None:
            own = job.handler.options.timeout_seconds
        return self.defaults.timeout_seconds if own is None else own

    def max_attempts(self, job: ClaimedJob) -> int:
        """Of the submit, else of the handler, else the default; one for a job that is delivered at most once."""
        own = self.headers(job).max_attempts if job.entry.headers and not is_at_most_once(job) else None
        if own is None and job.handler is not None:
            own = job.handler.options.max_attempts
        return self.defaults.max_attempts if own is None else own

    def is_early(self, job: ClaimedJob, now: float) -> bool:
        """True when the job is due later."""
        return job.entry.due_us > _store_us(job, now)

    def must_not_start(self, job: ClaimedJob, now: float) -> bool:
        """True when a job with headers or a due time must not start now: expired, not due yet, headers unreadable, or of a
        newer program that this one does not know."""
        entry = job.entry
        if entry.due_us and entry.due_us > _store_us(job, now):
            return True
        if not entry.headers:
            return False
        if lacking(entry.headers):
            return True
        if (headers := read_headers(entry.headers)) is None:
            return True
        job.headers = headers
        if headers.at_most_once and job.handler is not None:
            job.handler = job.handler.once()
        if headers.ordering_key is not None and job.handler is not None and not job.handler.options.is_ordered:
            job.handler = job.handler.ordered()
        return headers.expires_us is not None and _store_us(job, now) >= headers.expires_us

    def end_unstarted(self, job: ClaimedJob, now: float) -> None:
        """End a job without a start: cancelled, unreadable, expired, not due yet, or what this agent lacks: the
        handler, or a capability that the job requires."""
        entry = job.entry
        if job.cancelled:
            self.cancelled(job, "cancelled before it started", now, now)
        elif lacking(entry.headers):
            self.release(job)  # unread: its headers may have a form that this program does not know
        elif entry.headers and read_headers(entry.headers) is None:
            self._fail(job, ErrorInfo(type="InvalidHeaders", message=_BAD_HEADERS, reason="arguments"), now, now)
        elif (expires_us := self.headers(job).expires_us) is not None and _store_us(job, now) >= expires_us:
            self._final(
                job, JobState.EXPIRED, now, now, error=_error("Expired", "not started before it expired", "expired")
            )
        elif entry.due_us > _store_us(job, now):
            self.postpone(job, now)
        else:
            self.release(job)  # it cannot bounce: onboarding asks only for jobs of handlers this agent has

    # ------------------------------------------------------------ after it

    def returned(self, job: ClaimedJob, result: object, started: float, ended: float) -> None:
        """The handler returned."""
        assert job.handler is not None
        encoded = None if result is None and job.handler.returns_none else self.encode(job, result)
        if isinstance(encoded, ErrorInfo):
            self._fail_attempt(job, encoded, started, ended)
        else:
            self.encoded(job, encoded, started, ended)

    def encode(self, job: ClaimedJob, result: object) -> bytes | ErrorInfo | None:
        """The result as it will be recorded, or the error if it cannot be."""
        assert job.handler is not None
        try:
            encoded = job.handler.encode_result(result, self._limits.result_bytes)
            if job.handler.cipher is None or isinstance(encoded, ErrorInfo):
                return encoded
            return sealed_result(job, encoded)
        except BaseException as error:  # a result is foreign code: its properties and mappings may raise anything
            return error_of(error, reason="result", limit_bytes=self._limits.error_bytes)

    def success_row(self, job: ClaimedJob, started: float) -> FinalRow:
        """The row of a success without result and run time, for an attempt that records its outcome itself."""
        entry, owned = job.entry, job.claimed_list.owned
        waited_us = (
            job.claimed_list.clock_us + int(started * 1e6) - (entry.due_us or _from_bytes(entry.id[:6], "big") * 1000)
        )
        return FinalRow(
            entry.id, JobState.SUCCEEDED, owned.priority, owned.lane, entry.handler, entry.token, *owned.fence[:2],
            entry.attempt + 1, entry.rescues, entry.due_us, max(waited_us, 0), 0, entry.args, entry.headers, None, None,
        )  # fmt: skip

    def retry_if_unconfirmed(self, job: ClaimedJob) -> tuple[float, bytes | None]:
        """What follows if this attempt is not confirmed: the pause before the next one in seconds, or the final error."""
        used = job.entry.attempt + 1
        again = may_retry(used, self.max_attempts(job))
        return (self._backoff(job, used), None) if again else (0.0, encode_error(UNCONFIRMED))

    def encoded(self, job: ClaimedJob, result: bytes | None, started: float, ended: float) -> None:
        """The handler returned this result, as JSON bytes that are checked already; ``None`` for None."""
        self._final(job, _SUCCEEDED, started, ended, result=result)

    def raised(self, job: ClaimedJob, error: BaseException, started: float, ended: float) -> None:
        """The handler raised."""
        if (decision := decision_in(error)) is not None:
            self._decided(job, decision, started, ended)
        elif isinstance(error, InvalidArguments | NotSealed):  # it never ran and will never fit
            self.not_sealed += isinstance(error, NotSealed)
            self.arguments_rejected(job, self._info(error, "arguments"), started, ended)
        else:
            retry_decision = self._apply_rules(job, error, started)
            if retry_decision is not None and not retry_decision.again:
                self.failed(job, self._info(error, "given_up"), started, ended)
            else:
                after_seconds = None if retry_decision is None else retry_decision.after_seconds
                self._fail_attempt(job, self._info(error, "error"), started, ended, after_seconds)

    def _decided(self, job: ClaimedJob, decision: Decision, started: float, ended: float) -> None:
        """The handler has decided itself how its run ends."""
        if isinstance(decision, Retry):
            info = self._info(decision, "retry")
            self._fail_attempt(job, info, started, ended, asked_seconds(decision))
        elif isinstance(decision, Snooze):
            self.snoozed(job, self._info(decision, "snoozed"), started, ended, asked_seconds(decision))
        elif isinstance(decision, Cancel):
            self.cancelled(job, self._info(decision, "cancelled").message, started, ended)
        else:
            self.failed(job, self._info(decision, "failed"), started, ended)

    def _info(self, error: BaseException, reason: str) -> ErrorInfo:
        return error_of(error, reason=reason, limit_bytes=self._limits.error_bytes)

    def _apply_rules(self, job: ClaimedJob, error: BaseException, started: float) -> RetryDecision | None:
        """The retry_decision of the handler's own rules; ``None``: it has none."""
        if job.handler is None or (rules := job.handler.options.retry_rules) is None:
            return None
        retry_decision = rules.decide(error, lambda: self.context(job, started + self.timeout_seconds(job)))
        if retry_decision.policy_problem:
            self.on_policy_problem(job, retry_decision.policy_problem)
        return retry_decision

    def failed(self, job: ClaimedJob, info: ErrorInfo, started: float, ended: float) -> None:
        """The handler failed its own job, or its rules give up: no other attempt."""
        self._fail(job, info, started, ended)

    def snoozed(
        self, job: ClaimedJob, info: ErrorInfo, started: float, ended: float, after_seconds: float | None
    ) -> None:
        """The handler put its job off: it runs again later, and no attempt is used up.

        This holds for a job that is delivered at most once, too: the handler itself has ended its run, and the row is HELD
        (or ASSIGNED with another token) by a write under the identity of this run before anything can start it again.
        """
        if job.phase is JobPhase.GONE:
            return
        headers = self.headers(job)
        if not may_snooze(headers.snoozes, self.defaults.max_snoozes):
            self._fail(job, _snoozed_out(info, self.defaults.max_snoozes), started, ended)
            return
        delay = min(pause_seconds(after_seconds) or 0.0, PAUSE_SECONDS_MAX)
        due_us = _store_us(job, ended) + int(delay * 1e6)
        counted = encode_headers(msgspec.structs.replace(headers, snoozes=headers.snoozes + 1))
        job.phase = JobPhase.ENDED
        row = self._hold_row(job, job.entry.attempt, due_us, _encoded(job, info), _us(ended - started))
        job.row = row._replace(headers=counted)
        self._sink.hold(job, here=delay <= self._retry_here_seconds)

    def arguments_rejected(self, job: ClaimedJob, info: ErrorInfo, started: float, ended: float) -> None:
        """Its arguments do not fit the handler: no other attempt can help."""
        self._fail(job, info, started, ended)

    def cancelled(self, job: ClaimedJob, why: str, started: float, ended: float) -> None:
        """The job ended itself, or was stopped on request."""
        info = ErrorInfo(type="Cancelled", message=why, reason="cancelled")
        self._final(job, JobState.CANCELLED, started, ended, error=_encoded(job, info))

    def stopped(self, job: ClaimedJob, cause: StopCause, started: float, ended: float) -> None:
        """The agent stopped it."""
        if cause is StopCause.TIMEOUT:
            self._timed_out(job, started, ended)
        elif cause is StopCause.CANCEL:
            self.cancelled(job, "cancelled while running", started, ended)
        elif cause is StopCause.RELEASE:
            if is_at_most_once(job):
                self.abandoned += 1
                self._fail(job, _ABANDONED, started, ended)
            else:
                self.release(job)

    def _timed_out(self, job: ClaimedJob, started: float, ended: float) -> None:
        text = f"ran for {ended - started:.3f} s, its timeout is {self.timeout_seconds(job):g} s"
        info = ErrorInfo(type="Timeout", message=text, reason="timeout")
        retry_decision = self._apply_rules(job, TimeoutError(text), started)
        if retry_decision is None:
            self._fail_attempt(job, info, started, ended)
        elif retry_decision.again:
            self._fail_attempt(job, info, started, ended, retry_decision.after_seconds)
        else:
            self._fail(job, info, started, ended)

    def attempt_failed(
        self, job: ClaimedJob, info: ErrorInfo, started: float, ended: float, after_seconds: float | None = None
    ) -> None:
        """An attempt failed in a thread or a worker process."""
        self._fail_attempt(job, info, started, ended, after_seconds=pause_seconds(after_seconds))

    def release(self, job: ClaimedJob, *, after_seconds: float = 0.0, now: float = 0.0) -> None:
        """Give it back to the master; no attempt is used up or recorded.

        Args:
            after_seconds: when it should not bounce straight back: how long from ``now`` it stays away.
        """
        if job.phase is JobPhase.GONE:
            return
        entry = job.entry
        due_us = _store_us(job, now + after_seconds) if after_seconds else entry.due_us
        job.phase = JobPhase.ENDED
        job.row = self._hold_row(job, entry.attempt, due_us, None, 0)
        self._sink.hold(job, here=False)

    def postpone(self, job: ClaimedJob, now: float) -> None:
        """A SavePending copy that is due later: it waits in the master or, if soon, among the bucket's assigned jobs."""
        entry = job.entry
        job.phase = JobPhase.ENDED
        job.row = self._hold_row(job, entry.attempt, entry.due_us, None, 0)
        self._sink.hold(job, here=entry.due_us - _store_us(job, now) <= self._retry_here_seconds * 1e6)

    # ------------------------------------------------------------ rows

    def _fail_attempt(
        self, job: ClaimedJob, info: ErrorInfo, started: float, ended: float, after_seconds: float | None = None
    ) -> None:
        if job.phase is JobPhase.GONE:
            return
        used = job.entry.attempt + 1
        if not may_retry(used, self.max_attempts(job)):
            self._fail(job, info, started, ended)
            return
        self.retried += 1
        delay = self._backoff(job, used) if after_seconds is None else min(max(after_seconds, 0.0), PAUSE_SECONDS_MAX)
        due_us = _store_us(job, ended) + int(delay * 1e6)
        job.phase = JobPhase.ENDED
        job.row = self._hold_row(job, used, due_us, _encoded(job, info), _us(ended - started))
        self._sink.hold(job, here=delay <= self._retry_here_seconds)

    def _backoff(self, job: ClaimedJob, used: int) -> float:
        own = job.handler.options if job.handler is not None else HandlerOptions()
        default = self.defaults
        if own.delays_seconds is not None:
            jitter = own.backoff_jitter or 0.0
            return listed_seconds(used, own.delays_seconds, jitter=jitter, chance=self._chance.random())
        return backoff_seconds(
            used,
            base=_first(own.backoff_seconds, default.backoff_seconds),
            factor=_first(own.backoff_factor, default.backoff_factor),
            maximum=_first(own.backoff_max_seconds, default.backoff_max_seconds),
            jitter=_first(own.backoff_jitter, default.backoff_jitter),
            chance=self._chance.random(),
        )

    def _fail(self, job: ClaimedJob, info: ErrorInfo, started: float, ended: float) -> None:
        self._final(job, JobState.FAILED, started, ended, error=_encoded(job, info))

    def _hold_row(self, job: ClaimedJob, attempt: int, due_us: int, error: bytes | None, ran_us: int) -> HoldRow:
        owned = job.claimed_list.owned
        row = HoldRow.of(job.entry, owned.priority, owned.lane)
        return row._replace(attempt=attempt, due_us=due_us, error=error, ran_us=ran_us)

    def _final(
        self,
        job: ClaimedJob,
        state: JobState,
        started: float,
        ended: float,
        *,
        result: bytes | None = None,
        error: bytes | None = None,
    ) -> None:
        if job.phase is _GONE:  # superseded or dropped with its bucket while it ran: nothing may be recorded
            return
        entry, claimed_list = job.entry, job.claimed_list
        owned = claimed_list.owned
        fence = owned.fence
        job_id, due_us, args, headers = entry.id, entry.due_us, entry.args, entry.headers
        waited_us = claimed_list.clock_us + int(started * 1e6) - (due_us or _from_bytes(job_id[:6], "big") * 1000)
        attempt = entry.attempt if started == ended and state in _NEVER_RAN else entry.attempt + 1
        job.phase = _ENDED
        # The constructor of a NamedTuple is a Python function and takes three times as long.
        job.row = _new_tuple(FinalRow, (
            job_id, state, owned.priority, owned.lane, entry.handler, entry.token, fence[0], fence[1], attempt,
            entry.rescues, due_us, waited_us if waited_us > 0 else 0, int((ended - started) * 1e6), args,
            headers, result, error,
        ))  # fmt: skip
        job.weight = len(args) + len(headers)  # as ``payload_bytes`` of the row, without its call
        if result is not None or error is not None:
            job.weight += len(result or error or b"")
        self._sink.final(job)


def needs_write(job: ClaimedJob) -> bool:
    """True when an accepted PROCESSING write stands before the start of the job."""
    if job.limited is not None and job.limited.borrowed:
        return False
    return bool(job.entry.rescues) or job.handler is None or job.handler.options.start is StartRule.FENCED


def needs_master(job: ClaimedJob) -> bool:
    """True when the job cannot start while the master is away: an accepted write stands before its start, or its handler
    uses a transaction there."""
    return needs_write(job) or (job.handler is not None and job.handler.options.transactional)


def warn_after_seconds(job: ClaimedJob) -> float:
    """Seconds of run after which the attempt is overdue; infinite without the handler's option."""
    own = None if job.handler is None else job.handler.options.warn_after_seconds
    return inf if own is None else own


def is_at_most_once(job: ClaimedJob) -> bool:
    """True when the job must not be started a second time (``must_not_start`` has seen its headers)."""
    return job.handler is not None and job.handler.options.delivery is Delivery.AT_MOST_ONCE


def _snoozed_out(info: ErrorInfo, max_snoozes: int) -> ErrorInfo:
    text = f"the handler has put the job off {max_snoozes} times, and jobs.max_snoozes is {max_snoozes}: {info.message}"
    return msgspec.structs.replace(info, message=text, reason="snoozed_out")


def _first(own: float | None, default: float) -> float:
    return default if own is None else own


def _us(seconds: float) -> int:
    return int(seconds * 1e6)


def _store_us(job: ClaimedJob, moment: float) -> int:
    """A moment of the boot-time clock in microseconds of the store's clock (as read at the claim)."""
    return job.claimed_list.clock_us + int(moment * 1e6)


def _encoded(job: ClaimedJob, info: ErrorInfo) -> bytes:
    """An error of a run, without the values of secret arguments."""
    if job.handler is not None and (secret := job.handler.options.secret):
        info = without_secrets(info, SecretTexts(_open_args(job), secret))
    if job.handler is not None and job.handler.cipher is not None and job.handler.seals(job.entry):
        info = job.handler.cipher.seal_error(job.entry.handler, job.entry.id, info)
    return encode_error(info)


def _open_args(job: ClaimedJob) -> bytes:
    """Arguments that can be read; none where they do not open."""
    assert job.handler is not None
    try:
        return job.handler.args_of(job.entry)
    except CannotOpen:
        return b"{}"


def sealed_result(job: ClaimedJob, result: bytes | None) -> bytes | None:
    """A result as it is recorded: sealed, if the arguments are."""
    if result is None or job.handler is None or job.handler.cipher is None or not job.handler.seals(job.entry):
        return result
    return job.handler.cipher.seal(SealKind.RESULT, job.entry.handler, job.entry.id, result)


def _error(type_: str, message: str, reason: str) -> bytes:
    return encode_error(ErrorInfo(type=type_, message=message, reason=reason))
