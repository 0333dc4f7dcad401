"""A job: its states, and its forms on submit, in a bucket and in the master. ``jobmaster.model.job_view``: for people."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Annotated, Literal, NamedTuple

import msgspec

from jobmaster.model.ids import ID_BYTES


class JobState(StrEnum):
    """State of a job. ``SAVE_PENDING`` and ``QUEUED`` are never in the master; ``MOVED`` jobs live on in another cluster."""

    SAVE_PENDING = "SAVE_PENDING"
    HELD = "HELD"
    ASSIGNED = "ASSIGNED"
    QUEUED = "QUEUED"
    PROCESSING = "PROCESSING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"
    WAITING = "WAITING"
    MOVED = "MOVED"

    @property
    def final(self) -> bool:
        """True for the states that no write leaves."""
        return self in FINAL_STATES or self is JobState.MOVED


FINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})
"""Ends of jobs. ``MOVED`` is none: the job ends in another cluster."""
IN_FLIGHT_STATES = frozenset({JobState.ASSIGNED, JobState.PROCESSING})
MASTER_STATES = FINAL_STATES | IN_FLIGHT_STATES | {JobState.HELD, JobState.WAITING, JobState.MOVED}


class Priority(IntEnum):
    """Five levels; a bucket has exactly one. The number is what the master stores."""

    VERY_LOW = 1
    LOW = 2
    MEDIUM = 3
    HIGH = 4
    CRITICAL = 5

    @property
    def label(self) -> str:
        """``very_low`` ... ``critical``: the name in configuration, command line and views."""
        return self.name.lower()

    @classmethod
    def parse(cls, value: str | int | Priority) -> Priority:
        """Level from its label or number; ``ValueError`` names the valid labels."""
        if isinstance(value, str):
            try:
                return cls[value.strip().upper()]
            except KeyError:
                pass
        elif type(value) in (int, cls) and value in cls._value2member_map_:  # True is no priority
            return cls(value)
        raise ValueError(f"unknown priority {value!r}; valid are {', '.join(p.label for p in cls)}")


PriorityLabel = Literal["very_low", "low", "medium", "high", "critical"]
"""The names of ``Priority``, for signatures."""


class Durability(StrEnum):
    """Durability of an acknowledged submit, from the weakest level to the strongest; never lowered silently.

    A submit requests one of ``REQUESTABLE``; a receipt names the level that was reached.
    """

    VOLATILE = "volatile"
    """In the memory of a store that keeps no append-only file."""
    STORE = "store"
    """In the store's memory and its append-only file."""
    STORE_FSYNC = "store_fsync"
    """On the store's disk (``appendfsync always``)."""
    MASTER = "master"
    """A committed row."""
    TRANSACTION = "transaction"
    """A row in the caller's own transaction: durable when the caller commits."""


REQUESTABLE = (Durability.STORE, Durability.STORE_FSYNC, Durability.MASTER)
"""The levels that options and configuration accept; ``allow_volatile`` and ``connection`` lead to the other two."""


class OnFull(StrEnum):
    """Behaviour of a submit when every matching bucket is over its high-water mark."""

    BLOCK = "block"
    RAISE = "raise"
    SPILL = "spill"


class RunMode(StrEnum):
    """Where a handler runs."""

    ASYNC = "async"
    THREAD = "thread"
    PROCESS = "process"


class StartRule(StrEnum):
    """What authorises a start: the agent's lease, or an accepted PROCESSING write."""

    LEASE = "lease"
    FENCED = "fenced"


class Delivery(StrEnum):
    """How often a job may be started."""

    AT_LEAST_ONCE = "at_least_once"
    """Started again after each failure and loss, within its attempts and rescues."""
    AT_MOST_ONCE = "at_most_once"
    """Once: a job that was started and has no outcome becomes FAILED with the reason ``abandoned``."""


class Confirm(StrEnum):
    """What confirms that a job is done."""

    RETURN = "return"
    """The return of its handler."""
    EXPLICIT = "explicit"
    """A call of ``ctx.confirm()``, or a confirmation from outside."""


