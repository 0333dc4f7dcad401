"""Extracts JobMaster's own error from an exception of Spark, where it is inside the stack traces of Python and Java."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from jobmaster.model import errors
from jobmaster.model.errors import JobMasterError, Refused, Unavailable

T = TypeVar("T")
_OURS = re.compile(r"jobmaster\.model\.errors\.(?P<name>\w+): (?P<message>[^\n]+)")
_CLASSES: dict[str, type[JobMasterError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, JobMasterError) and kind is not errors.ConfigError
}
_TRACE = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: |$)")
_CALL = re.compile(r"An error occurred while calling [\w.]+$")
_JAVA_CLASS = re.compile(r"^: ([\w$]+\.)+[\w$]+: ")
_STARTED_LATE = "Python worker failed to connect back"
_FULL_DISK = ("No space left on device", "Disk quota exceeded")


def run_spark(work: Callable[[], T]) -> T:
    """Call a function that runs Spark, and convert its errors.

    Raises:
        JobMasterError: the error raised by JobMaster in any process; ``Unavailable`` for a full disk and for a
            Python that started too late; ``Refused`` with Spark's first line for any other error.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return work()
    except (PySparkException, Py4JError) as error:
        raise error_of_spark(error) from error


class PythonStartedLate(Unavailable):
    """A Python process of Spark did not call back within ten seconds, a constant of Spark: nothing has run in it."""


def error_of_spark(error: Any) -> JobMasterError:
    """The error of JobMaster for an exception of Spark."""
    text = str(error)
    # The last one is the uncaught error; the ones before it are its causes.
    found = list(_OURS.finditer(text))
    if found:
        match = found[-1]
        kind = _CLASSES.get(match["name"], Refused)
        return kind(match["message"])
    for sign in _FULL_DISK:
        if sign in text:
            return Unavailable(
                f"a disk is full: {sign}", hint="make room and run it again; nothing counts until it is whole"
            )
    if _STARTED_LATE in text:
        return PythonStartedLate(
            "a Python process of Spark did not start within Spark's limit of ten seconds",
            hint="run it again when the machine has less to do",
        )
    return Refused(f"Spark: {_python_error(text) or first_line(error)}")


def _python_error(text: str) -> str | None:
    """The last line of the last stack trace of Python in a text, which names the exception."""
    after = text.rpartition(_TRACE)
    lines = after[2].splitlines() if after[1] else []
    return next((line.strip() for line in lines if _EXCEPTION.match(line)), None)


def cause_of(error: BaseException) -> str:
    """The innermost message of a stack trace: JobMaster's error in a task, else Java's last cause, else the first line."""
    lines = [line.strip() for line in str(error).splitlines()]
    ours = [line for line in lines if line.startswith("jobmaster.model.errors.")]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    if ours:
        return ours[-1].partition(": ")[2]
    return causes[-1] if causes else first_line(error)


def first_line(error: BaseException) -> str:
    """The message of an exception of Spark, without the JVM's stack trace and the call of Py4J that met it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if _CALL.match(lines[0]) and len(lines) > 1:
        return _JAVA_CLASS.sub("", lines[1])
    return lines[0]
