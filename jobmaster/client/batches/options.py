"""Options of a batch, checked before anything is stored."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

from jobmaster.handlers import Call, check_name
from jobmaster.model import ids
from jobmaster.model.errors import InputError
from jobmaster.model.flow.batch import BatchView, Occasion

NAME_CHARS_MAX = 200
DESCRIPTION_CHARS_MAX = 1000
ABANDON_SECONDS = 3600.0
ABANDON_SECONDS_MIN = 10.0
TIMEOUT_SECONDS_MAX = 365 * 86400.0

Seconds = float | timedelta


class BatchOptions(TypedDict, total=False):
    """Options of ``Cluster.batch``."""

    on_complete: Call[Any]
    """Submitted when the batch has ended, however."""
    on_success: Call[Any]
    """Submitted when all of its jobs have succeeded."""
    on_failure: Call[Any]
    """Submitted when it has ended and a job has not succeeded. Not after a cancel."""
    description: str
    key: str
    """Names the batch: there is one of a key. A producer that opens it again goes on where an earlier run has ended, and one
    that has been closed gets no more jobs. Give the same jobs in the same order."""
    parent: Any
    """The batch that this one is part of: a ``Batch``, its view or its id, ``ctx.batch`` inside a handler. It does not end
    before this one."""
    timeout: Seconds
    """Seconds after which the batch has FAILED, whatever its jobs do (they go on); without: never."""
    abandon_after: Seconds
    """Seconds without a sign of the producer after which a batch that is not closed has FAILED; 3600."""


class CheckedBatch(NamedTuple):
    """The options, checked."""

    name: str
    description: str
    parent: bytes | None
    timeout_seconds: float | None
    abandon_seconds: float
    callbacks: dict[Occasion, Call[Any]]
    key: str | None = None


def check_batch_options(name: str, options: BatchOptions) -> CheckedBatch:
    """Every option checked against its rule; ``InputError`` for an unknown one, or a value that cannot be meant."""
    unknown = options.keys() - BatchOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(BatchOptions.__annotations__)
        raise InputError(f"a batch has no option {', '.join(sorted(map(repr, unknown)))}", hint=f"there are {known}")
    description: object = options.get("description", "")
    if not isinstance(description, str) or len(description) > DESCRIPTION_CHARS_MAX or "\0" in description:
        raise InputError(f"'description' must be text of at most {DESCRIPTION_CHARS_MAX} characters")
    callbacks: dict[Occasion, Call[Any]] = {}
    for occasion in Occasion:
        given: Any = options.get(f"on_{occasion}")
        if given is None:
            continue
        if not isinstance(given, Call):
            raise InputError(
                f"'on_{occasion}' must be a call, not {type(given).__name__}", hint=f"on_{occasion}=call(report)"
            )
        callbacks[occasion] = given
    parent, timeout = options.get("parent"), options.get("timeout")
    return CheckedBatch(
        check_name(name, "name of a batch", NAME_CHARS_MAX),
        str(description),
        None if parent is None else batch_id_of(parent),
        None if timeout is None else _seconds(timeout, "timeout", 0.001, TIMEOUT_SECONDS_MAX),
        _seconds(
            options.get("abandon_after", ABANDON_SECONDS), "abandon_after", ABANDON_SECONDS_MIN, TIMEOUT_SECONDS_MAX
        ),
        callbacks,
        None if options.get("key") is None else check_name(options["key"], "'key'", NAME_CHARS_MAX),
    )


def batch_id_of(batch: Any) -> bytes:
    """The id of a batch: of a ``Batch``, a view, a UUID, or text."""
    if isinstance(batch, BatchView):
        return batch.id_bytes
    given = getattr(batch, "id", batch)
    try:
        if not isinstance(given, UUID | str | bytes):
            raise TypeError("not an id")
        return ids.parse(given)
    except (ValueError, TypeError):
        raise InputError(f"{batch!r} is no batch", hint="give the batch, its view, or its id") from None


def _seconds(value: object, what: str, least: float, most: float) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise InputError(f"{what!r} must be a number of seconds or a timedelta, not {value!r}")
    if not least <= seconds <= most:
        raise InputError(f"{what!r} must be from {least:g} to {most:g} seconds, not {seconds:g}")
    return float(seconds)
