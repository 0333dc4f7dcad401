"""The lifespan of a registry: resources that live as long as the process that runs its handlers.

``Lifespan`` is what is declared. ``OpenLifespans`` holds the lifespans of one process open: one task enters all of them,
waits, and leaves them in reverse order, so that a lifespan may hold task groups and cancel scopes. Context variables that a
lifespan sets are in ``OpenLifespans.context``.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from contextvars import Context, copy_context
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from jobmaster.codec import error_of
from jobmaster.model.errors import ConfigError

if TYPE_CHECKING:
    from jobmaster.handlers.handler import Handler

LifespanFunction = Callable[[], AbstractAsyncContextManager[Any]]

_EXAMPLE = "@contextlib.asynccontextmanager\nasync def lifespan(): ... yield resources".replace("\n", " ")
_CANCEL_SECONDS = 1.0
"""For a lifespan that is cancelled, because its time is over."""


class _NoManager(ConfigError):
    """Our own refusal of what a lifespan function returned; it names the lifespan. Every other error is the lifespan's."""


class Lifespan:
    """A declared lifespan: a function without parameters that returns an async context manager.

    Raises:
        ConfigError: it cannot be one.
    """

    def __init__(self, given: LifespanFunction) -> None:
        function: object = given  # checked here, whatever the annotation promises
        if not isinstance(function, type) and _is_manager(function):  # callable too, as a decorator
            raise ConfigError(
                f"lifespan {function!r} is not a function", hint="give the function itself, without calling it"
            )
        if not callable(function):
            raise ConfigError(f"lifespan {function!r} is not a function", hint=_EXAMPLE)
        self.name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
        inner = inspect.unwrap(function)
        if inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):
            raise ConfigError(f"lifespan {self.name} returns no async context manager", hint=_EXAMPLE)
        if inspect.isgeneratorfunction(inner):
            raise ConfigError(
                f"lifespan {self.name} is no async context manager",
                hint="a synchronous context manager may be entered inside of one, with 'with'",
            )
        if isinstance(function, type) and not _is_manager(function):
            raise ConfigError(f"lifespan {self.name} is no async context manager", hint=_EXAMPLE)
        try:
            inspect.signature(function).bind()
        except TypeError as error:
            raise ConfigError(f"lifespan {self.name} is called without arguments: {error}", hint=_EXAMPLE) from None
        except ValueError:
            pass  # a function without a signature, of an extension module
        self.function = given
        self.file: str | None = getattr(getattr(inner, "__code__", None), "co_filename", None)

    def __repr__(self) -> str:
        return f"<Lifespan {self.name}>"

    def manager(self) -> AbstractAsyncContextManager[Any]:
        """A new context manager; ``ConfigError`` when the function returned something else."""
        made: object = self.function()
        if not _is_manager(made):
            raise _NoManager(
                f"lifespan {self.name} returned {type(made).__name__}, which is no async context manager", hint=_EXAMPLE
            )
        return cast("AbstractAsyncContextManager[Any]", made)

    def line_in(self, frames: Iterable[FrameType | traceback.FrameSummary]) -> str | None:
        """The innermost of these frames (outermost first) that stands in the lifespan's own file, as text."""
        places = [_place(frame) for frame in frames]
        own = [place for place in places if place[0] == self.file]
        return 'File "{}", line {}, in {}'.format(*(own or places)[-1]) if places else None


def needs_lifespans(handlers: Iterable[Handler]) -> bool:
    """True when a process has something to open before it runs these handlers."""
    return any(handler.lifespan is not None or handler.has_dependencies for handler in handlers)


