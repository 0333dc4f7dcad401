"""Parses batches of rows into jobs, and into rejected rows with a reason. No row is dropped, and no row stops the others.

The id of a job is made from the data (``batch_id``): the same row of the same batch is the same job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jobmaster.client.uniqueness.unique_submits import check_debounce, headers_with_key
from jobmaster.codec import encode_headers
from jobmaster.handlers import CheckedUnique
from jobmaster.handlers.flow.ordering import PublishedOrdering, ordering_key_text
from jobmaster.model.agent import HandlerSpec
from jobmaster.model.errors import InputError
from jobmaster.model.flow.tenant import checked_tenant
from jobmaster.model.flow.uniqueness import UniqueRule
from jobmaster.model.job import Headers, NewJob, Priority
from jobmaster.pipeline.datasource.rows.args_checker import ArgsChecker
from jobmaster.pipeline.datasource.rows.plain_rows import PlainRows, headers_of_keys, ids_of_keys, sorted_rows
from jobmaster.rules.capabilities import Capability
from jobmaster.rules.time_limit import time_limit
from jobmaster.settings.model import Limits

if TYPE_CHECKING:
    import pyarrow as pa

KEY_CHARS_MAX = 512
COLUMNS = ("key", "args", "handler", "priority", "lane", "due_at", "headers")
"""Columns of a row; only ``key`` is required."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_HEADERS = msgspec.json.Decoder(Headers)
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_VERSION_7 = 0x7 << 76
_VARIANT = 0b10 << 62
_RAND_A, _RAND_B = 0xFFF, (1 << 62) - 1


class RejectedRow(NamedTuple):
    """A row that does not become a job, with its original values."""

    key: str | None
    handler: str | None
    args: str | None
    reason: str


class HandlerDefaults(NamedTuple):
    """Defaults for rows of one handler, and the check of their arguments."""

    checker: ArgsChecker
    lane: str
    priority: int
    ordering: Callable[[bytes], str] | None
    """Ordering key from the arguments."""
    limited: bool
    unique: CheckedUnique | None
    tenant: str | None

    @property
    def is_bare(self) -> bool:
        """Whether rows without headers need none but the key."""
        return self.ordering is None and self.tenant is None and not self.limited


class RowRules(NamedTuple):
    """Rules for all rows of a write; sent to every task."""

    as_of_ms: int
    now_us: int
    handler: str | None
    priority: int | None
    lane: str | None
    due_us: int
    headers: Headers
    replay: bool
    """The keys are ids of jobs to run again."""
    lax: bool
    allow_unregistered: bool
    specs: Mapping[str, HandlerSpec]
    lanes: frozenset[str]
    default_lane: str
    default_priority: int
    limits: Limits


