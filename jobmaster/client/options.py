"""The options of a submit, checked before anything leaves the process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Self, TypedDict
from uuid import UUID

import msgspec

from jobmaster.client.signals.wait import WaitFor, wait_header
from jobmaster.codec import decode_headers, encode_headers
from jobmaster.handlers import Call, CheckedUnique, Unique, check_lane, check_name, check_tags, checked_unique
from jobmaster.handlers.flow.ordering import ordering_key_text
from jobmaster.model import ids
from jobmaster.model.errors import ClockSkew, InputError, InvalidDueTime
from jobmaster.model.flow.tenant import checked_tenant
from jobmaster.model.job import REQUESTABLE, Delivery, Durability, Headers, OnFull, Priority, PriorityLabel
from jobmaster.model.job_view import EPOCH
from jobmaster.model.trace_context import checked_context
from jobmaster.rules.time_limit import time_limit
from jobmaster.settings.model import Limits

KEY_CHARS_MAX = 200
METADATA_CHARS_MAX = 4096
MEANINGLESS = ("durability", "on_full", "allow_volatile")
"""Options that mean nothing inside the caller's transaction: the job is as safe as its commit."""

SPAN_SECONDS_MAX = 1e12
"""Longest ``after`` and ``expires``, as of the SQL function ``submit``: 31,700 years."""


class FreshId(bytes):
    """A ``job_id`` that was made for this one submit and was sent nowhere before it: no job is searched for under it."""

    def __new__(cls, job_id: bytes) -> Self:
        return super().__new__(cls, job_id)


class BatchJobId(FreshId):
    """The id of a job of a batch."""


class BulkOptions(TypedDict, total=False):
    """Options that one ``submit`` and a ``submit_many`` share. What is left out comes from the handler, then from the
    cluster's job defaults."""

    at: datetime
    """Due at this time (aware). A time in the past means at once."""
    after: float | timedelta
    """Due this many seconds from now by this machine's clock."""
    priority: Priority | int | PriorityLabel
    lane: str
    durability: Durability | Literal["store", "store_fsync", "master"]
    """What the acknowledgement promises; it is never downgraded silently."""
    tags: Sequence[str]
    metadata: Mapping[str, str]
    timeout: float | timedelta
    """Seconds that one attempt may run."""
    accept_time: float | timedelta
    """Seconds that the job may wait for its start in the bucket of one agent; then another agent gets it. 0 = no limit."""
    complete_time: float | timedelta
    """Seconds of run after which the job is given to another agent. Not with ``at_most_once``. 0 = no limit."""
    cancel_slow: bool
    """The run that took longer than ``complete_time`` is stopped as soon as another agent has the job."""
    max_attempts: int
    delivery: Delivery | Literal["at_most_once"]
    """``at_most_once``: started once and never again, so one attempt. (Not needed where the handler is declared so.)"""
    expires: float | timedelta | datetime
    """The job must not start after this time (aware datetime, or seconds from now)."""
    on_full: OnFull | Literal["block", "raise", "spill"]
    """When every matching bucket is over its high-water mark: wait, raise, or write to the master."""
    on_unserved: Literal["hold", "raise"]
    """When no agent has a bucket of the lane and priority: ``hold`` keeps the job in the master until one has (the receipt
    says ``unserved``), ``raise`` stores nothing and raises ``Unserved``. A bulk looks at the first job of each handler: the
    one that raises is not stored, and earlier ones of other handlers may be (``BulkFailed`` has their ids)."""
    tenant: str
    """For whom the job runs: waiting jobs of a lane and priority start in turns of their tenants, however many one of them
    has. 1 to 100 letters, digits and ``. _ : / @ + -``. When all buckets hold ``tenants.window`` jobs, the job is written
    to the master instead, whatever ``on_full`` says."""
    ordering_key: str
    """Jobs of one key run one at a time, in the order of their submits, across handlers, buckets and agents: each starts when
    every earlier one has ended. The job is a committed row (level ``master``). At most 200 characters, no quote and no
    backslash. Default: what the handler declares."""
    traceparent: str
    """W3C trace context that the runs of the job continue: the header ``traceparent`` of the request that the submit is part
    of. Default: the current span, where ``observability.traces`` are on."""
    tracestate: str
    """The header ``tracestate`` of that request; goes with ``traceparent``."""
    unique: Unique
    """At most one job of the handler and a key at a time, instead of what the handler declares; see ``Unique``. The job is
    always a committed row (level ``master``). Not together with ``idempotency_key``."""
    wait_for: WaitFor | None
    """``signal("order:17", timeout=3600)``: the job waits for this signal before its first run, as a committed row (level
    ``master``), and is not due before ``at`` or ``after``. The handler finds the signal in ``ctx.signal``. All jobs of a bulk
    wait for one signal."""
    allow_unregistered: bool
    """Accept a handler name that is neither declared nor published; its arguments are not checked."""
    allow_volatile: bool
    """Accept a store that keeps no append-only file; the receipt's level is ``volatile`` then."""


