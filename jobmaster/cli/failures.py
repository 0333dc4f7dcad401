"""Turns an error into one line with a hint (or one JSON object) on standard error, and an exit code.

The codes are those of ``jobmaster.model.errors`` (after sysexits where it has one); ``docs/cli.md`` lists them.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from jobmaster.cli.invocation import Invocation
from jobmaster.cli.tables import Output
from jobmaster.model.errors import ConfigError, JobMasterError, OutcomeUnknown, UnknownHandler

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_FINDINGS, EXIT_INTERNAL, EXIT_INTERRUPTED = 0, 1, 2, 5, 70, 130


_UNKNOWN_HINT = "start an agent that has it (jobmaster agent run --handlers MODULE), or use --allow-unregistered"


class Failure(NamedTuple):
    """An error as it is printed."""

    code: str
    """The error's class as a word: ``not_found``, ``unavailable``, ``config_error``, ``usage``, ``internal``."""
    message: str
    hint: str | None
    exit_code: int
    problems: Sequence[str] = ()
    job_id: str | None = None
    """The job that continues, or may have been stored, in spite of the error."""


def guarded(command: Callable[[], Any], invocation: Invocation, arguments: Sequence[str]) -> int:
    """Run the command line. Every exception becomes an exit code."""
    try:
        code = command()
        sys.stdout.flush()
        return code if isinstance(code, int) else EXIT_OK
    except (KeyboardInterrupt, click.Abort):
        return _report_failure(Failure("interrupted", "interrupted", None, EXIT_INTERRUPTED), invocation, arguments)
    except click.exceptions.Exit as error:
        return error.exit_code
    except Exception as raised:
        first = _single(raised)
        if isinstance(first, OSError) and _comes_from_output(first):
            _abandon_output()
            if isinstance(first, BrokenPipeError):
                return EXIT_FAILED  # the reading program (head, less) has ended: nothing can be printed
            message = f"standard output cannot be written: {first.strerror}"
            return _report_failure(Failure("output", message, None, EXIT_FAILED), invocation, arguments)
        if invocation.debug and not isinstance(first, click.ClickException):
            import traceback  # loads much, which a program without a failure need not wait for

            traceback.print_exception(raised, file=sys.stderr)
        return _report_failure(failure_of(first), invocation, arguments)


def _report_failure(failure: Failure, invocation: Invocation, arguments: Sequence[str]) -> int:
    """Print a failure on standard error; returns the exit code."""
    if invocation.submitted_id is not None:
        failure = failure._replace(job_id=invocation.submitted_id)
    wants_json = invocation.output.json_errors or _requests_json(arguments)
    click.echo(failure_json(failure) if wants_json else failure_text(failure), err=True)
    return failure.exit_code


def _single(error: Exception) -> Exception:
    """The first error of a group. Members of one task group mostly fail for one reason."""
    return _single(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


def _comes_from_output(error: OSError) -> bool:
    """True when printing raised the error (a full disk). The stream itself does not show it: it has dropped the text."""
    import traceback  # as above

    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    return last.f_code in (click.echo.__code__, guarded.__code__)


def _abandon_output() -> None:
    """Close standard output, so that the interpreter does not flush it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def failure_of(error: Exception) -> Failure:
    """The failure that is printed for an exception."""
    error = _single(error)
    if isinstance(error, JobMasterError):
        problems = error.problems if isinstance(error, ConfigError) else ()
        hint = _unknown_handler_hint(error.hint) if isinstance(error, UnknownHandler) else error.hint
        unknown = error.job_ids if isinstance(error, OutcomeUnknown) else ()
        job_id = str(unknown[0]) if len(unknown) == 1 else None
        return Failure(_word(type(error).__name__), error.message, hint, error.exit_code, problems, job_id)
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx is not None else "jobmaster"
        return Failure("usage", error.format_message(), f"see {where} --help", EXIT_USAGE)
    if isinstance(error, click.ClickException):
        return Failure("failed", error.format_message(), None, error.exit_code)
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failure("internal", f"unexpected error: {message}", "run it again with --debug and report it", EXIT_INTERNAL)


def _unknown_handler_hint(hint: str | None) -> str | None:
    """A hint with the option of the command line in place of that of the library."""
    from jobmaster.client.handler_lookup import UNKNOWN_HINT

    return hint and hint.replace(UNKNOWN_HINT, _UNKNOWN_HINT)


def failure_text(failure: Failure) -> str:
    """``error: message (hint)``; every problem of a configuration first, a line each."""
    line = failure.message if failure.exit_code == EXIT_INTERRUPTED else f"error: {failure.message}"
    line += f" ({failure.hint})" if failure.hint else ""
    if failure.job_id is not None:
        line += f"; the job is {failure.job_id}: jobmaster job show {failure.job_id}"
    if len(failure.problems) > 1 or (failure.problems and failure.problems[0] not in failure.message):
        return "\n".join([*failure.problems, line])
    return line


def failure_json(failure: Failure) -> str:
    """``{"error": {"code", "message", "hint"}}`` on one line, with ``job_id`` when a job continues in spite of the error."""
    fields: dict[str, object] = {"code": failure.code, "message": failure.message, "hint": failure.hint}
    if failure.job_id is not None:
        fields["job_id"] = failure.job_id
    if failure.problems:
        fields["problems"] = list(failure.problems)
    return json.dumps({"error": fields}, ensure_ascii=False)


def _word(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


def _requests_json(arguments: Sequence[str]) -> bool:
    """True when the arguments request JSON; for a command line that could not be parsed."""
    pairs = itertools.pairwise([*arguments, ""])
    formats = [each.value for each in Output if each.json_errors]
    return any(
        (first in ("-o", "--output") and second in formats)
        or first in [f"{option}{value}" for option in ("-o", "--output=") for value in formats]
        for first, second in pairs
    )
