"""The arguments of a Django task as those of a job: by name, as the function's signature binds them.

``send(order, copy=True)`` becomes ``{"order": ..., "copy": true}``, so that lists and searches show names, and programs
without Django can submit the job. A ``*rest`` parameter is a list under its name, a ``**rest`` parameter a mapping. The
number of arguments that were given by position is kept beside them: a task's result shows them as they were given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def parameters_of(function: Callable[..., Any], takes_context: bool) -> list[inspect.Parameter]:
    """Parameters that take arguments: all but the task's context."""
    return list(inspect.signature(function).parameters.values())[1 if takes_context else 0 :]


def bind(
    function: Callable[..., Any], takes_context: bool, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Name -> value.

    Raises:
        TypeError: as the call of the function would, with its name.
    """
    signature = inspect.Signature(parameters_of(function, takes_context))
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise TypeError(f"{function.__module__}.{function.__qualname__}{signature}: {error}") from None


def unbind(
    parameters: Sequence[inspect.Parameter], arguments: Mapping[str, Any], positional: int
) -> tuple[list[Any], dict[str, Any]]:
    """The call that was bound.

    Args:
        positional: number of arguments that were given by position. More are if the signature allows no other way.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    rest = next((one.name for one in parameters if one.kind is inspect.Parameter.VAR_POSITIONAL), None)
    all_by_position = rest is not None and bool(arguments.get(rest))
    for one in parameters:
        if one.name not in arguments:
            continue
        value = arguments[one.name]
        if one.kind is inspect.Parameter.VAR_POSITIONAL:
            args.extend(value)
        elif one.kind is inspect.Parameter.VAR_KEYWORD:
            kwargs.update(value)
        elif one.kind is inspect.Parameter.POSITIONAL_ONLY or (
            one.kind in _BY_POSITION and (all_by_position or len(args) < positional)
        ):
            args.append(value)
        else:
            kwargs[one.name] = value
    return args, kwargs