class SubmitOptions(BulkOptions, total=False):
    """Options of one ``submit``."""

    idempotency_key: str
    """Per handler: the same key and payload again gives the same job, another payload ``Conflict``. A keyed submit is
    always a committed row (level ``master``), so that the key and the job cannot part."""
    job_id: bytes | str | UUID
    """A UUIDv7 made now by the caller, to be able to send the same job again."""
    connection: Any
    """A connection with an open transaction on the master's database: the job's row joins it. Of asyncpg, async psycopg or
    async SQLAlchemy for a ``Cluster``; of psycopg, psycopg2, SQLAlchemy or Django for a ``SyncCluster``."""
    on_success: Call[Any]
    """Runs when the job has succeeded: it exists if and only if that outcome stands. ``previous`` among its arguments is the
    job's result. The submit is a committed row, a [workflow](workflows.md) of one step, and takes the options of a step."""
    on_failure: Call[Any]
    """Runs when the job has failed, was cancelled or has expired. As ``on_success`` otherwise."""
    notify: bool
    """``False``: the commit sends no notice, and the job is found within a second. Only where the SQL
    function is called: with ``connection=`` of another driver than asyncpg, and by ``statement``."""


class CheckedOptions(NamedTuple):
    """The options, checked."""

    due_us: int
    headers: bytes
    priority: Priority | None
    lane: str | None
    durability: Durability | None
    on_full: OnFull | None
    allow_unregistered: bool
    allow_volatile: bool
    key: str | None
    unique: CheckedUnique | None
    job_id: bytes | None
    refuses_unserved: bool
    connection: Any
    notify: bool | None
    waits: bool
    """The job waits for a signal."""
    is_ordered: bool
    """It has an ordering key."""


