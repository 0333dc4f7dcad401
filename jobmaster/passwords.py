"""Passwords that change while a program runs: from a command or a function, asked for at each new connection.

A password that was fetched a moment ago is used again for its lifetime. A server that refuses it makes the next look at the
source: a rotation needs neither a restart nor a lifetime that is exact. Source of the idea: the tokens of managed databases,
``password`` of asyncpg as a function, and the credential providers of the drivers of stores.
"""

from __future__ import annotations

import asyncio
import inspect
import shlex
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from jobmaster.clock import SystemClock
from jobmaster.model.errors import ConfigError, InputError, Unavailable
from jobmaster.settings.masking import mask_secrets, one_line

PasswordFunction: TypeAlias = Callable[[], "str | Awaitable[str]"]
"""Returns the present password; called on the event loop, so one that waits is a coroutine function."""

_T = TypeVar("_T")
_CLOCK = SystemClock()
COMMAND_SECONDS = 10.0
"""How long a command may take. A connection that is opened meanwhile has its own limit."""
_SAID_CHARS_MAX = 200


class PasswordFunctions(NamedTuple):
    """Functions of a program in place of the commands of the configuration."""

    master: PasswordFunction | None = None
    stores: Mapping[str, PasswordFunction] = {}
    """By the name of the store."""


NO_FUNCTIONS = PasswordFunctions()


def checked(functions: object) -> PasswordFunctions:
    """``connect(passwords=...)``.

    Raises:
        InputError: it is none, or one of them cannot be called.
    """
    if not isinstance(functions, PasswordFunctions) or not isinstance(functions.stores, Mapping):
        raise InputError(
            f"passwords= takes jobmaster.PasswordFunctions, not {type(functions).__name__}",
            hint="PasswordFunctions(master=function, stores={'default': function})",
        )
    for name, function in {"master": functions.master, **functions.stores}.items():
        if function is not None and not callable(function):
            raise InputError(
                f"the password of {name} is a {type(function).__name__}, not a function",
                hint="pass the function itself",
            )
    return functions


class RotatingPassword:
    """The present password of one server.

    Args:
        function: where it comes from.
        seconds: how long one that was fetched is used again; 0: it is fetched for each connection.
    """

    def __init__(self, function: PasswordFunction, seconds: float) -> None:
        self._function = function
        self._seconds = seconds
        self._cached: str | None = None
        self._fetched_at = 0.0

    async def use(self, connect: Callable[[str], Awaitable[_T]], refused: type[Exception]) -> _T:
        """Connect with the present password; with a new one when the server refuses one that was fetched before.

        Args:
            connect: opens a connection with a password.
            refused: what it raises when the server does not accept the password.

        Raises:
            Unavailable: the source has no password now. ConfigError: it can have none. InputError: it is no text.
        """
        cached = self._cached
        if cached is None or _CLOCK.boottime() - self._fetched_at >= self._seconds:
            return await connect(await self._fetch())
        try:
            return await connect(cached)
        except refused:
            return await connect(await self._fetch())

    async def _fetch(self) -> str:
        began = _CLOCK.boottime()
        answer: object = self._function()
        password = await answer if inspect.isawaitable(answer) else answer
        if not isinstance(password, str) or not password:
            raise InputError(
                f"a function for a password returned {type(password).__name__}, or an empty text",
                hint="return the password as a str",
            )
        self._cached, self._fetched_at = password, began
        return password


def of_command(command: str) -> PasswordFunction:
    """The first line that a command prints. The command is split as a shell does, and run without one.

    Raises:
        ConfigError: it cannot be split.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"a password_command cannot be understood: {error}", hint="quote it as for a shell") from None
    if not words:
        raise ConfigError(
            "a password_command is empty", hint="give a command that prints the password, or leave it out"
        )

    async def fetch() -> str:
        # In a thread: the supervisor reaps every ended child, and asyncio would miss one of its own.
        return await asyncio.to_thread(_run, words)

    return fetch


def rotating(function: PasswordFunction | None, command: str | None, seconds: float) -> RotatingPassword | None:
    """The password of a server; ``None``: it is in the server's address, or there is none."""
    if function is None and command is not None:
        function = of_command(command)
    return RotatingPassword(function, seconds) if function is not None else None


def _run(words: list[str]) -> str:
    name = words[0]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"the password_command {name} gave no password within {COMMAND_SECONDS:g} s") from None
    except OSError as error:
        raise ConfigError(
            f"the password_command {name} cannot be run: {error.strerror or error}",
            hint="give its whole path; it is run without a shell",
        ) from None
    if done.returncode != 0:
        said = one_line(mask_secrets(done.stderr.decode(errors="replace").strip()))[:_SAID_CHARS_MAX]
        raise Unavailable(f"the password_command {name} ended with code {done.returncode}: {said or 'without a word'}")
    password = done.stdout.decode(errors="replace").partition("\n")[0].rstrip("\r")
    if not password:
        raise Unavailable(f"the password_command {name} printed no password in its first line")
    return password
