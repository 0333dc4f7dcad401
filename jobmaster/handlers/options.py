"""The options of a handler's declaration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Literal, TypedDict, TypeVar

import msgspec

from jobmaster.handlers.decisions import PAUSE_SECONDS_MAX
from jobmaster.handlers.flow.breaker import Breaker, checked_breaker
from jobmaster.handlers.flow.limits import Limit, checked_limits
from jobmaster.handlers.flow.ordering import Ordering, checked_ordering
from jobmaster.handlers.flow.unique import CheckedUnique, Unique, checked_unique
from jobmaster.handlers.names import LANE, check_lane
from jobmaster.handlers.retry_rules import RetryPolicy, RetryRules, checked_rules
from jobmaster.handlers.secrets import checked_secret
from jobmaster.model.errors import ConfigError, InputError
from jobmaster.model.flow.tenant import checked_tenant
from jobmaster.model.job import Confirm, Delivery, Priority, PriorityLabel, RunMode, StartRule
from jobmaster.model.job_log import checked_keep_logs
from jobmaster.rules.time_limit import time_limit

_Word = TypeVar("_Word", bound=StrEnum)

DELAYS_MAX = 1000
"""Delays that a handler may list."""
NEEDS_MAX = 16
"""Names that a handler may have in ``needs``."""
_BACKOFF = ("backoff", "backoff_factor", "backoff_max", "backoff_jitter")
_RETRIES = (*_BACKOFF, "delays", "retry", "retry_on", "give_up_on")
"""Options that only mean something when there is a second attempt."""


class JobOptions(TypedDict, total=False):
    """Options of ``@handlers.job(...)``. What is left out comes from the cluster's job defaults."""

    name: str
    """Name in the cluster; an explicit one survives moving the function. Default: ``module.qualname``."""
    priority: Priority | PriorityLabel
    lane: str
    timeout: float | timedelta
    """Seconds that one attempt may run."""
    warn_after: float | timedelta
    """Seconds of run after which an attempt is overdue: a line in the log, a metric, and ``ctx.overdue``. It runs on."""
    accept_time: float | timedelta
    """Seconds that a job may wait for its start in the bucket of one agent. Then another agent gets it, without an attempt.
    0 = no limit."""
    complete_time: float | timedelta
    """Seconds of run after which the job is given to another agent; the slow run goes on, and its outcome does not count. Not
    with ``at_most_once``. 0 = no limit."""
    cancel_slow: bool
    """With ``complete_time``: the slow run is stopped as soon as another agent has the job."""
    max_attempts: int
    """Attempts in all, the first included."""
    backoff: float | timedelta
    """Seconds before the second attempt."""
    backoff_factor: float
    backoff_max: float | timedelta
    backoff_jitter: float
    delays: Sequence[float | timedelta]
    """Seconds before the second attempt, the third and so on, instead of a back-off; the last one is repeated. Without
    ``max_attempts`` there is one attempt more than delays. They are exact unless ``backoff_jitter`` spreads them."""
    retry_on: type[Exception] | Sequence[type[Exception]]
    """Only errors of these types are tried again."""
    give_up_on: type[Exception] | Sequence[type[Exception]]
    """Errors of these types end the job as FAILED at once."""
    retry: RetryPolicy
    """Decides after each error: ``(ctx, error)`` -> seconds or a timedelta until the next attempt, True, False (no other
    attempt) or ``None`` (as without it). A plain function that does no I/O."""
    mode: RunMode | Literal["async", "thread", "process"]
    """Where it runs. Default: ``async`` for ``async def``, ``thread`` for ``def``."""
    start: StartRule | Literal["lease", "fenced"]
    """What authorises a start: the agent's lease (default), or a PROCESSING write that the master accepted."""
    transactional: bool
    """It uses ``ctx.transaction()``: what it writes there is committed together with its outcome, or not at all."""
    confirm: Confirm | Literal["return", "explicit"]
    """What ends the job: the handler's return (default), or ``await ctx.confirm(result)``."""
    confirm_within: float | timedelta
    """With ``confirm="explicit"``: seconds after the return in which ``cluster.confirm_run`` may end the job."""
    needs: str | Sequence[str]
    """What an agent must provide (``agents.<name>.provides``) to run it, such as ``"gpu"``. Others do not have it."""
    unique: Unique
    """At most one job of a key at a time; see ``Unique``. A submit with ``unique=`` or ``idempotency_key=`` of its own is
    not subject to it, nor are fires of schedules, retries as new jobs and jobs that Spark submits."""
    limit: Limit | Sequence[Limit]
    """How many of its jobs may run at once, or start in a time, in the whole cluster: ``Limit("stripe", 100)``. A job starts
    when every limit has a permit for it; until then it waits and uses up no attempt."""
    ordering_key: Ordering
    """Jobs of one key run one at a time, in the order of their submits: a template over the arguments (``"order:{order}"``;
    text, whole numbers and booleans), or a function of a dictionary of them. A submit may give another key. Each job is a
    committed row (level ``master``)."""
    delivery: Delivery | Literal["at_least_once", "at_most_once"]
    """``at_most_once``: one start, authorised by the master, and no other after it, whatever happens (so no retries). Only a
    ``Snooze`` of the handler itself leads to another one."""
    secret: str | Sequence[str]
    """Arguments whose values people are not shown: lists and pages have ``***`` in their place, and the values are cut out of
    the texts of errors, of ``ctx.log`` and of ``ctx.progress``. The handler gets the true values."""
    keep_logs: int
    """Lines of each run that are kept with the job, those of ``logging`` among them: the last ones, at most 10,000. Default:
    those of ``ctx.log`` alone, at most 100. 0 = none."""
    breaker: Breaker | str
    """Circuit breaker of a resource: while the resource fails, the jobs wait in the master and use up no attempt."""
    tenant: str
    """For whom its jobs run when their submit, or their schedule, names no tenant: ``submit(tenant=)``."""


class HandlerOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The same, checked. ``None`` = the cluster's job default."""

    priority: Priority | None = None
    lane: str | None = None
    timeout_seconds: float | None = None
    max_attempts: int | None = None
    backoff_seconds: float | None = None
    backoff_factor: float | None = None
    backoff_max_seconds: float | None = None
    backoff_jitter: float | None = None
    delays_seconds: tuple[float, ...] | None = None
    retry_rules: RetryRules | None = None
    warn_after_seconds: float | None = None
    accept_seconds: float | None = None
    complete_seconds: float | None = None
    cancel_slow: bool = False
    mode: RunMode = RunMode.ASYNC
    start: StartRule = StartRule.LEASE
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    transactional: bool = False
    confirm: Confirm = Confirm.RETURN
    confirm_within_seconds: float | None = None
    needs: tuple[str, ...] = ()
    unique: CheckedUnique | None = None
    limits: tuple[Limit, ...] = ()
    breaker: Breaker | None = None
    keep_logs: int | None = None
    secret: tuple[str, ...] = ()
    ordering: Ordering | None = None
    tenant: str | None = None
    is_ordered: bool = False
    """Of a job with an ordering key: the master admits its start."""
    borrows: bool = False
    """Only its limit asks for a write before its start: with a permit that was lent to the agent it starts without one."""

    @property
    def records_itself(self) -> bool:
        """Its success is recorded by the attempt itself, not by the agent's batches."""
        return self.transactional or self.confirm is Confirm.EXPLICIT

    def ordered(self) -> HandlerOptions:
        """The same, of a job with an ordering key."""
        return msgspec.structs.replace(
            self, is_ordered=True, start=StartRule.FENCED, complete_seconds=None, borrows=False
        )

    def once(self) -> HandlerOptions:
        """The same, of a job that is to be started at most once. It has no ``complete_time``: no other run may begin."""
        return msgspec.structs.replace(
            self,
            delivery=Delivery.AT_MOST_ONCE,
            start=StartRule.FENCED,
            max_attempts=1,
            complete_seconds=None,
            borrows=False,
        )