class SignalWait(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a job waits for. The fields stay in this order: the master searches the JSON for these bytes (``signal_key``)."""

    key: str
    """Printable, without quotes and backslashes."""
    seconds: float | None = None
    """Time-out, counted by the master from the submit; ``None``: without one."""
    run: bool = False
    """Run without the signal after the time-out; otherwise the job is EXPIRED then."""


class SignalReceived(msgspec.Struct, frozen=True, kw_only=True):
    """A signal in the headers of a job that has received it; the master writes it there."""

    id: str
    payload: str
    """JSON, as a text: no search of headers finds a field in it."""
    sent_us: int


class Headers(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Options of a job beside its arguments. Encoded as JSON; empty headers are zero bytes.

    ``None`` means the value of the handler, else the default of the cluster.
    """

    requires: tuple[str, ...] = ()
    """Capabilities that an agent must have to run the job (``rules.capabilities``). Set by ``encode_headers``. It
    stays the first field: the first bytes of the JSON show whether a job has it."""
    ordering_key: str | None = None
    """Jobs of one key run one at a time, in the order of their submits. It stays the second field: the master reads it right
    behind ``requires``, which such a job has, and never takes a name in the metadata for it."""
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    timeout_seconds: float | None = None
    max_attempts: int | None = None
    accept_seconds: float | None = None
    """How long a copy may wait for its start in one bucket before it is given to another agent."""
    complete_seconds: float | None = None
    """How long a run may last before the job is given to another agent."""
    cancel_slow: bool | None = None
    """Stop the run then; otherwise it goes on and its outcome is refused."""
    expires_us: int | None = None
    """Microseconds since 1970 after which the job must not start any more."""
    key: str | None = None
    """Idempotency key of the submit."""
    unique_key: str | None = None
    """The key that no other job of the handler holds at the same time."""
    unique_term: str | None = None
    """How long it is held: a value of ``UniqueTerm``."""
    unique_from_us: int | None = None
    """Start of its window, by the master's clock."""
    unique_until_us: int | None = None
    """End of its window."""
    superseded_by: str | None = None
    """Id of the job that has taken its unique key from it."""
    snoozes: int = 0
    """How often its handler has put the job off (``Snooze``)."""
    schedule: str | None = None
    """Name of the schedule that it is a fire of."""
    nominal_us: int | None = None
    """Nominal time of that fire, microseconds since 1970; the due time has the jitter in it."""
    signal: SignalWait | None = None
    """The signal that it waits for before its first run, or has waited for."""
    received: SignalReceived | None = None
    """The signal that it has received."""
    workflow: tuple[str, int] | None = None
    """Id of the workflow and number of the step that it is the job of. (Triggers of the master search the JSON for these
    bytes.)"""
    batch: bool = False
    """It is a job of a batch: the first 12 bytes of its id are those of a range of the batch."""
    deleted: bool = False
    """A bulk operation has deleted arguments, result, error and all other headers."""
    at_most_once: bool = False
    """Never run again once it was started. A rescuer may not have the handler and reads this field from the row, so no job
    starts before the row has it. (``is_at_most_once`` in the master searches the JSON for these bytes; all text in it is
    quoted, so no other field can match.)"""
    traceparent: str | None = None
    """W3C trace context of the submit (``model.trace_context``): runs of the job continue its trace, or link to it."""
    tracestate: str | None = None
    """What vendors have noted about that trace."""
    trace_linked: bool = False
    """Runs begin traces of their own, with a link: the job was submitted for a later time. The three fields stand in this
    order: ``untraced`` of the master cuts them out."""
    tenant: tuple[str] | None = None
    """The tenant that it runs for. A list of one name, so that no metadata has the same bytes (``model.tenant``). The SQL
    function ``submit`` writes it as the last field."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One job in a bucket or in a claimed list: the wire form (MessagePack array).

    ``id`` must stay first and 16 bytes long: the store's functions read it at a fixed offset. ``token`` 1 means a
    SavePending copy without a row in the master; every onboarded copy has a higher token.
    """

    id: Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
    token: int
    handler: str
    args: bytes
    """JSON object: argument name -> value."""
    due_us: int = 0
    """Microseconds since 1970; 0 = at once."""
    headers: bytes = b""
    """JSON of ``Headers``, or empty."""
    attempt: int = 0
    """Failed attempts so far; the next run is attempt + 1."""
    rescues: int = 0

    @property
    def payload_bytes(self) -> int:
        """Bytes of arguments and headers."""
        return len(self.args) + len(self.headers)


class NewJob(NamedTuple):
    """A job on its way into the master as HELD (or ASSIGNED); columns of one insert."""

    id: bytes
    priority: int
    lane: str
    handler: str
    args: bytes
    headers: bytes
    due_us: int
    """0 = at once."""


class FinalRow(NamedTuple):
    """One concluded job, in the column order of the COPY into ``job``."""

    id: bytes
    state: str
    priority: int
    lane: str
    handler: str
    token: int
    bucket_id: bytes
    bucket_epoch: int
    attempt: int
    rescues: int
    due_us: int
    waited_us: int
    ran_us: int
    args: bytes
    headers: bytes
    result: bytes | None
    """JSON, SUCCEEDED only."""
    error: bytes | None
    """JSON of ``ErrorInfo``, otherwise."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of arguments, headers and result or error. Batches are limited by these bytes, not by rows alone."""
        return len(self.args) + len(self.headers) + len(self.result or self.error or b"")


class Conclusion(StrEnum):
    """End of a handler's own transaction, which includes its job's outcome."""

    COMMITTED = "committed"
    REFUSED = "refused"
    """Refused by the row: the attempt is superseded. Everything was rolled back."""
    WITHHELD = "withheld"
    """The lease was over before the commit. Everything was rolled back."""
    UNKNOWN = "unknown"
    """The commit was sent and not answered: the row shows whether it happened."""


class InFlightRow(NamedTuple):
    """A claimed job that gets its row before its end."""

    id: bytes
    state: str
    """ASSIGNED (queued) or PROCESSING (running)."""
    priority: int
    lane: str
    handler: str
    token: int
    attempt: int
    rescues: int
    due_us: int
    args: bytes
    headers: bytes
    late_seconds: float | None = None
    """Of a running job with a ``complete_time``: seconds from now until it is given to another agent."""


class HoldRow(NamedTuple):
    """A job that is released (HELD), or stays in its bucket for a later attempt (ASSIGNED, token + 1)."""

    id: bytes
    priority: int
    lane: str
    handler: str
    token: int
    """Token of the identity that releases it."""
    attempt: int
    """Failed attempts, including this one."""
    rescues: int
    due_us: int
    """When it may run again; 0 = at once."""
    args: bytes
    headers: bytes
    """They count snoozes, so the row takes them over when ``attempt`` has not grown."""
    error: bytes | None
    """JSON of ``ErrorInfo`` when an attempt failed or was snoozed: one ``attempt`` row is written. ``None``: none is."""
    ran_us: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of arguments, headers and error."""
        return len(self.args) + len(self.headers) + len(self.error or b"")

    @classmethod
    def of(cls, entry: Entry, priority: int, lane: str) -> HoldRow:
        """A copy that is released without a run: no attempt is counted."""
        return cls(
            entry.id, priority, lane, entry.handler, entry.token, entry.attempt, entry.rescues, entry.due_us,
            entry.args, entry.headers, None, 0,
        )  # fmt: skip


class AttemptOutcome(StrEnum):
    """End of an attempt that did not conclude its job."""

    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    RELEASED = "released"
    REFUSED = "refused"
    UNCONFIRMED = "unconfirmed"
    REASSIGNED = "reassigned"
    """It ran longer than its ``complete_time``: another agent has the job."""
    SNOOZED = "snoozed"
    """Its handler has put the job off: no attempt was used up."""


SEALED_TEXT_PREFIX = "$sealed:"
"""What the message of an error begins with when it is sealed (``jobmaster.encryption``)."""


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reason of a failed attempt, as text; it never becomes an exception again."""

    type: str
    message: str
    reason: str = "error"
    """``error``, ``timeout``, ``agent_lost``, ``cancelled``, ``expired``, ``crashed``, ``result``, ``arguments``,
    ``abandoned`` (at most once: started, outcome unknown), ``unconfirmed`` (explicit confirmation: none came in time), and by
    the handler: ``retry``, ``failed`` (``raise Fail``), ``given_up`` (its rules try this error not again), ``snoozed``,
    ``snoozed_out`` (``jobs.max_snoozes`` is reached), ``too_slow`` (``complete_time``: ``jobs.max_reassigns`` is reached)."""
    traceback: str = ""
    truncated: bool = False


class Receipt(NamedTuple):
    """Answer of an acknowledged submit (the client wraps it with ``wait_saved``/``wait``)."""

    id: bytes
    level: Durability
    bucket_id: bytes | None
    """``None`` when the job is in the master."""
    duplicate: bool = False
    """The id or the idempotency key existed already, with the same payload."""
    unserved: bool = False
    """The job waits in the master, and no agent has a bucket for it now."""
    unique_answer: str | None = None
    """What a submit with a unique key has done: a value of ``SubmitAnswer``."""
