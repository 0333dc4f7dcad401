"""The commands that a page tells its reader to type, and what the command line has to say about them without running them.

A command of the product is parsed by click: its groups, options, values and numbers of arguments. Values in capitals
(``JOB``, ``AGENT``) stand for the reader's own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import click

from jobmaster.cli.main import root

_PUNCTUATION = set("();<>|&")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PLACEHOLDER = re.compile(r"\[?[A-Z_]+\]?|.*(?:\.\.\.|[$<>{}]).*")
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_UNREAD = (click.Path, click.File)
"""Types whose values are files of the reader."""
_REST_FOLLOWS = ("xargs",)
"""Programs that add arguments to the command behind them."""


class Typed(NamedTuple):
    """One command."""

    program: str
    """Without its folder."""
    words: tuple[str, ...]
    rest_follows: bool = False
    """Another program adds arguments to it."""


def typed_lines(language: str, text: str) -> list[str]:
    """The command lines in a block of code, without prompts, with continued lines joined."""
    text = text.replace("\\\n", " ")
    match language.partition(" ")[0]:
        case "console":
            return [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        case "sh" | "bash":
            return [line for line in text.splitlines() if line.strip()]
        case "text" | "":
            return [
                line.removeprefix("$ ")
                for line in text.splitlines()
                if re.match(r"\$ |jobmaster [a-z]|python3? -m \w", line)
            ]
    return []


def commands(line: str) -> Iterator[Typed]:
    """The commands of a line: behind pipes, and inside ``$(...)``.

    Raises:
        ValueError: a quotation has no end.
    """
    while (found := _SUBSTITUTION.search(line)) is not None:
        yield from commands(found[1])
        line = f"{line[: found.start()]}VALUE{line[found.end() :]}"
    lexer = shlex.shlex(line, posix=True, punctuation_chars="".join(sorted(_PUNCTUATION)))
    lexer.whitespace_split = True
    lexer.commenters = "#"
    part: list[str] = []
    after_redirection = False
    for token in [*lexer, ";"]:
        if not set(token) <= _PUNCTUATION:
            if not after_redirection:
                part.append(token)
            after_redirection = False
            continue
        if set(token) & set("<>"):
            after_redirection = True
            continue
        yield from _command(part)
        part = []


def _command(words: list[str]) -> Iterator[Typed]:
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in ("exec", "sudo")):
        words = words[1:]
    if not words:
        return
    program, arguments = words[0].rpartition("/")[2], words[1:]
    yield Typed(program, tuple(arguments))
    if program in _REST_FOLLOWS:
        behind = [word for word in arguments if not word.startswith("-")]
        if behind:
            yield Typed(behind[0], tuple(behind[1:]), rest_follows=True)


def fault(words: Iterable[str], *, whole: bool = True) -> str:
    """What the command line says about ``jobmaster <words>``; empty: nothing.

    Args:
        whole: arguments and options that are required have to be there.
    """
    command: click.Command = root
    context = click.Context(command, info_name="jobmaster")
    rest = list(words)
    while True:
        try:
            given, rest, _ = command.make_parser(context).parse_args(list(rest))
        except click.BadOptionUsage as error:
            return "" if not whole and "requires an argument" in error.message else error.format_message()
        except click.UsageError as error:
            return error.format_message()
        if "help" in given:
            return ""
        if why := _values_fault(command, context, given, whole=whole):
            return why
        if not isinstance(command, click.Group):
            return f"too many arguments: {' '.join(rest)}" if rest else ""
        if not rest:
            return "" if command.invoke_without_command or not whole else "a command is missing"
        found = command.get_command(context, rest[0])
        if found is None:
            return "" if _PLACEHOLDER.fullmatch(rest[0]) else f"no command {rest[0]}"
        context = click.Context(found, parent=context, info_name=rest[0])
        command, rest = found, rest[1:]


def _values_fault(command: click.Command, context: click.Context, given: dict[str, object], *, whole: bool) -> str:
    for parameter in command.params:
        value = given.get(parameter.name or "")
        # click has a mark of its own for "not given".
        if not isinstance(value, str | int | list | tuple) or value == ():
            if whole and parameter.required:
                return f"{parameter.get_error_hint(context)} is missing"
            continue
        texts = [text for text in (value if isinstance(value, list | tuple) else [value]) if isinstance(text, str)]
        for text in texts:
            if isinstance(parameter.type, _UNREAD) or _PLACEHOLDER.fullmatch(text):
                continue
            try:
                parameter.type.convert(text, parameter, context)
            except click.UsageError as error:
                return error.format_message()
    return ""
