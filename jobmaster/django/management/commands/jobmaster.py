"""``manage.py jobmaster ...``: the program ``jobmaster`` with the configuration of the project's backend."""

from __future__ import annotations

import argparse
import os
import sys
from itertools import pairwise

from django.conf import ENVIRONMENT_VARIABLE
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobmaster.cli.invocation import common_options
from jobmaster.cli.main import run
from jobmaster.django.options import BACKEND_VARIABLE, chosen_backend
from jobmaster.model.errors import ConfigError

HANDLERS = "jobmaster.django.handlers"
_BACKEND = "--backend"
_OF_DJANGO = ("--settings", "--pythonpath")
"""Options that ``manage.py`` itself has read."""


class Command(BaseCommand):
    """Every command of ``jobmaster``; an agent runs the tasks of the project.

    ``--backend ALIAS`` chooses among several backends.
    """

    help = "Run a jobmaster command with the project's configuration, such as: manage.py jobmaster agent run"

    def run_from_argv(self, argv: list[str]) -> None:
        """Become the program ``jobmaster``, so that signals and exit code are its own. Its options are passed on unread."""
        try:
            words, variables = command_line(argv[2:])
        except ImproperlyConfigured as error:
            self.stderr.write(f"error: {error}")
            sys.exit(ConfigError.exit_code)
        # `python -m` looks in the working directory; the project lies where manage.py does.
        places = [os.path.abspath(sys.path[0]), *_values(argv[2:], "--pythonpath"), os.environ.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, places)))
        sys.stdout.flush()
        os.execve(  # noqa: S606  # no shell is meant
            sys.executable, [sys.executable, "-m", "jobmaster.cli.main", *words], {**os.environ, **variables}
        )

    def add_arguments(self, parser: CommandParser) -> None:
        """The words of the command, as ``call_command`` passes them."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_: object, arguments: list[str], **__: object) -> None:
        """``call_command("jobmaster", "status")``: in this process."""
        if _is_agent_run(arguments):
            raise CommandError("an agent needs a process of its own: python manage.py jobmaster agent run")
        try:
            words, _variables = command_line(arguments)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        if code := run(words):
            raise CommandError(f"jobmaster {' '.join(arguments)} has failed", returncode=code)


def command_line(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """The words for ``jobmaster``, and the variables that an agent of this project needs.

    Raises:
        ImproperlyConfigured: there is no backend of that name, or its options are wrong.
    """
    wanted = _values(arguments, _BACKEND)
    alias, options = chosen_backend(wanted[-1] if wanted else None)
    words = _without(arguments, (_BACKEND, *_OF_DJANGO))
    before = [] if options.config is None else ["--config", options.config]
    for override in options.overrides:
        before += ["--set", override]
    if _is_agent_run(words) and HANDLERS not in words:
        words += ["--handlers", HANDLERS]
    return [*before, *words], {
        ENVIRONMENT_VARIABLE: os.environ.get(ENVIRONMENT_VARIABLE, ""),
        BACKEND_VARIABLE: alias,
    }


def _is_agent_run(arguments: list[str]) -> bool:
    """The command is ``agent run``, with or without options before and between its words."""
    with_value = {_BACKEND, *_OF_DJANGO}
    for option in common_options():
        if not option.is_flag and not option.count:
            with_value.update(option.opts)
    command: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in with_value:
            next(words, None)
        elif not word.startswith("-"):
            command.append(word)
    return command[:2] == ["agent", "run"]


def _values(arguments: list[str], option: str) -> list[str]:
    found = [one.partition("=")[2] for one in arguments if one.startswith(f"{option}=")]
    return found + [after for word, after in pairwise(arguments) if word == option]


def _without(arguments: list[str], options: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in options:
            next(words, None)
        elif word.partition("=")[0] not in options:
            kept.append(word)
    return kept
