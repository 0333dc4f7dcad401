"""Bytes <-> structs. Entries are MessagePack arrays; arguments, headers, results, errors are JSON.

Rules for arguments and results:

* NaN and Infinity are refused: JSON has no form for them and the encoder would silently write ``null``.
* Text must be valid Unicode (a lone surrogate cannot be UTF-8). NUL inside text is allowed: JSON writes it as
  ``\\u0000`` and the bytes are never cast by the database. It is refused in names (handler, lane, tags, keys).
* Integers of any size survive; ``bytes`` travel as base64, dates and times as ISO 8601 text, mapping keys as text. The
  handler's annotation turns them back.
* Nesting is at most ``DEPTH_MAX`` levels, so that what was accepted at submit can be read at any stack depth later.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from math import isfinite

import msgspec

from jobmaster.model.errors import InvalidArguments
from jobmaster.model.ids import ID_BYTES
from jobmaster.model.job import Entry, ErrorInfo, Headers
from jobmaster.model.schedule import Schedule
from jobmaster.model.trace_context import TraceContext
from jobmaster.pydantic_models import plain_foreign
from jobmaster.rules.capabilities import required

ID_AT = slice(3, 3 + ID_BYTES)
"""Where an encoded entry or outcome has its job id; the Lua functions read it there, too."""
DEPTH_MAX = 100
"""Levels of lists and objects inside arguments and results."""
SHORT_BYTES = 2 * DEPTH_MAX
"""Text of so many bytes cannot be nested beyond ``DEPTH_MAX``: every level opens and closes."""

_PACK = msgspec.msgpack.Encoder()
_ENTRY = msgspec.msgpack.Decoder(Entry)
_JSON = msgspec.json.Encoder(enc_hook=plain_foreign)
_HEADERS = msgspec.json.Decoder(Headers)
_ERROR = msgspec.json.Decoder(ErrorInfo)
_ANY = msgspec.json.Decoder()
_KEYS = msgspec.json.Decoder(dict[str, int])
_NO_HEADERS = Headers()


# ---------------------------------------------------------------- what lies in a store


def encode_entry(entry: Entry) -> bytes:
    """The wire form of one job; its id stands at ``ID_AT``."""
    return _PACK.encode(entry)


def encode_identity(job_id: bytes, token: int) -> bytes:
    """Id and token as they stand in an encoded entry, after its first byte; the Lua functions compare these bytes."""
    return _PACK.encode((job_id, token))[1:]


def decode_entry(data: bytes) -> Entry:
    """One job; ``msgspec.DecodeError`` when the bytes are none."""
    return _ENTRY.decode(data)


def decode_entries(items: Sequence[bytes]) -> list[Entry]:
    """Many jobs; ``msgspec.DecodeError`` when one of them is none."""
    decode = _ENTRY.decode
    return [decode(item) for item in items]


# ---------------------------------------------------------------- headers


def encode_headers(headers: Headers) -> bytes:
    """JSON of the fields that differ from their default; nothing at all is zero bytes. ``requires`` is set by the others."""
    if (words := required(headers)) != headers.requires:
        headers = msgspec.structs.replace(headers, requires=words)
    data = encode_value(headers, "headers")
    return b"" if data == b"{}" else data


def encode_trace(context: TraceContext | None) -> bytes:
    """``encode_headers`` of headers with a trace context alone. On the path of every traced submit: its texts have nothing
    that JSON escapes, so no encoder is needed."""
    if context is None:
        return b""
    parent, state = context
    if state:
        return f'{{"traceparent":"{parent}","tracestate":"{state}"}}'.encode()
    return f'{{"traceparent":"{parent}"}}'.encode()


def headers_requiring(headers: bytes, word: str) -> bytes:
    """Encoded headers of a job that also requires this capability."""
    given = decode_headers(headers)
    return encode_headers(msgspec.structs.replace(given, requires=(*given.requires, word)))


def headers_of_tenant(headers: bytes, tenant: str) -> bytes:
    """Encoded headers of a job that runs for this tenant, unless they name another one."""
    given = decode_headers(headers)
    return headers if given.tenant is not None else encode_headers(msgspec.structs.replace(given, tenant=(tenant,)))


def decode_headers(data: bytes) -> Headers:
    """Headers; zero bytes are empty headers."""
    return _HEADERS.decode(data) if data else _NO_HEADERS


def encode_fire_headers(schedule: Schedule, nominal_us: int, due_us: int, trace: TraceContext | None = None) -> bytes:
    """Headers of the job of one fire: those of the schedule, with its name, the nominal time and the expiry.

    Args:
        trace: the span of the fire, where fires are traced.
    """
    expires_us = None if schedule.expires_seconds is None else due_us + int(schedule.expires_seconds * 1e6)
    headers = decode_headers(schedule.headers)
    headers = msgspec.structs.replace(headers, schedule=schedule.name, nominal_us=nominal_us, expires_us=expires_us)
    if trace is not None:
        headers = msgspec.structs.replace(headers, traceparent=trace.traceparent, tracestate=trace.tracestate)
    return encode_headers(headers)


# ---------------------------------------------------------------- arguments and results


def encode_args(args: Mapping[str, object], mappings: bool = True) -> bytes:
    """JSON object of a job's arguments.

    Args:
        mappings: whether a value may hold a mapping; ``False`` spares the look for keys that become one.

    Raises:
        InvalidArguments: a value cannot travel; the sentence names the argument.
    """
    try:
        data = _JSON.encode(args)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise _unencodable_argument(args, error) from None
    # On the path of every submit: `find` takes 60 % of the time of `in`, and short text is not even counted.
    if (
        data.find(b"null") >= 0
        or (len(data) > SHORT_BYTES and _may_be_deep(data))
        or (mappings and data.find(b"{", 1) >= 0 and _lost_keys(data))
    ):
        for name, value in args.items():
            check_value(value, f"argument {name!r}")
    return data


def encode_value(value: object, what: str) -> bytes:
    """JSON of one value. ``what`` names it in the sentence of the ``InvalidArguments``."""
    try:
        data = _JSON.encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidArguments(f"{what} cannot be encoded as JSON: {_reason(error)}") from None
    if b"null" in data or (len(data) > SHORT_BYTES and _may_be_deep(data)):
        check_value(value, what)
    return data


def _may_be_deep(data: bytes) -> bool:
    """False when the text has too few brackets to be nested beyond ``DEPTH_MAX``."""
    return data.count(b"[") + data.count(b"{") > DEPTH_MAX


def _lost_keys(data: bytes) -> bool:
    """True when reading the text gives less than was written: two keys of a mapping have the same text."""
    return len(_JSON.encode(_ANY.decode(data))) != len(data)


def decode_json(data: bytes) -> object:
    """Plain Python value of JSON; ``msgspec.DecodeError`` when it is none."""
    value: object = _ANY.decode(data)
    return value


def check_value(value: object, what: str) -> None:
    """Refuse NaN, Infinity, keys that become one and nesting beyond ``DEPTH_MAX``, naming the place inside ``what``.

    Walks with a list of its own, so that a deep value cannot exhaust the interpreter's stack here.
    """
    todo: list[tuple[object, str, int]] = [(value, "", 1)]
    while todo:
        item, place, depth = todo.pop()
        if isinstance(item, float):
            if not isfinite(item):
                raise InvalidArguments(
                    f"{what}{place} is {item}, which JSON cannot carry", hint="send null or a text instead"
                )
        elif isinstance(item, str | bytes | int) or item is None:
            continue
        elif depth > DEPTH_MAX:
            raise InvalidArguments(f"{what} is nested deeper than {DEPTH_MAX} levels", hint="flatten it")
        elif isinstance(item, Mapping):
            _refuse_equal_keys(item, f"{what}{place}")
            todo.extend((inner, f"{place}[{key!r}]", depth + 1) for key, inner in item.items())
        elif isinstance(item, list | tuple | set | frozenset):
            todo.extend((inner, f"{place}[{index}]", depth + 1) for index, inner in enumerate(item))
        elif not isinstance(plain := msgspec.to_builtins(item, enc_hook=plain_foreign), str):
            todo.append((plain, place, depth))


def _refuse_equal_keys(item: Mapping[object, object], where: str) -> None:
    seen: dict[object, object] = {}
    for key in item:
        written = next(iter(_KEYS.decode(_JSON.encode({key: 0}))))
        if written in seen:
            raise InvalidArguments(
                f"{where} has the keys {seen[written]!r} and {key!r}, which are both written as {written!r}",
                hint="JSON knows text as keys only: one of the two would be lost",
            )
        seen[written] = key


def _unencodable_argument(args: Mapping[str, object], error: Exception) -> InvalidArguments:
    """Encode one argument after the other to find which one it was."""
    for name, value in args.items():
        try:
            _JSON.encode(name)
            _JSON.encode(value)
        except (TypeError, ValueError, RecursionError, OverflowError) as own:
            return InvalidArguments(f"argument {name!r} cannot be encoded as JSON: {_reason(own)}")
    return InvalidArguments(f"the arguments cannot be encoded as JSON: {_reason(error)}")


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"it is nested deeper than {DEPTH_MAX} levels, or contains itself"
    if isinstance(error, UnicodeEncodeError):
        return f"its text is not valid Unicode at position {error.start} (a lone surrogate cannot be written as UTF-8)"
    return str(error)


# ---------------------------------------------------------------- errors


def cut_text(text: str, limit_bytes: int) -> tuple[str, bool]:
    """Text of at most ``limit_bytes`` UTF-8 bytes: its beginning, a marker, its end; and whether it was cut.

    Both ends stay because the first lines show where it began and the last what it was.
    """
    data = text.encode("utf-8", "replace")
    if len(data) <= limit_bytes:
        return data.decode(), False
    marker = f"\n[... {len(data)} bytes, cut to {limit_bytes} ...]\n".encode()
    room = max(limit_bytes - len(marker), 0)
    head = data[: room // 2].decode("utf-8", "ignore")
    tail = data[len(data) - (room - room // 2) :].decode("utf-8", "ignore") if room else ""
    return head + marker.decode() + tail, True


def error_of(error: BaseException, *, reason: str = "error", limit_bytes: int = 16 * 1024) -> ErrorInfo:
    """Text of an exception, cut to the limit. Never raises, whatever the exception's own ``__str__`` does."""
    kind = type(error)
    try:
        message = str(error)
    except BaseException as broken:  # a handler's exception is foreign code: its SystemExit must not end other jobs
        message = f"<its text cannot be read: {type(broken).__name__}>"
    try:
        trace = "".join(traceback.format_exception(error))
    except BaseException:
        trace = ""
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    message, cut_message = cut_text(message, limit_bytes // 4)
    trace, cut_trace = cut_text(trace, limit_bytes // 2)
    return ErrorInfo(
        type=cut_text(name, 512)[0],
        message=message,
        reason=reason,
        traceback=trace,
        truncated=cut_message or cut_trace,
    )


def encode_error(info: ErrorInfo, limit_bytes: int = 16 * 1024) -> bytes:
    """JSON of an error, at most ``limit_bytes`` (but never less than its type and a short message)."""
    room = limit_bytes
    while True:
        data = _encode_error_text(info)
        if len(data) <= limit_bytes or room < 256:
            return data
        # Escapes make the JSON longer than its text: cut the text again until the JSON fits.
        room //= 2
        info = ErrorInfo(
            type=cut_text(info.type, 512)[0],
            message=cut_text(info.message, room // 4)[0],
            reason=info.reason,
            traceback=cut_text(info.traceback, room // 2)[0],
            truncated=True,
        )


def _encode_error_text(info: ErrorInfo) -> bytes:
    try:
        return _JSON.encode(info)
    except UnicodeEncodeError:
        parts = {name: cut_text(getattr(info, name), 1 << 30)[0] for name in ("type", "message", "reason", "traceback")}
        return _JSON.encode(ErrorInfo(**parts, truncated=True))


def decode_error(data: bytes) -> ErrorInfo:
    """An error as recorded."""
    return _ERROR.decode(data)
