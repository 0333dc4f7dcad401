"""Answers to requests that were refused: one JSON shape, and the statuses of errors."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from jobmaster.model.errors import (
    AccessRefused,
    BucketsFull,
    ConfigError,
    Conflict,
    InputError,
    JobFailed,
    JobMasterError,
    LockLost,
    NotFound,
    NotUnique,
    OutcomeUnknown,
    Refused,
    SchemaMismatch,
    StoreRefused,
    Unavailable,
    WaitTimeout,
)

RETRY_AFTER_SECONDS = 5
_JSON = "application/json"
_STATUS: dict[type[JobMasterError], int] = {
    InputError: 422,
    NotFound: 404,
    Conflict: 409,
    LockLost: 409,
    JobFailed: 409,
    WaitTimeout: 408,
    Refused: 409,
    AccessRefused: 503,
    StoreRefused: 503,
    BucketsFull: 503,
    SchemaMismatch: 503,
    Unavailable: 503,
    ConfigError: 503,
}
"""Error -> HTTP status; the nearest class counts. Errors that are not listed are defects of this program (500)."""
_LATER = "a server of the cluster does not answer"
_LATER_HINT = "send the request again later; the log of the web server has the details"
_UNFIT = "the web server does not fit the cluster: its configuration, or its version"
_UNFIT_HINT = "the log of the web server has the details"
_UNKNOWN = "whether it was done is not known"
_UNKNOWN_HINT = (
    "look whether it was done before it is sent again; what has a key (idempotency_key, the key of a batch) may be sent "
    "again as it is"
)
_UNKNOWN_IDS_HINT = "send the same request again with one of job_ids: job_id of a submit, workflow_id, signal_id"
_WORDS = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}

_log = logging.getLogger(__name__)


class RequestRefused(Exception):  # as ``Refused``
    """A request that is refused before it reaches the cluster.

    Args:
        status: HTTP status, 400 to 499.
        code: the error as a word.
        message, hint: as of ``JobMasterError``.
    """

    def __init__(
        self, status: int, code: str, message: str, hint: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.headers = dict(headers or {})


class PartlyStored(Exception):
    """A submit of many jobs has stopped, and some of them are stored, or may be. To be raised from the error that has stopped
    it.

    Args:
        cause: that error; its sentence is shown where callers may read it.
        detail: counts in words as ``message``, ``hint``, and which jobs.
    """

    def __init__(self, cause: BaseException | None, detail: ErrorDetail) -> None:
        super().__init__(detail.message)
        self.status, self.detail = 500, detail
        if isinstance(cause, JobMasterError):
            self.status = status_of(cause)
            if _is_shown(cause):
                self.detail = msgspec.structs.replace(detail, message=f"{cause.message}; {detail.message}")


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is wrong, and how it is mended."""

    code: str
    """The kind of the error as a word: ``not_found``, ``conflict``, ``unavailable``."""
    message: str
    hint: str | None
    job_ids: list[str] = []
    """Jobs that may or may not have been stored. Of one job: send the same request again with this ``job_id``. Of a workflow
    or a signal: its own id, as ``workflow_id`` or ``signal_id``."""
    submitted: int | None = None
    """Of a submit of many jobs that has stopped (``partly_stored``): how many are stored."""
    not_stored: list[int] | None = None
    """Of these: the places in ``jobs``, from 0, of those that are certainly not stored. Left out, as ``unknown``, where that
    is not known: of a batch, and of jobs with unique keys."""
    unknown: list[int] | None = None
    """Of these: the places in ``jobs`` of ``job_ids``, in the same order."""
    holder: str | None = None
    """Of ``not_unique``: id of the job that holds the unique key."""


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is no success."""

    error: ErrorDetail


def answer_refusal(refusal: RequestRefused) -> Response:
    """The answer to a refused request."""
    return _answer(
        refusal.status, ErrorDetail(code=refusal.code, message=refusal.message, hint=refusal.hint), refusal.headers
    )


def answer_error(error: JobMasterError) -> Response:
    """The answer for an error of the library."""
    status = status_of(error)
    if status == 500:
        _log.error("unexpected error", exc_info=error)
        return internal_error()
    if status < 500:
        return _answer(status, detail_of(error))
    _log.warning("%s", error)
    # A client that repeats by itself must not repeat what may have been done.
    again = None if isinstance(error, OutcomeUnknown) else {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return _answer(status, detail_of(error), again)


def detail_of(error: JobMasterError) -> ErrorDetail:
    """An error as callers see it. Sentences of errors of servers name these, so the log alone has them."""
    code = _word(type(error).__name__)
    if _is_shown(error):
        holder = str(error.holder) if isinstance(error, NotUnique) else None
        return ErrorDetail(code=code, message=error.message, hint=error.hint, holder=holder)
    if isinstance(error, SchemaMismatch | ConfigError | AccessRefused | StoreRefused):
        return ErrorDetail(code=code, message=_UNFIT, hint=_UNFIT_HINT)
    if not isinstance(error, OutcomeUnknown):
        return ErrorDetail(code=code, message=_LATER, hint=_LATER_HINT)
    ids = [str(each) for each in error.job_ids]
    return ErrorDetail(code=code, message=_UNKNOWN, hint=_UNKNOWN_IDS_HINT if ids else _UNKNOWN_HINT, job_ids=ids)


def _is_shown(error: JobMasterError) -> bool:
    """Whether callers may read the sentence: full buckets are named by lane and priority."""
    return status_of(error) < 500 or isinstance(error, BucketsFull)


def status_of(error: JobMasterError) -> int:
    """The HTTP status of an error; 500: a defect of this program."""
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)


def internal_error() -> Response:
    """The answer for a defect of this program."""
    return _answer(
        500, ErrorDetail(code="internal", message="unexpected error", hint="the log of the web server has it")
    )


def slow_cluster() -> Response:
    """The answer when the cluster has not done what was asked for within the time limit of a request."""
    return _answer(
        503,
        ErrorDetail(code="timeout", message="the cluster did not answer in time", hint=_LATER_HINT),
        {"Retry-After": str(RETRY_AFTER_SECONDS)},
    )


async def on_partly_stored(_: Request, error: Exception) -> Response:
    """See ``PartlyStored``. Without ``Retry-After``: the same request again would store jobs twice."""
    assert isinstance(error, PartlyStored)
    if error.status >= 500:
        _log.warning("%s: %s", error, error.__cause__, exc_info=error if error.status == 500 else None)
    return _answer(error.status, error.detail)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Errors of the router: no such path, no such method."""
    assert isinstance(error, HTTPException)
    words = {404: f"there is nothing at {request.url.path:.200}", 405: f"{request.method:.20} is not possible here"}
    code = _WORDS.get(error.status_code, "refused")
    message = words.get(error.status_code, str(error.detail))
    return _answer(error.status_code, ErrorDetail(code=code, message=message, hint=None), error.headers)


async def on_refusal(_: Request, error: Exception) -> Response:
    """See ``RequestRefused``."""
    assert isinstance(error, RequestRefused)
    return answer_refusal(error)


async def on_library_error(_: Request, error: Exception) -> Response:
    """See ``answer_error``."""
    assert isinstance(error, JobMasterError)
    return answer_error(error)


def _answer(status: int, detail: ErrorDetail, headers: Mapping[str, str] | None = None) -> Response:
    body = msgspec.json.encode(ErrorAnswer(error=detail))
    return Response(body, status, dict(headers or {}), _JSON)


def _word(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()
