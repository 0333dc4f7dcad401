"""A call that has not been made yet: a handler and its arguments, typed as the function itself.

The unit that is submitted, scheduled and tested. Source of the idea: ``functools.partial``, with the types of
``typing.ParamSpec`` as typed task clients use them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, final, overload

import msgspec

from jobmaster.handlers.context import JobContext
from jobmaster.handlers.signature import takes_context
from jobmaster.model.errors import InputError, InvalidArguments

P = ParamSpec("P")
R = TypeVar("R")

FUNCTIONS_MAX = 4096
"""Functions whose parameter names are remembered."""


@final
class Call(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A handler and its arguments by name; made by ``call``. ``R`` is the type of the job's result.

    The arguments are checked against the handler's declaration when the call is submitted, scheduled or tested.
    """

    handler: Callable[..., Any] | str
    """The declared function, or the name of a handler that is declared elsewhere."""
    arguments: dict[str, Any]
    """Argument name -> value; without the job's context."""

    def __repr__(self) -> str:
        name = self.handler if isinstance(self.handler, str) else getattr(self.handler, "__qualname__", self.handler)
        return f"<Call {name}({', '.join(f'{key}={value!r}' for key, value in self.arguments.items())})>"


@overload
def call(
    handler: Callable[Concatenate[JobContext[Any], P], Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
) -> Call[R]: ...


@overload
def call(handler: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...


@overload
def call(handler: Callable[Concatenate[JobContext[Any], P], R], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...


@overload
def call(handler: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...


@overload
def call(handler: str, /, **kwargs: Any) -> Call[Any]: ...


def call(handler: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> Call[Any]:
    """The call of a handler with these arguments, to be submitted: ``cluster.submit(call(resize, "a.png", width=400))``.

    Type checkers compare the arguments with the function's signature. A handler that takes a ``JobContext`` first is called
    without it: the agent that runs the job gives it.

    Args:
        handler: the declared function; or a name, and then all arguments are given by name.
        args: arguments by position.
        kwargs: arguments by name.

    Raises:
        InvalidArguments: more arguments by position than the function has, or one that is given twice.
    """
    if args:  # a submit takes four microseconds in all: every call made here is a hundredth of it
        names = _NAMES[handler]
        if len(args) > len(names):
            raise _misfit(handler, args, kwargs)
        if not kwargs and len(args) == 1:
            return Call(handler, {names[0]: args[0]})
        named = dict(zip(names, args, strict=False))
        if not kwargs.keys().isdisjoint(named):
            raise _misfit(handler, args, kwargs)
        named.update(kwargs)
        kwargs = named
    return Call(handler, kwargs)


def parts(call: Call[Any], args: object) -> tuple[Callable[..., Any] | str, dict[str, Any]]:
    """Handler and arguments of a call; ``InputError`` when arguments were given beside it."""
    if args is not None:
        raise InputError(
            "a call has its arguments, and more are given beside it",
            hint="submit(call(resize, 'a.png')), or submit('images.resize', {'path': 'a.png'})",
        )
    return call.handler, call.arguments


class _PositionalNames(dict[Callable[..., Any] | str, tuple[str, ...]]):
    """Function -> names of its parameters that take an argument by position, without the context. Learned at the first call;
    none for a handler that is given by its name."""

    def __missing__(self, handler: Callable[..., Any] | str) -> tuple[str, ...]:
        if not callable(handler):
            return ()
        parameters = list(inspect.signature(handler).parameters.values())
        if takes_context(handler):
            del parameters[0]
        if len(self) >= FUNCTIONS_MAX:
            self.clear()
        names = tuple(one.name for one in parameters if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return self.setdefault(handler, names)


_NAMES = _PositionalNames()


def _misfit(handler: Callable[..., Any] | str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> InvalidArguments:
    if not callable(handler):
        return InvalidArguments(
            f"the arguments of handler {handler!r} have no names",
            hint=f"a handler given by its name takes named arguments: call({handler!r}, path='a.png')",
        )
    name, known = getattr(handler, "__qualname__", repr(handler)), _NAMES[handler]
    twice = [one for one in known[: len(args)] if one in kwargs]
    if twice:
        return InvalidArguments(f"call({name}, ...): argument {twice[0]!r} is given twice")
    return InvalidArguments(
        f"call({name}, ...): {len(args)} arguments by position, and the function takes {len(known)}",
        hint=f"it takes ({', '.join(known)})",
    )