def checked_options(options: JobOptions, *, handler: str, is_async: bool) -> HandlerOptions:
    """Options with their types and ranges checked; ``ConfigError`` names the handler and the option."""
    unknown = set(options) - JobOptions.__annotations__.keys()
    if unknown:
        raise ConfigError(
            f"handler {handler!r}: unknown option {', '.join(sorted(unknown))}",
            hint=f"valid are {', '.join(JobOptions.__annotations__)}",
        )
    try:
        mode = _one_of(RunMode, options.get("mode", RunMode.ASYNC if is_async else RunMode.THREAD), "mode")
        start = _one_of(StartRule, options.get("start", StartRule.LEASE), "start")
        delivery = _one_of(Delivery, options.get("delivery", Delivery.AT_LEAST_ONCE), "delivery")
        priority = None if (given := options.get("priority")) is None else Priority.parse(given)
        delays = _delays(options)
        timeout_seconds = _seconds(options.get("timeout"), "timeout", above=0.0)
        attempts = _count(options.get("max_attempts"))
        checked = HandlerOptions(
            priority=priority,
            lane=None if (lane := options.get("lane")) is None else check_lane(lane),
            timeout_seconds=timeout_seconds,
            warn_after_seconds=_warn_after(options.get("warn_after"), timeout_seconds),
            accept_seconds=_time_limit(options.get("accept_time"), "accept_time"),
            complete_seconds=_complete_time(options.get("complete_time"), timeout_seconds),
            cancel_slow=_cancel_slow(options),
            max_attempts=len(delays) + 1 if delays and attempts is None else attempts,
            delays_seconds=delays,
            retry_rules=checked_rules(options.get("retry_on"), options.get("give_up_on"), options.get("retry")),
            backoff_seconds=_seconds(options.get("backoff"), "backoff", least=0.0),
            backoff_factor=_seconds(options.get("backoff_factor"), "backoff_factor", least=1.0),
            backoff_max_seconds=_seconds(options.get("backoff_max"), "backoff_max", above=0.0),
            backoff_jitter=_seconds(options.get("backoff_jitter"), "backoff_jitter", least=0.0, most=1.0),
            mode=_fitting(mode, is_async),
            start=start,
            transactional=_transactional(options.get("transactional", False), is_async),
            confirm=_one_of(Confirm, options.get("confirm", Confirm.RETURN), "confirm"),
            confirm_within_seconds=_seconds(options.get("confirm_within"), "confirm_within", above=0.0),
            needs=_needs(options.get("needs")),
            unique=None if (unique := options.get("unique")) is None else checked_unique(unique),
            limits=checked_limits(options.get("limit")),
            breaker=checked_breaker(options.get("breaker"), handler),
            keep_logs=checked_keep_logs(options.get("keep_logs")),
            secret=checked_secret(options.get("secret")),
            ordering=checked_ordering(options.get("ordering_key")),
            tenant=None if (tenant := options.get("tenant")) is None else checked_tenant(tenant),
        )
        checked = _ordered(_limited(_confirmable(checked, options, is_async), options), options)
        return _started_once(checked, options) if delivery is Delivery.AT_MOST_ONCE else checked
    except ConfigError:
        raise
    except (ValueError, TypeError, InputError) as error:
        raise ConfigError(f"handler {handler!r}: {error}") from None


def _one_of(words: type[_Word], value: object, what: str) -> _Word:
    valid = [word.value for word in words]
    if not isinstance(value, str) or value not in valid:
        raise ValueError(f"{what} must be one of {', '.join(map(repr, valid))}, not {value!r}")
    return words(value)


def _needs(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence | set | frozenset):
        raise InputError(f"needs must be a name or a list of names, not {value!r}")
    if len(names) > NEEDS_MAX:
        raise InputError(f"needs has {len(names)} names, the limit is {NEEDS_MAX}")
    for name in names:
        if not isinstance(name, str) or not LANE.fullmatch(name):
            raise InputError(f"needs: {name!r} is no name (1 to 48 lower-case letters, digits, _ and -)")
    return tuple(sorted(set(names)))


def _fitting(mode: RunMode, is_async: bool) -> RunMode:
    if mode is RunMode.ASYNC and not is_async:
        raise ValueError("mode 'async' needs an 'async def': a plain function would block the agent's event loop")
    if mode is RunMode.THREAD and is_async:
        raise ValueError("mode 'thread' needs a plain 'def'; an 'async def' runs in mode 'async' or 'process'")
    return mode


def _transactional(value: object, is_async: bool) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"transactional must be True or False, not {value!r}")
    if value and not is_async:
        raise ValueError(
            "transactional needs an 'async def', because ctx.transaction() gives an asyncpg connection; what blocks may be "
            "called there with asyncio.to_thread"
        )
    return value


def _confirmable(checked: HandlerOptions, options: JobOptions, is_async: bool) -> HandlerOptions:
    """With what an explicit confirmation means; ``ValueError`` when another option does not go with it."""
    if checked.confirm is Confirm.RETURN:
        if checked.confirm_within_seconds is not None:
            raise ValueError("confirm_within goes with confirm 'explicit'")
        return checked
    if not is_async:
        raise ValueError("confirm 'explicit' needs an 'async def', because ctx.confirm() is awaited")
    if checked.transactional:
        raise ValueError(
            "confirm 'explicit' and transactional exclude each other: the commit is the confirmation there"
        )
    if checked.confirm_within_seconds is None:
        return checked
    if options.get("start") is not None and checked.start is StartRule.LEASE:
        raise ValueError("confirm_within needs start 'fenced': a confirmation from outside must find the job's row")
    return msgspec.structs.replace(checked, start=StartRule.FENCED)