class RowParser:
    """Turns the batches of one task into jobs."""

    def __init__(self, rules: RowRules) -> None:
        self._rules = rules
        self._defaults: dict[str, HandlerDefaults | str] = {}
        self._due_max = rules.now_us + rules.limits.due_ahead_days * 86_400_000_000
        self._plain = rules.headers == Headers()
        self.unique: dict[bytes, UniqueRule] = {}
        """Of the jobs of the last batch whose handlers declare it, by id."""

    def read_plain(self, batch: pa.RecordBatch) -> tuple[PlainRows, list[RejectedRow]] | None:
        """What ``read`` makes of rows of one handler without headers, lanes or priorities of their own; ``None`` for others.

        Of rows with the same key only the first is among them.
        """
        import numpy as np
        import pyarrow as pa
        from pyarrow import compute

        try:
            name, target = self._plain_target(batch)
            if target is None:
                return None
            texts = batch.column("key").cast(pa.string())
            texts.validate(full=True)
            args = column_values(batch.column("args"), "args") if "args" in batch.schema.names else [b"{}"] * len(texts)
            due, problems = self._plain_due(batch)
        except (ValueError, OverflowError):
            return None  # one by one, to find the values that cannot be read
        stored, wrong = target.checker.check_all(args)
        problems |= wrong
        lengths = compute.utf8_length(texts).fill_null(0)
        for number in np.flatnonzero(compute.or_(compute.equal(lengths, 0), compute.greater(lengths, KEY_CHARS_MAX))):
            problems[int(number)] = key_problem(texts[int(number)].as_py()) or ""
        keys = texts.cast(pa.binary()).to_pylist()
        rejects = [
            RejectedRow(texts[number].as_py(), name, args[number].decode("utf-8", "replace"), problems[number])
            for number in sorted(problems)
        ]
        if problems:
            good = [number for number in range(len(keys)) if number not in problems]
            keys, stored = [keys[number] for number in good], [stored[number] for number in good]
            due = None if due is None else due[good]
        rows = sorted_rows(
            (name, target.lane, target.priority),
            ids_of_keys(self._rules.as_of_ms, name, keys),
            pa.array(stored, pa.large_binary()),
            headers_of_keys(keys),
            due,
        )
        return rows, rejects

    def _plain_target(self, batch: pa.RecordBatch) -> tuple[str, HandlerDefaults | None]:
        """The handler of all rows and its defaults; ``None`` where rows need more than a key, arguments and a due time."""
        names = batch.schema.names
        varying = (batch.column(name) for name in ("priority", "lane", "headers") if name in names)
        if not self._plain or any(column.null_count < len(column) for column in varying):
            return "", None
        name = self._rules.handler
        if "handler" in names:
            found = batch.column("handler").unique().to_pylist()
            if len(found) > 1:
                return "", None
            name = (found[0] if found else None) or name
        target = self._target_of(name) if name else None
        if not isinstance(target, HandlerDefaults) or target.unique is not None or not target.is_bare:
            return "", None
        return str(name), target

    def _plain_due(self, batch: pa.RecordBatch) -> tuple[Any, dict[int, str]]:
        """The due times of the rows, ``None`` when all of them are due at once; and those that are refused."""
        import numpy as np

        rules = self._rules
        column = batch.column("due_at") if "due_at" in batch.schema.names else None
        if column is None or column.null_count == len(column):
            return (np.full(batch.num_rows, rules.due_us, np.int64) if rules.due_us else None), {}
        given = [rules.due_us if one is None else self._due_us(one) for one in column_values(column, "due_at")]
        problems = {number: one for number, one in enumerate(given) if isinstance(one, str)}
        return np.array([0 if isinstance(one, str) else one for one in given], np.int64), problems

    def read(self, batch: pa.RecordBatch) -> tuple[list[NewJob], list[RejectedRow]]:
        """Jobs and rejected rows of one batch; together as many as the batch has rows."""
        self.unique = {}
        jobs: list[NewJob] = []
        rejects: list[RejectedRow] = []
        rows, unreadable = self._rows(batch)
        for number, row in enumerate(rows):
            key, args, handler, *_ = row
            job = unreadable[number] if number in unreadable else self._job(*row)
            if isinstance(job, NewJob):
                jobs.append(job)
            else:
                rejects.append(RejectedRow(key, handler or self._rules.handler, args.decode("utf-8", "replace"), job))
        return jobs, rejects

    def _rows(self, batch: pa.RecordBatch) -> tuple[Iterator[tuple[Any, ...]], dict[int, str]]:
        """``(key, args, handler, priority, lane, due, headers)`` of each row, and why some rows cannot be read."""
        count = batch.num_rows
        names = batch.schema.names
        found: dict[str, Sequence[Any]] = {name: [None] * count for name in COLUMNS}
        found["args"] = [b"{}"] * count
        unreadable: dict[int, str] = {}
        for name in COLUMNS:
            if name in names:
                column = batch.column(names.index(name))
                try:
                    found[name] = column_values(column, name)
                except (ValueError, OverflowError):
                    found[name] = _readable_values(column, name, found[name], unreadable)
        return zip(*(found[name] for name in COLUMNS), strict=True), unreadable

    def _job(
        self, key: str | None, args: bytes, handler: str | None, priority: Any, lane: Any, due: Any, headers: Any
    ) -> NewJob | str:
        """A job, or the sentence that refuses the row."""
        rules = self._rules
        if (problem := key_problem(key)) is not None:
            return problem
        assert key is not None
        name = handler or rules.handler
        if not name:
            return "the row names no handler"
        target = self._target_of(name)
        if isinstance(target, str):
            return target
        checked = target.checker.check(args)
        if checked.problem is not None:
            return checked.problem
        level, served, due_us = target.priority, target.lane, rules.due_us
        if priority is not None:
            try:
                level = int(Priority.parse(priority))
            except ValueError:
                return f"{priority!r} is no priority"
        if lane is not None and lane != served:
            if lane not in rules.lanes:
                return f"no agent serves lane {lane!r}"
            served = lane
        if due is not None:
            moment = self._due_us(due)
            if isinstance(moment, str):
                return moment
            due_us = moment
        encoded = self._headers(key, headers, target, checked.args, delayed=due_us > 0)
        if isinstance(encoded, str):
            return encoded
        job = NewJob(batch_id(rules.as_of_ms, name, key), level, served, name, checked.args, encoded, due_us)
        return job if target.unique is None else self._with_unique_key(job, target.unique)

    def _with_unique_key(self, job: NewJob, unique: CheckedUnique) -> NewJob | str:
        rule = unique.rule(job.args)
        try:
            check_debounce(rule, job.due_us, self._rules.now_us)
        except InputError as error:
            return error.message
        self.unique[job.id] = rule
        return job._replace(headers=headers_with_key(job.headers, rule))

    def _target_of(self, name: str) -> HandlerDefaults | str:
        target = self._defaults.get(name)
        if target is None:
            target = self._defaults[name] = self._target(name)
        return target

    def _target(self, name: str) -> HandlerDefaults | str:
        rules = self._rules
        spec = rules.specs.get(name)
        if spec is None and not rules.allow_unregistered:
            return f"there is no handler {name!r}"
        lane = rules.lane or (spec.lane if spec is not None else None) or rules.default_lane
        if lane not in rules.lanes:
            return f"no agent serves lane {lane!r}"
        level = rules.priority
        if level is None:
            level = Priority.parse(spec.priority) if spec is not None and spec.priority else rules.default_priority
        checker = ArgsChecker(spec, lax=rules.lax, limit_bytes=rules.limits.args_bytes)
        if spec is None:
            return HandlerDefaults(checker, lane, int(level), None, limited=False, unique=None, tenant=None)
        ordering = None if spec.ordering is None else msgspec.convert(spec.ordering, PublishedOrdering).key
        # A job that is run again holds no key, as a retry.
        has_keys = spec.unique is not None and not rules.replay
        unique = msgspec.convert(spec.unique, CheckedUnique) if has_keys else None
        return HandlerDefaults(checker, lane, int(level), ordering, spec.limited, unique, spec.tenant)

    def _due_us(self, due: Any) -> int | str:
        if isinstance(due, str):
            try:
                moment = datetime.fromisoformat(due.strip())
            except ValueError:
                return f"due_at {due!r} is no time; write 2030-01-31T12:00:00Z"
            if moment.tzinfo is None:
                return f"due_at {due!r} has no time zone; write {due.strip()}Z for UTC"
            due = (moment - _EPOCH) // _MICROSECOND
        if due > self._due_max:
            return f"the due time is more than {self._rules.limits.due_ahead_days} days ahead"
        return int(due) if due > self._rules.now_us else 0

    def _headers(self, key: str, headers: Any, target: HandlerDefaults, args: bytes, *, delayed: bool) -> bytes | str:
        if headers is None and self._plain and target.is_bare:
            return b'{"key":' + msgspec.json.encode(key) + b"}"
        merged = self._rules.headers
        if headers:
            own = read_headers(headers)
            if isinstance(own, str):
                return own
            if own.deleted:
                return "the contents of the job have been deleted"
            if self._rules.replay:
                # A run of an old job is none of its trace, as in a bulk retry.
                own = msgspec.structs.replace(
                    own, metadata={**own.metadata, "replay_of": key}, expires_us=None, traceparent=None, tracestate=None
                )
            merged = Headers(
                tags=tuple(dict.fromkeys((*merged.tags, *own.tags))),
                metadata={**own.metadata, **merged.metadata},
                timeout_seconds=merged.timeout_seconds or own.timeout_seconds,
                max_attempts=merged.max_attempts or own.max_attempts,
                accept_seconds=own.accept_seconds,
                complete_seconds=own.complete_seconds,
                cancel_slow=own.cancel_slow,
                expires_us=merged.expires_us or own.expires_us,
                at_most_once=merged.at_most_once or own.at_most_once,
                ordering_key=merged.ordering_key or own.ordering_key,
                tenant=merged.tenant or own.tenant,
                traceparent=(traced := merged if merged.traceparent else own).traceparent,
                tracestate=traced.tracestate,
            )
        if merged.traceparent is not None:
            merged = msgspec.structs.replace(merged, trace_linked=delayed)
        if merged.ordering_key is None and target.ordering is not None:
            try:
                merged = msgspec.structs.replace(merged, ordering_key=target.ordering(args))
            except InputError as error:
                return f"{error.message}; {error.hint}" if error.hint else error.message
        if merged.tenant is None and target.tenant is not None:
            merged = msgspec.structs.replace(merged, tenant=(target.tenant,))
        if merged.ordering_key is not None and merged.complete_seconds:
            return "complete_seconds and ordering_key are given: an ordering key allows one run at a time"
        requires = (Capability.LIMITS.value,) if target.limited else ()
        data = encode_headers(msgspec.structs.replace(merged, key=key, requires=requires))
        limit = self._rules.limits.headers_bytes
        return data if len(data) <= limit else f"the headers have {len(data)} bytes, the limit is {limit}"


