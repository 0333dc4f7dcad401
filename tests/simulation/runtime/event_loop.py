"""A deterministic event loop without selector, sockets and threads: the next process is drawn from the seed, time jumps.

Every handle belongs to the process in whose context it was made, so that a process can be killed (none of its handles
runs any more, and no ``finally`` of its code either) or stopped (its handles wait until it is continued) at any point.
Within one process callbacks run in the order in which they were asked for, as asyncio promises and the slots of an agent
rely on; which process is next is drawn for every single callback.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from math import ceil
from random import Random
from types import TracebackType
from typing import Any, TypeVar

_T = TypeVar("_T")


class Process:
    """A simulated process: an agent, a producer or a supervisor."""

    __slots__ = ("agent_id", "alive", "code", "history", "name", "parts", "ready", "resumes_at")

    def __init__(self, name: str, history: Any = None) -> None:
        self.name = name
        self.history = history
        """What it is part of, for handlers."""
        self.agent_id = b""
        self.alive = True
        self.code: int | None = None
        """How it ended."""
        self.resumes_at = 0.0
        """Stopped until then."""
        self.ready: deque[SimHandle] = deque()
        self.parts: Any = None
        """The agent's runtime, for the audit."""


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


_NOBODY = Process("-")


class SimHandle(list[Any]):
    """One callback: a list of the callback, its arguments, its context and its process.

    A list, because no code in Python runs to make one: there are thousands in a history.
    """

    __slots__ = ()

    def cancel(self) -> None:
        self[0] = None

    def cancelled(self) -> bool:
        return self[0] is None


class Deadlock(Exception):
    """Nothing is ready and no timer runs: what is awaited can never come."""


class SimLoop(asyncio.AbstractEventLoop):
    """See the module.

    Args:
        chance: draws whose turn it is.
        on_error: receives exceptions that no task awaits.
    """

    def __init__(self, chance: Random, on_error: Callable[[dict[str, Any]], None]) -> None:
        self.now = 1000.0
        self._draw = chance.random
        self._on_error = on_error
        self._runnable: list[Process] = []
        """Those that have something ready and do not stand still."""
        _NOBODY.ready.clear()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._numbers = 0
        self._tasks: list[asyncio.Task[Any]] = []
        """All of them: a task of a killed process must not be collected, or its ``finally`` would run."""
        self._over = False
        self.turns = 0

    # ------------------------------------------------------------ what asyncio asks of a loop

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._over

    def is_closed(self) -> bool:
        return self._over

    def call_soon(  # type: ignore[override]  # the annotations of the base want a newer mypy to be repeated
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> SimHandle:
        if context is None:
            context = copy_context()
        handle = SimHandle((callback, args, context, context.get(PROCESS, _NOBODY)))
        self._add(handle)
        return handle

    def _add(self, handle: SimHandle) -> None:
        process: Process = handle[3]
        ready = process.ready
        if not ready and process.alive and process.resumes_at <= self.now:
            self._runnable.append(process)
        ready.append(handle)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> SimHandle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> SimHandle:
        return self._at(self.now + delay, callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> SimHandle:
        return self._at(when, callback, args, context)

    def _at(self, when: float, callback: Callable[..., Any], args: Any, context: Context | None) -> SimHandle:
        if context is None:
            context = copy_context()
        process = context.get(PROCESS, _NOBODY)
        if process is not _NOBODY:
            # The timers of a real loop fire at its next look, which comes at whole milliseconds.
            when = ceil(when * 1000.0) / 1000.0
        self._numbers += 1
        handle = SimHandle((callback, args, context, process))
        heappush(self._timers, (when, self._numbers, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "task", context=context)  # type: ignore[arg-type]
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        process = PROCESS.get()
        if not self._over and (process is None or process.alive):
            self._on_error(context)

    # ------------------------------------------------------------ processes

    def spawn(self, process: Process, coro: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """The first task of a process; all that comes of it belongs to the process."""
        context = copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(coro, name=process.name, context=context)

    def kill(self, process: Process) -> None:
        """Nothing of it runs any more, from the end of the present callback on."""
        process.alive = False
        self._leave(process)

    def halt(self, process: Process, seconds: float) -> None:
        """It stands still for a while and does not know it."""
        process.resumes_at = max(process.resumes_at, self.now + seconds)
        self._leave(process)
        self.call_at(process.resumes_at, self._resume, process, context=Context())

    def _leave(self, process: Process) -> None:
        if process in self._runnable:
            self._runnable.remove(process)

    def _resume(self, process: Process) -> None:
        if process.resumes_at <= self.now and process.alive and process.ready and process not in self._runnable:
            self._runnable.append(process)

    # ------------------------------------------------------------ running

    def run(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Result of ``main``, run outside every simulated process."""
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(main, context=Context())
            self._turn_until(task)
            result: _T = task.result()
            return result
        finally:
            asyncio._set_running_loop(None)
            self._dispose()

    def _turn_until(self, task: asyncio.Task[Any]) -> None:
        runnable, draw = self._runnable, self._draw
        while not task.done():
            if runnable:
                count = len(runnable)
                process = runnable[int(draw() * count)] if count > 1 else runnable[0]
                ready = process.ready
                handle = ready.popleft()
                if not ready:
                    runnable.remove(process)
            elif (alone := self._jump()) is not None:
                handle = alone
            else:
                continue
            callback, args, context, _ = handle
            if callback is None:
                continue
            self.turns += 1
            try:
                context.run(callback, *args)
            except Exception as error:  # as asyncio does: passed to the exception handler
                context.run(self.call_exception_handler, {"message": "a callback failed", "exception": error})

    def _jump(self) -> SimHandle | None:
        """To the time of the next timer. Returns its handle if nothing else can run then: it waits in no queue."""
        timers = self._timers
        while timers and timers[0][2][0] is None:
            heappop(timers)
        if not timers:
            raise Deadlock
        when, _, handle = heappop(timers)
        now = self.now = max(self.now, when)
        process = handle[3]
        if not (timers and timers[0][0] <= now) and process.alive and process.resumes_at <= now and not process.ready:
            return handle
        self._add(handle)
        while timers and timers[0][0] <= now:
            handle = heappop(timers)[2]
            if handle[0] is not None:
                self._add(handle)
        return None

    def _dispose(self) -> None:
        """Let go of everything without a sound: what is pending was killed, or the history is over."""
        self._over = True
        self._runnable.clear()
        self._timers.clear()
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        with SilencedErrors():
            for task in self._tasks:
                if not task.done():
                    _close(task.get_coro())
            self._tasks.clear()


def _close(coro: Any) -> None:
    """Unwind a coroutine that will never run again; what its ``finally`` wants of a loop is refused. A task group
    answers with a group that holds the ``GeneratorExit``."""
    try:
        coro.close()
    except (RuntimeError, ValueError, AttributeError, KeyError, BaseExceptionGroup):
        return


class SilencedErrors:
    """Coroutines of killed processes are closed while this is open; their errors and warnings are dropped."""

    def __enter__(self) -> None:
        self._hook = sys.unraisablehook
        sys.unraisablehook = lambda _: None
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._warnings.__exit__(kind, error, trace)
        sys.unraisablehook = self._hook