def _limited(checked: HandlerOptions, options: JobOptions) -> HandlerOptions:
    """With what a limit means; ``ValueError`` when another option contradicts it."""
    if not checked.limits:
        return checked
    if checked.complete_seconds:
        raise ValueError(
            "complete_time gives a job to another agent while its slow run goes on, and a limit cannot count that run; "
            "leave one of them out, and let a timeout end slow runs"
        )
    if options.get("start") is not None and checked.start is StartRule.LEASE:
        raise ValueError("limit needs start 'fenced': the master gives the permits")
    # One permit of one limit without a rate, on the event loop: a start of these costs less than its admission.
    borrows = (
        checked.start is StartRule.LEASE
        and checked.mode is RunMode.ASYNC
        and not checked.records_itself
        and len(checked.limits) == 1
        and checked.limits[0].rate is None
        and checked.limits[0].weight == 1
    )
    return msgspec.structs.replace(checked, start=StartRule.FENCED, borrows=borrows)


def _ordered(checked: HandlerOptions, options: JobOptions) -> HandlerOptions:
    """The same; ``ValueError`` when an option contradicts an ordering key."""
    if checked.ordering is None:
        return checked
    if checked.complete_seconds:
        raise ValueError("complete_time starts a job beside its slow run, and an ordering_key allows one run at a time")
    if options.get("start") is not None and checked.start is StartRule.LEASE:
        raise ValueError("ordering_key needs start 'fenced': the master decides whose turn it is")
    return checked


def _started_once(checked: HandlerOptions, options: JobOptions) -> HandlerOptions:
    """With what ``at_most_once`` means; ``ValueError`` when another option contradicts it."""
    if options.get("max_attempts") not in (None, 1):
        raise ValueError(f"delivery 'at_most_once' allows one attempt, and max_attempts is {checked.max_attempts}")
    if idle := [name for name in _RETRIES if options.get(name) is not None]:
        raise ValueError(f"delivery 'at_most_once' has no second attempt that {', '.join(idle)} could be for")
    if checked.complete_seconds:
        raise ValueError(
            "delivery 'at_most_once' allows one start, and complete_time gives a job that runs to another agent"
        )
    if options.get("start") is not None and checked.start is StartRule.LEASE:
        raise ValueError(
            "delivery 'at_most_once' needs start 'fenced': only the master can show that no agent has begun"
        )
    return checked.once()


def _delays(options: JobOptions) -> tuple[float, ...] | None:
    """Seconds before each attempt but the first; ``None``: the back-off decides."""
    given: object = options.get("delays")
    if given is None:
        return None
    if backoff := [name for name in _BACKOFF[:3] if options.get(name) is not None]:
        raise ValueError(f"delays take the place of a back-off; leave out {', '.join(backoff)}, or leave out delays")
    if not isinstance(given, list | tuple):
        raise ValueError(f"delays must be a list of seconds or timedeltas, not {given!r:.200}")
    if not 1 <= len(given) <= DELAYS_MAX:
        raise ValueError(f"delays must have 1 to {DELAYS_MAX} entries, not {len(given)}")
    if None in given:
        raise ValueError(f"delays[{given.index(None)}] is None; it must be a number or a timedelta")
    checked = [_seconds(each, f"delays[{n}]", least=0.0, most=PAUSE_SECONDS_MAX) for n, each in enumerate(given)]
    return tuple(each for each in checked if each is not None)


def _warn_after(value: object, timeout_seconds: float | None) -> float | None:
    seconds = _seconds(value, "warn_after", above=0.0)
    if seconds is not None and timeout_seconds is not None and seconds >= timeout_seconds:
        raise ValueError(
            f"warn_after ({seconds:g}) must be less than timeout ({timeout_seconds:g}), which ends the attempt"
        )
    return seconds


def _complete_time(value: object, timeout_seconds: float | None) -> float | None:
    seconds = _time_limit(value, "complete_time")
    if seconds and timeout_seconds is not None and seconds >= timeout_seconds:
        raise ValueError(
            f"complete_time ({seconds:g}) must be less than timeout ({timeout_seconds:g}), which ends the attempt"
        )
    return seconds


def _time_limit(value: object, name: str) -> float | None:
    return None if value is None else time_limit(value, name)


def _cancel_slow(options: JobOptions) -> bool:
    value: object = options.get("cancel_slow", False)
    if not isinstance(value, bool):
        raise ValueError(f"cancel_slow must be True or False, not {value!r}")
    if value and not options.get("complete_time"):
        raise ValueError("cancel_slow goes with complete_time, after which the slow run is stopped")
    return value


def _seconds(
    value: object,
    what: str,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> float | None:
    if value is None:
        return None
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise ValueError(f"{what} must be a number or a timedelta, not {value!r}")
    if above is not None and number <= above:
        raise ValueError(f"{what} must be more than {above:g}, not {number:g}")
    if least is not None and number < least:
        raise ValueError(f"{what} must be at least {least:g}, not {number:g}")
    if most is not None and number > most:
        raise ValueError(f"{what} must be at most {most:g}, not {number:g}")
    return float(number)


def _count(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"max_attempts must be a whole number of at least 1, not {value!r}")
    return value