def key_problem(key: str | None) -> str | None:
    """The sentence that refuses a key."""
    if not key:
        return "the key is empty"
    if len(key) > KEY_CHARS_MAX:
        return f"the key has {len(key)} characters, at most {KEY_CHARS_MAX} are taken"
    return None


def read_headers(data: bytes) -> Headers | str:
    """The headers of a row, or the sentence that refuses them."""
    try:
        headers = _HEADERS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"the headers cannot be read: {error}"
    try:
        for name in ("accept_seconds", "complete_seconds"):
            time_limit(getattr(headers, name) or 0, name)
        if headers.ordering_key is not None:
            ordering_key_text(headers.ordering_key)
        if headers.tenant is not None:
            checked_tenant(headers.tenant[0])
    except (ValueError, InputError) as error:
        return f"the headers cannot be used: {error}"
    return headers


def column_values(column: pa.Array, name: str) -> list[Any]:
    """Plain values of a column of a write, in the form that ``_job`` takes.

    Raises:
        ValueError, OverflowError: a value cannot be read, such as a text that is not UTF-8.
    """
    import pyarrow as pa

    kind = column.type
    if name == "args":
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return [b"{}" if one is None else one for one in column.cast(pa.binary()).to_pylist()]
        plain = _plain_form(kind)
        return [_ENCODER.encode({} if one is None else plain(one)) for one in column.to_pylist()]
    if name == "headers":
        return list(column.cast(pa.binary()).to_pylist())
    if name == "due_at" and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return list(
            column.cast(pa.timestamp("us", kind.tz if pa.types.is_timestamp(kind) else None))
            .cast(pa.int64())
            .to_pylist()
        )
    return list(column.cast(pa.string()).to_pylist())


