"""How an error leaves the program: one line with a hint (or one JSON object) on standard error, and an exit code.

The codes are those of ``jobmaster.model.errors`` (after sysexits where it has one); ``docs/cli.md`` lists them.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from jobmaster.cli.invocation import Invocation
from jobmaster.model.errors import ConfigError, JobMasterError, OutcomeUnknown, UnknownHandler
from jobmaster.model.ids import text

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_FINDINGS, EXIT_INTERNAL, EXIT_INTERRUPTED = 0, 1, 2, 5, 70, 130


_UNKNOWN_HINT = "start an agent that has it (jobmaster agent run --handlers MODULE), or say --allow-unregistered"


class Failure(NamedTuple):
    """An error as it is printed."""

    code: str
    """The error's class as a word: ``not_found``, ``unavailable``, ``config_error``, ``usage``, ``internal``."""
    message: str
    hint: str | None
    exit_code: int
    problems: Sequence[str] = ()
    job_id: str | None = None
    """The job that goes on, or may have been stored, all the same."""


def guarded(command: Callable[[], Any], invocation: Invocation, arguments: Sequence[str]) -> int:
    """Run the command line and turn whatever it raises into an exit code; never raises."""
    try:
        code = command()
        sys.stdout.flush()
        return code if isinstance(code, int) else EXIT_OK
    except (KeyboardInterrupt, click.Abort):
        return _tell(Failure("interrupted", "interrupted", None, EXIT_INTERRUPTED), invocation, arguments)
    except click.exceptions.Exit as error:
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) has gone: nothing can be printed. The interpreter must not try to flush again.
        _abandon_output()
        return EXIT_FAILED
    except Exception as error:
        if isinstance(error, OSError) and _comes_from_output(error):
            _abandon_output()
            said = f"standard output cannot be written: {error.strerror}"
            return _tell(Failure("output", said, None, EXIT_FAILED), invocation, arguments)
        if invocation.debug and not isinstance(error, click.ClickException):
            traceback.print_exception(error, file=sys.stderr)
        return _tell(failure_of(error), invocation, arguments)


def _tell(failure: Failure, invocation: Invocation, arguments: Sequence[str]) -> int:
    """Say it on standard error; the exit code."""
    if invocation.handed_in is not None:
        failure = failure._replace(job_id=invocation.handed_in)
    wants_json = invocation.json or _asks_for_json(arguments)
    click.echo(failure_json(failure) if wants_json else failure_text(failure), err=True)
    return failure.exit_code


def _comes_from_output(error: OSError) -> bool:
    """True when printing raised it (a full disk). Asking the stream again does not help: it has dropped what it could not
    write."""
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    return last.f_code in (click.echo.__code__, guarded.__code__)


def _abandon_output() -> None:
    """The interpreter must not try to flush again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def failure_of(error: Exception) -> Failure:
    """Any exception as the user sees it."""
    if isinstance(error, ExceptionGroup):
        # A group says less than its first member; the members of one task group fail for one reason, as a rule.
        return failure_of(error.exceptions[0])
    if isinstance(error, JobMasterError):
        problems = error.problems if isinstance(error, ConfigError) else ()
        hint = _unknown_handler_hint(error.hint) if isinstance(error, UnknownHandler) else error.hint
        unknown = error.job_ids if isinstance(error, OutcomeUnknown) else ()
        job_id = text(unknown[0]) if len(unknown) == 1 else None
        return Failure(_word(type(error).__name__), error.message, hint, error.exit_code, problems, job_id)
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx is not None else "jobmaster"
        return Failure("usage", error.format_message(), f"see {where} --help", EXIT_USAGE)
    if isinstance(error, click.ClickException):
        return Failure("failed", error.format_message(), None, error.exit_code)
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failure("internal", f"unexpected error: {message}", "run it again with --debug and report it", EXIT_INTERNAL)


def _unknown_handler_hint(hint: str | None) -> str | None:
    """A hint that names an option of the library, for the command line."""
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
    """``{"error": {"code", "message", "hint"}}`` on one line, with ``job_id`` when a job goes on all the same."""
    told: dict[str, object] = {"code": failure.code, "message": failure.message, "hint": failure.hint}
    if failure.job_id is not None:
        told["job_id"] = failure.job_id
    if failure.problems:
        told["problems"] = list(failure.problems)
    return json.dumps({"error": told}, ensure_ascii=False)


def _word(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """For a command line that could not be parsed to its end."""
    pairs = itertools.pairwise([*arguments, ""])
    return any(
        (first in ("-o", "--output") and second == "json") or first in ("-ojson", "--output=json")
        for first, second in pairs
    )