def check_submit_options(options: SubmitOptions | BulkOptions, limits: Limits, now_us: int) -> CheckedOptions:
    """Every option checked against its rule.

    Raises:
        InputError: an unknown option, a value of the wrong kind or over a limit. InvalidDueTime for times, ClockSkew for
            a ``job_id`` whose time is too far from this machine's clock.
    """
    given: dict[str, Any] = dict(options)
    _check_names(given)
    get = given.get
    key = get("idempotency_key")
    due_us = due_time_us(get("at"), get("after"), now_us, limits)
    expires_us = _expires_us(get("expires"), now_us, limits)
    if expires_us is not None and expires_us <= due_us:
        raise InvalidDueTime(
            "'expires' is not after the due time: the job could never start",
            hint="give a later 'expires', or an earlier 'at' or 'after'",
        )
    headers = Headers(
        tags=check_tags(get("tags"), "job", limits.tags, limits.tag_chars),
        metadata=_metadata(get("metadata")),
        timeout_seconds=_positive(get("timeout"), "timeout"),
        max_attempts=_attempts(get("max_attempts")),
        accept_seconds=_limit(get("accept_time"), "accept_time"),
        complete_seconds=_limit(get("complete_time"), "complete_time"),
        cancel_slow=_flag(get("cancel_slow"), "cancel_slow"),
        at_most_once=_at_most_once(get("delivery"), get("max_attempts")),
        expires_us=expires_us,
        key=None if key is None else check_name(key, "idempotency_key", KEY_CHARS_MAX),
        signal=wait_header(wait_for := get("wait_for")),
        received=None if wait_for is None else wait_for.received,
        ordering_key=_ordering_key(get("ordering_key"), get("durability")),
        tenant=None if (tenant := get("tenant")) is None else (checked_tenant(tenant),),
        batch=type(get("job_id")) is BatchJobId,
    )
    if "traceparent" in given or "tracestate" in given:
        headers = _traced(headers, given, due_us)
    _check_limits(headers)
    _check_wait(headers, get("durability"))
    data = _encoded(headers, limits)
    return CheckedOptions(
        due_us=due_us,
        headers=data,
        priority=check_priority(get("priority")),
        lane=None if (lane := get("lane")) is None else check_lane(lane),
        durability=_durability(get("durability")),
        on_full=_choice(OnFull, get("on_full")),
        allow_unregistered=bool(get("allow_unregistered")),
        allow_volatile=bool(get("allow_volatile")),
        key=headers.key,
        unique=_unique(get("unique"), key),
        job_id=_job_id(get("job_id"), now_us, limits),
        refuses_unserved=_refuses_unserved(get("on_unserved")),
        connection=get("connection"),
        notify=_flag(get("notify"), "notify"),
        waits=headers.signal is not None and headers.received is None,
        is_ordered=headers.ordering_key is not None,
    )


def _traced(headers: Headers, given: Mapping[str, object], due_us: int) -> Headers:
    parent, state = given.get("traceparent"), given.get("tracestate")
    if parent is None and state is None:
        return headers
    context = checked_context(parent, state)
    return msgspec.structs.replace(
        headers, traceparent=context.traceparent, tracestate=context.tracestate, trace_linked=due_us > 0
    )


def _check_names(given: Mapping[str, object]) -> None:
    unknown = given.keys() - SubmitOptions.__annotations__.keys()
    if unknown:
        raise InputError(
            f"submit has no option {', '.join(sorted(map(repr, unknown)))}",
            hint="arguments of the handler go into one mapping: submit(handler, {'path': 'a.png'}, priority='high')",
        )
    if given.get("on_success") is not None or given.get("on_failure") is not None:
        raise InputError(
            "'on_success' and 'on_failure' belong to a plain submit of one job",
            hint="submit it without a transaction, or start a workflow: cluster.workflows.start(...)",
        )


def _check_wait(headers: Headers, durability: object) -> None:
    if headers.signal is not None and durability not in (None, Durability.MASTER):
        raise InputError(
            f"'durability' is {durability!r}, and a job that waits for a signal waits in the master",
            hint="leave it out: the level is 'master' then",
        )


def _ordering_key(value: object, durability: object) -> str | None:
    if value is None:
        return None
    key = ordering_key_text(value)
    _check_ordered(durability)
    return key


def _check_ordered(durability: object) -> None:
    if durability not in (None, Durability.MASTER):
        raise InputError(
            f"'durability' is {durability!r}, and a job with an ordering key needs a row in the master",
            hint="leave it out: the level is 'master' then",
        )


def with_ordering_key(checked: CheckedOptions, key: str, limits: Limits) -> CheckedOptions:
    """The options of a job whose handler gives it an ordering key.

    Raises:
        InputError: ``durability`` or ``complete_time`` contradicts it, or the headers become too large.
    """
    _check_ordered(checked.durability)
    headers = msgspec.structs.replace(decode_headers(checked.headers), ordering_key=key)
    _check_limits(headers)
    return checked._replace(headers=_encoded(headers, limits), is_ordered=True)


def _encoded(headers: Headers, limits: Limits) -> bytes:
    """The headers, checked for size. The payload of a signal had a limit of its own when it was sent."""
    data = encode_headers(headers)
    own = data if headers.received is None else encode_headers(msgspec.structs.replace(headers, received=None))
    if len(own) > limits.headers_bytes:
        raise InputError(
            f"tags, metadata and options have {len(own)} bytes together, the limit is {limits.headers_bytes}",
            hint="put large data into the arguments or a store of its own",
        )
    return data


