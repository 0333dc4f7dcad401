"""What is run around a handler's function: the middleware of its registry, and the dependencies among its parameters.

Dependencies are resolved by the library ``uncalled-for`` (extra ``depends``), and not here. It is imported only after the
user's own code has done so.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from jobmaster.handlers.context import JobContext
from jobmaster.model.errors import ConfigError

Run = Callable[[], Awaitable[object]]
"""Runs the rest: the next middleware, at last the handler. Returns its result or raises its error."""
Around = Callable[[JobContext[Any], Run], Awaitable[object]]
"""Middleware: called with the job's context and ``run``; what it returns is the job's result."""
Innermost = Callable[[dict[str, Any]], Awaitable[object]]
"""Calls the handler's function with these arguments, where its mode has it run."""

_EXAMPLE = "async def timed(ctx: JobContext, run: Callable[[], Awaitable[object]]) -> object: ... return await run()"
_LIBRARY = "uncalled_for"


def check_around(function: object) -> None:
    """``ConfigError`` when a function cannot be middleware."""
    name = getattr(function, "__qualname__", repr(function))
    if not callable(function) or not inspect.iscoroutinefunction(function):
        raise ConfigError(f"middleware {name} is no 'async def'", hint=_EXAMPLE)
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ConfigError(f"middleware {name} cannot be called with (ctx, run): {error}", hint=_EXAMPLE) from None


def run_around(around: Sequence[Around], context: JobContext[Any], innermost: Run) -> Awaitable[object]:
    """``innermost`` inside the middleware; the first one that was declared is the outermost."""
    run = innermost
    for each in reversed(around):
        run = partial(each, context, run)
    return run()


def dependencies_of(function: Callable[..., Any], name: str) -> frozenset[str] | None:
    """Parameters that are dependencies and no arguments of the job; ``None`` when the function has nothing to be resolved.

    Raises:
        ConfigError: they contradict each other, or need an argument that the handler does not take.
    """
    if _LIBRARY not in sys.modules:
        return None
    from uncalled_for import (
        CycleError,
        get_annotation_dependencies,
        get_call_argument_parameters,
        get_dependency_parameters,
        validate_dependencies,
    )

    try:
        validate_dependencies(function)
        found = frozenset(get_dependency_parameters(function))
        unknown = [parameter.name for parameter in get_call_argument_parameters(function)]
    except (ValueError, TypeError, CycleError) as error:
        raise ConfigError(f"handler {name!r}: {error}") from None
    if unknown:
        raise ConfigError(f"handler {name!r}: a dependency takes {unknown[0]!r}, and the handler has no such parameter")
    return found if found or get_annotation_dependencies(function) else None


async def call_with_dependencies(
    function: Callable[..., Any], arguments: dict[str, Any], innermost: Innermost
) -> object:
    """Resolve the dependencies of ``function``, call ``innermost`` with them, and release them."""
    from uncalled_for import FailedDependency, resolved_dependencies

    async with resolved_dependencies(function, arguments) as found:
        for value in found.values():
            if isinstance(value, FailedDependency):
                value.error.add_note(f"while the dependency {value.parameter!r} was resolved")
                raise value.error
        return await innermost({**arguments, **found})