def _readable_values(column: pa.Array, name: str, instead: Sequence[Any], unreadable: dict[int, str]) -> list[Any]:
    """Values of a column one by one; of a value that cannot be read the one of ``instead``, and the reason."""
    import pyarrow as pa

    found = []
    for number in range(len(column)):
        try:
            found += column_values(column.slice(number, 1), name)
        except (ValueError, OverflowError) as error:
            is_text = pa.types.is_string(column.type)
            text = column.slice(number, 1).cast(pa.binary())[0].as_py().decode("utf-8", "replace") if is_text else None
            found.append(text if text is not None and name != "args" else instead[number])
            unreadable.setdefault(number, f"column {name} cannot be read: {error}")
    return found


def _plain_form(kind: pa.DataType) -> Callable[[Any], Any]:
    """The function that makes of a value of Arrow what Spark's ``to_json`` makes of it: a map is an object, a field of a
    struct without a value is left out, and a float that JSON lacks is a text."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        fields = [(field.name, _plain_form(field.type)) for field in kind]
        return lambda value: {name: form(value[name]) for name, form in fields if value[name] is not None}
    if pa.types.is_map(kind):
        inner = _plain_form(kind.item_type)
        return lambda value: {_key_text(key): None if item is None else inner(item) for key, item in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _plain_form(kind.value_type)
        return lambda value: [None if item is None else inner(item) for item in value]
    if pa.types.is_floating(kind):
        return lambda value: value if isfinite(value) else _NOT_FINITE[str(value)]
    return lambda value: value


def _key_text(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def batch_id(as_of_ms: int, handler: str, key: str) -> bytes:
    """Id of the job of a row: 16 bytes of a UUIDv7 made from the batch's moment and a hash of handler and key.

    The same row of the same batch always has the same id, in every process, so the primary key of ``job`` accepts it once.
    74 bits come from the hash: among a billion keys of one batch, two collide with a probability of about 1 in 40,000.

    Args:
        as_of_ms: the batch's moment, milliseconds since 1970.
        key: unique among the rows of its handler.
    """
    digest = blake2b(f"{handler}\0{key}".encode(), digest_size=10).digest()
    bits = int.from_bytes(digest, "big")
    rest = ((bits >> 62) & _RAND_A) << 64 | (bits & _RAND_B)
    return (as_of_ms << 80 | _VERSION_7 | _VARIANT | rest).to_bytes(16, "big")


def id_bounds_of(as_of_ms: int) -> tuple[bytes, bytes]:
    """The lowest id of a moment, and the lowest id after it."""
    return (as_of_ms << 80).to_bytes(16, "big"), (as_of_ms + 1 << 80).to_bytes(16, "big")