class OpenLifespans:
    """The lifespans of some handlers, open in this process. Call the methods on one loop.

    Args:
        timeout_seconds: how long all of them together may take until each has yielded.
    """

    def __init__(self, handlers: Iterable[Handler], timeout_seconds: float) -> None:
        declared = list(handlers)
        self._lifespans = list(dict.fromkeys(handler.lifespan for handler in declared if handler.lifespan is not None))
        self._has_dependencies = any(handler.has_dependencies for handler in declared)
        self._timeout_seconds = timeout_seconds
        self._entering: Lifespan | None = None
        self._leave = asyncio.Event()
        self._ready: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._context = copy_context()
        self.resources: dict[Lifespan, object] = {}
        """What each lifespan has yielded."""
        self.ended = asyncio.Event()
        """Set when they end without having been closed: a task of theirs has failed."""

    @property
    def needed(self) -> bool:
        """False when there is nothing to be opened."""
        return bool(self._lifespans or self._has_dependencies)

    @property
    def context(self) -> Context:
        """A copy of the context variables as the lifespans have set them."""
        return self._context.copy()

    @property
    def waits_at(self) -> str | None:
        """The lifespan that is being entered, and the line at which it waits; ``None``: all are open."""
        lifespan = self._entering
        if lifespan is None:
            return None
        line = None if self._task is None else lifespan.line_in(_suspended_frames(self._task))
        return f"{lifespan.name}, at {line}" if line else lifespan.name

    @property
    def entering(self) -> Lifespan | None:
        """The lifespan that is being entered."""
        return self._entering

    async def open(self) -> None:
        """Enter all of them, in the order in which the handlers were declared. After an error none is open.

        Raises:
            ConfigError: one of them failed, or did not yield in time; the error names it and its line.
        """
        if not self.needed:
            return
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._task = task = loop.create_task(self._hold(), name="jobmaster-lifespan", context=self._context)
        try:
            await asyncio.wait((self._ready, task), timeout=self._timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not self._ready.done() and not task.done():
                raise ConfigError(
                    f"lifespan {self.waits_at}: it has not yielded within {self._timeout_seconds:g} s",
                    hint="agents.<name>.lifespan_timeout is the limit",
                )
        except BaseException:
            await self._cancel()
            raise
        if task.done():
            self._refuse(task)
        task.add_done_callback(self._over)

    async def close(self, seconds: float) -> str | None:
        """Leave them in reverse order. Returns why that failed.

        Args:
            seconds: time limit; then they are cancelled.
        """
        task = self._task
        if task is None:
            return None
        self._leave.set()
        await asyncio.wait((task,), timeout=max(seconds, 0.0))
        if not task.done():
            where = self.line_in(_suspended_frames(task))
            await self._cancel()
            return f"it was not left within {seconds:.1f} s, at {where}"
        error = None if task.cancelled() else task.exception()
        return None if error is None else _shown(error)

    def abandon(self) -> None:
        """Cancel them without waiting for their end."""
        self._leave.set()
        if self._task is not None:
            self._task.cancel()

    async def _hold(self) -> None:
        async with AsyncExitStack() as stack:
            if self._has_dependencies:
                from uncalled_for import SharedContext

                await stack.enter_async_context(SharedContext())
            for lifespan in self._lifespans:
                self._entering = lifespan
                self.resources[lifespan] = await stack.enter_async_context(lifespan.manager())
            self._entering = None
            assert self._ready is not None
            if not self._ready.done():
                self._ready.set_result(None)
            await self._leave.wait()

    def _refuse(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, _NoManager):
            raise error
        lifespan = self._entering
        name = lifespan.name if lifespan is not None else "of the dependencies"
        frames = traceback.extract_tb(error.__traceback__) if error is not None else []
        what = "was cancelled" if error is None else f"failed: {_shown(error)}"
        raise ConfigError(
            f"lifespan {name} {what}", hint=None if lifespan is None else lifespan.line_in(frames)
        ) from error

    def line_in(self, frames: list[FrameType]) -> str:
        """The innermost of these frames (outermost first) that stands in a file of the lifespans, as text."""
        files = [lifespan.file for lifespan in self._lifespans]
        own = [frame for frame in frames if frame.f_code.co_filename in files] or frames
        return 'File "{}", line {}, in {}'.format(*_place(own[-1])) if own else "an unknown line"

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # taken note of: ``close`` returns it
        if not self._leave.is_set():
            self.ended.set()

    async def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=_CANCEL_SECONDS)


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error_of(error).message}"  # its own ``__str__`` may raise


def _is_manager(value: object) -> bool:
    return hasattr(value, "__aenter__") and hasattr(value, "__aexit__")


def _place(frame: FrameType | traceback.FrameSummary) -> tuple[str, int | None, str]:
    if isinstance(frame, FrameType):
        return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
    return frame.filename, frame.lineno, frame.name


def _suspended_frames(task: asyncio.Task[Any]) -> list[FrameType]:
    """Frames of a suspended task, the outermost first; also through ``asynccontextmanager``."""
    frames: list[FrameType] = []
    step: Any = task.get_coro()
    while step is not None:
        frame = next((found for name in _FRAMES if (found := getattr(step, name, None)) is not None), None)
        if frame is None:
            # The step of an async generator has no link to it: the context manager has one.
            manager = frames[-1].f_locals.get("self") if frames else None
            step = getattr(manager, "gen", None)
            if step is None or getattr(step, "ag_frame", None) in (None, *frames):
                break
            continue
        frames.append(frame)
        step = next((found for name in _STEPS if (found := getattr(step, name, None)) is not None), None)
    return frames


_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_STEPS = ("cr_await", "ag_await", "gi_yieldfrom")
