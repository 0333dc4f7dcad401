"""The user who watches the demo in a browser: Enter lets it go on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial

_LINE_BYTES = 1024


async def until_enter(descriptor: int) -> None:
    """Wait for a line, or for the end of the input. A file that cannot be waited for is taken as ended.

    In the event loop, not in a thread: the end of the program would wait for a thread that reads.
    """
    loop = asyncio.get_running_loop()
    pressed = asyncio.Event()
    try:
        loop.add_reader(descriptor, pressed.set)
    except OSError:
        return
    try:
        await pressed.wait()
    finally:
        loop.remove_reader(descriptor)
    os.read(descriptor, _LINE_BYTES)


class Viewer:
    """Waits for Enter before each step that is worth seeing.

    Args:
        descriptor: where Enter comes from.
        say: called with each sentence.
    """

    def __init__(self, descriptor: int, say: Callable[[str], None]) -> None:
        self._say = say
        self._entered = partial(until_enter, descriptor)

    async def ready_for(self, step: str) -> None:
        """Return when the viewer has pressed Enter.

        Args:
            step: what comes then.
        """
        self._say(f"press Enter: {step}")
        await self._entered()
