"""Actions that run once per cluster and version: at the start of agents, or on request."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from jobmaster.handlers.names import check_name
from jobmaster.model.errors import InputError

NAME_CHARS_MAX = 90
VERSION_CHARS_MAX = 90


class OnceAction(NamedTuple):
    """A declared action."""

    name: str
    version: str
    function: Callable[[], Any]
    """Without parameters; a coroutine function, or a plain one, which runs in a thread."""


def once_action(name: object, version: object, function: object) -> OnceAction:
    """A checked action.

    Raises:
        InputError: name or version cannot be one, or the function takes arguments.
    """
    checked = check_name(name, f"the name of action {name!r}", NAME_CHARS_MAX)
    what = f"the version of action {checked!r}"
    if not isinstance(version, str):
        raise InputError(f"{what} must be text, not {type(version).__name__}", hint='write version="3"')
    check_name(version, what, VERSION_CHARS_MAX)
    if not callable(function):
        raise InputError(
            f"action {checked!r}: {function!r} is not a function", hint="give the function, without calling it"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InputError(f"action {checked!r} is a generator", hint="give a function that returns when it is done")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(f"action {checked!r} is called without arguments: {error}") from None
    except ValueError:
        pass  # a function without a signature, of an extension module
    return OnceAction(checked, version, function)