def check_slow_run(
    options: SubmitOptions | BulkOptions, timeout_seconds: float | None, complete_seconds: float | None
) -> None:
    """``complete_time`` and ``cancel_slow``, checked, against what the handler declares.

    Args:
        timeout_seconds, complete_seconds: of the handler.

    Raises:
        InputError: ``complete_time`` is not less than the time-out of the attempt; ``cancel_slow`` without ``complete_time``.
    """
    complete = _limit(options.get("complete_time"), "complete_time")
    if complete and options.get("timeout") is None and timeout_seconds is not None and complete >= timeout_seconds:
        raise InputError(
            f"'complete_time' ({complete:g}) must be less than the handler's timeout ({timeout_seconds:g}), which ends the "
            "attempt"
        )
    if options.get("cancel_slow") and not (complete_seconds if complete is None else complete):
        raise InputError("'cancel_slow' goes with 'complete_time', after which the slow run is stopped")


def refuse_in_transaction(options: SubmitOptions) -> None:
    """``InputError`` for an option that means nothing inside the caller's transaction."""
    for name in MEANINGLESS:
        if options.get(name) not in (None, False):
            raise InputError(
                f"{name!r} has no meaning inside a transaction: the job is as safe as its commit", hint="leave it out"
            )


def check_priority(value: object) -> Priority | None:
    """A priority from its label or number; ``InputError`` for any other value."""
    priority: Priority | None = _choice(Priority.parse, value)
    return priority


def _unique(value: object, key: object) -> CheckedUnique | None:
    if value is None:
        return None
    if key is not None:
        raise InputError("'unique' and 'idempotency_key' are given: a job has one key", hint="leave out one of them")
    return checked_unique(value)


def _choice(kind: Any, value: object) -> Any:
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError as error:
        hint = None if kind == Priority.parse else f"valid are {', '.join(item.value for item in kind)}"
        raise InputError(str(error), hint=hint) from None


