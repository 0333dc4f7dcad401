"""A script for every call of a port, and waiting for what it leads to.

A script says of a method's next calls: ``DOWN`` (nothing happens), ``LOST`` (it happens, the answer does not come), a
``Gate`` (the call waits until the test opens it), an exception, or an answer. Without a script a call does what the real
one does. Every call is recorded in ``calls`` in the order in which it began.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from jobmaster.model.errors import OutcomeUnknown, Unavailable


class Fault(Enum):
    DOWN = 1
    LOST = 2


DOWN, LOST = Fault.DOWN, Fault.LOST


class Gate:
    """Holds a call until the test opens it; afterwards the call does what ``then`` says.

    Args:
        late: the effect happens at once, and only its answer is held.
    """

    def __init__(self, then: Any = None, *, late: bool = False) -> None:
        self.late = late
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self.then = then


class Scripted:
    """Records calls and follows the script."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.script: defaultdict[str, deque[Any]] = defaultdict(deque)

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """Arguments of the calls of one method so far."""
        return [args for called, args in self.calls if called == name]

    async def do(self, name: str, args: tuple[Any, ...], effect: Callable[[], Any]) -> Any:
        self.calls.append((name, args))
        step = self.script[name].popleft() if self.script[name] else None
        if isinstance(step, Gate):
            answer = effect() if step.late else None
            step.reached.set()
            await step.opened.wait()
            if step.late and step.then is LOST:
                raise OutcomeUnknown(f"{name}: the answer was lost")
            if step.late:
                return answer
            step = step.then
        if step is DOWN:
            raise Unavailable(f"{name}: down")
        if isinstance(step, BaseException):
            raise step
        if step is not None and step is not LOST:
            return step
        answer = effect()
        if step is LOST:
            raise OutcomeUnknown(f"{name}: the answer was lost")
        await asyncio.sleep(0)
        return answer


async def turns(count: int = 200) -> None:
    """Let the loop turn: enough for everything that can happen without a further event."""
    for _ in range(count):
        await asyncio.sleep(0)
