"""Secret arguments of a handler: ``@handlers.job(secret=("token",))``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from jobmaster.model.errors import InputError
from jobmaster.model.job import ErrorInfo
from jobmaster.model.job_log import RELAYED, LogLine
from jobmaster.model.redaction import SecretTexts
from jobmaster.model.run_progress import RunProgress
from jobmaster.model.suggestion import did_you_mean

if TYPE_CHECKING:
    from jobmaster.handlers.context import JobContext, ProgressSink
    from jobmaster.handlers.run_log import LogSink


_FORMATTER = logging.Formatter()
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {RELAYED, "jobmaster_fields"}
"""Attributes of every record; the others are extra fields."""


def checked_secret(value: object) -> tuple[str, ...]:
    """``secret=``: names of arguments; ``InputError`` for anything else."""
    if value is None:
        return ()
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InputError(f"secret must be the name of an argument or a list of names, not {value!r:.80}")
    return tuple(dict.fromkeys(names))


def check_parameters(secret: Sequence[str], parameters: Sequence[str]) -> None:
    """``InputError`` for a secret argument that the handler does not have."""
    for name in secret:
        if name not in parameters:
            raise InputError(
                f"secret has {name!r}, which is no argument",
                hint=did_you_mean(name, parameters) or f"its arguments are {', '.join(parameters) or 'none'}",
            )


def without_secrets(info: ErrorInfo, texts: SecretTexts) -> ErrorInfo:
    """The error with the values of secret arguments cut out of its message and traceback."""
    return msgspec.structs.replace(info, message=texts.cut(info.message), traceback=texts.cut(info.traceback))


def hide_in_context(context: JobContext, texts: SecretTexts) -> None:
    """What the run logs and reports goes on without the values of secret arguments."""
    context.secret_texts = texts
    if context.log_sink is not None:
        context.log_sink = _Log(context.log_sink, texts)
    if context.progress_sink is not None:
        context.progress_sink = _Progress(context.progress_sink, texts)


def hide_in_record(record: logging.LogRecord, texts: SecretTexts) -> None:
    """A line of ``logging`` without the values of secret arguments, in its message, its traceback and its extra fields."""
    record.msg, record.args = texts.cut(record.getMessage()), None
    if record.exc_info:
        record.exc_text, record.exc_info = texts.cut(_FORMATTER.formatException(record.exc_info)), None
    for name, value in vars(record).items():
        if name not in _STANDARD and value is not None:
            setattr(record, name, texts.cut(str(value)))


class _Log:
    def __init__(self, sink: LogSink, texts: SecretTexts) -> None:
        self._sink, self._texts = sink, texts

    def keep(self, job_id: bytes, line: LogLine, lowest: int) -> None:
        self._sink.keep(job_id, msgspec.structs.replace(line, text=self._texts.cut(line.text)), lowest)


class _Progress:
    def __init__(self, sink: ProgressSink, texts: SecretTexts) -> None:
        self._sink, self._texts = sink, texts

    def note(self, job_id: bytes, token: int, progress: RunProgress) -> None:
        self._sink.note(job_id, token, msgspec.structs.replace(progress, text=self._texts.cut(progress.text)))