def _flag(value: object, what: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise InputError(f"{what!r} must be True or False, not {value!r}")
    return value


def _durability(value: object) -> Durability | None:
    if value is None:
        return None
    if value not in REQUESTABLE:
        valid = ", ".join(level.value for level in REQUESTABLE)
        raise InputError(f"{value!r} is not a durability that a submit can require", hint=f"valid are {valid}")
    return Durability(str(value))


def _refuses_unserved(value: object) -> bool:
    if value not in (None, "hold", "raise"):
        raise InputError(f"'on_unserved' must be 'hold' or 'raise', not {value!r}")
    return value == "raise"


def due_time_us(at: object, after: object, now_us: int, limits: Limits) -> int:
    """Microseconds since 1970 of one of two options; 0 = at once (also for a time in the past, and without both).

    Raises:
        InvalidDueTime: both are given, one is no time, or it is beyond ``limits.due_ahead_days``.
    """
    if at is not None and after is not None:
        raise InvalidDueTime("both 'at' and 'after' are given", hint="a job has one due time")
    if at is not None:
        due_us = moment_us(at, "at")
    elif after is not None:
        due_us = now_us + _span_us(after, "after")
    else:
        return 0
    if due_us - now_us > limits.due_ahead_days * 86_400_000_000:
        raise InvalidDueTime(
            f"the due time is {(due_us - now_us) / 86_400_000_000:.9g} days ahead, the limit is {limits.due_ahead_days}",
            hint="raise limits.due_ahead_days, or submit it later",
        )
    return due_us if due_us > now_us else 0


def _expires_us(value: object, now_us: int, limits: Limits) -> int | None:
    if value is None:
        return None
    expires_us = moment_us(value, "expires") if isinstance(value, datetime) else now_us + _span_us(value, "expires")
    if expires_us <= now_us:
        raise InvalidDueTime("'expires' is not in the future: the job could never start", hint="give a later time")
    return expires_us


def moment_us(value: object, what: str, error: type[InputError] = InvalidDueTime) -> int:
    """Microseconds since 1970 of an aware datetime; ``error`` for anything else."""
    if not isinstance(value, datetime):
        raise error(f"{what!r} must be an aware datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise error(
            f"{what!r} is a naive datetime ({value.isoformat()}): its time zone is unknown",
            hint="use datetime.now(tz=UTC) or datetime(..., tzinfo=ZoneInfo('Europe/Berlin'))",
        )
    return (value - EPOCH) // timedelta(microseconds=1)


def _span_us(value: object, what: str) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not -math.inf < seconds < math.inf:
        raise InvalidDueTime(f"{what!r} must be finite seconds or a timedelta, not {value!r}")
    if abs(seconds) > SPAN_SECONDS_MAX:
        raise InvalidDueTime(f"{what!r} must be at most {SPAN_SECONDS_MAX:.0e} seconds, not {_short(value)}")
    return int(seconds * 1_000_000)


def _short(value: object) -> str:
    """For an error: an integer may have more digits than Python writes."""
    return "a larger number" if isinstance(value, int) else repr(value)


def _positive(value: object, what: str) -> float | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InputError(f"{what!r} must be a number of seconds or a timedelta, not {value!r}")
    if not 0 < seconds < math.inf:
        raise InputError(f"{what!r} must be more than 0 seconds, not {value!r}")
    return float(seconds)


def _limit(value: object, what: str) -> float | None:
    """Seconds; 0 = no limit."""
    try:
        return None if value is None else time_limit(value, f"{what!r}")
    except ValueError as error:
        raise InputError(str(error)) from None


def _check_limits(headers: Headers) -> None:
    complete, timeout = headers.complete_seconds, headers.timeout_seconds
    if complete and headers.at_most_once:
        raise InputError(
            "'complete_time' gives a job that runs to another agent, and a job delivered at most once has one start"
        )
    if complete and headers.ordering_key is not None:
        raise InputError(
            "'complete_time' starts a job beside its slow run, and an 'ordering_key' allows one run at a time"
        )
    if complete and timeout is not None and complete >= timeout:
        raise InputError(
            f"'complete_time' ({complete:g}) must be less than 'timeout' ({timeout:g}), which ends the attempt"
        )


def _attempts(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"'max_attempts' must be a whole number of at least 1, not {value!r}")
    return value


def _at_most_once(value: object, max_attempts: object) -> bool:
    if value is None:
        return False
    if value != Delivery.AT_MOST_ONCE:
        raise InputError(
            f"'delivery' of a submit can only be 'at_most_once', not {value!r}",
            hint="leave it out: then the handler's own holds, and at_least_once without one",
        )
    if max_attempts not in (None, 1):
        raise InputError(f"a job delivered at most once has one attempt, and 'max_attempts' is {max_attempts}")
    return True


def _metadata(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"'metadata' must be a mapping of texts, not {value!r}")
    for key, text in value.items():
        check_name(key, f"metadata key {key!r}", METADATA_CHARS_MAX)
        if not isinstance(text, str):
            raise InputError(f"metadata {key!r} must be text, not {type(text).__name__}", hint="str() it")
    return dict(value)


def _job_id(value: bytes | str | UUID | None, now_us: int, limits: Limits) -> bytes | None:
    if value is None:
        return None
    try:
        job_id = bytes(ids.parse(value))
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"job_id {value!r} is not an id: {error}") from None
    if job_id[6] >> 4 != 7:
        raise InputError(f"job_id {ids.text(job_id)} is not a UUIDv7", hint="use jobmaster.new_job_id()")
    skew_seconds = ids.created_ms(job_id) / 1000 - now_us / 1_000_000
    if abs(skew_seconds) > limits.clock_skew_seconds:
        raise ClockSkew(
            f"the time in job_id {ids.text(job_id)} is {skew_seconds:+.0f} s off this machine's clock, the limit is "
            f"{limits.clock_skew_seconds:g} s",
            hint="send a job again within that time, or let submit make the id",
        )
    return job_id
