"""``jobmaster top``: the cluster live in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from jobmaster.cli.commands.job_inputs import with_cluster
from jobmaster.cli.commands.terminal.figures import FiguresReader
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.clock import SystemClock
from jobmaster.model.errors import InputError, JobMasterError

if TYPE_CHECKING:
    from jobmaster.cli.commands.terminal.figures import Figures
    from jobmaster.cli.commands.terminal.screen import View
    from jobmaster.client.cluster import Cluster

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The other screen of the terminal, without a cursor; and back."""
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_QUIT = "q"


@click.command("top")
@click.option("--every", type=click.FloatRange(0.2), default=1.0, show_default=True, help="Seconds between two looks.")
@pass_invocation
def top(invocation: Invocation, every: float) -> None:
    """Show the cluster live in the terminal.

    Agents, lanes and priorities, buckets by depth, handlers. Keys: q ends, Tab chooses the next table, s sorts it by its
    next column, r reverses the order, Space pauses. Rates are averages of about 10 s, as agents publish them; of each agent
    the ten busiest handlers are known.

    \b
    Example:
      jobmaster top --every 2
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("jobmaster top needs a terminal", hint="jobmaster stat prints lines")

    async def work(cluster: Cluster) -> None:
        async with keyboard() as keys:
            await Top(cluster, every, keys).run()

    run_async(with_cluster(invocation.settings, work))


class Top:
    """The loop of the screen: draws after each look, each key, and each change of the terminal's size.

    Args:
        keys: what is typed; an empty text means that the size has changed.
    """

    def __init__(self, cluster: Cluster, every_seconds: float, keys: asyncio.Queue[str]) -> None:
        from jobmaster.cli.commands.terminal.screen import View

        self._cluster = cluster
        self._every_seconds = every_seconds
        self._keys = keys
        self._view: View = View()
        self._seen: Figures | None = None
        self._trouble: str | None = None

    async def run(self) -> None:
        """Until a key ends it."""
        looks = asyncio.create_task(self._look())
        looks.add_done_callback(
            lambda _: self._keys.put_nowait(_QUIT)
        )  # it ends by an error alone, which is raised below
        try:
            while self._view.press(await self._keys.get()):
                self._draw()
        finally:
            looks.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looks

    async def _look(self) -> None:
        """Read the cluster again and again. One that does not answer is no end: its last figures stay, with the reason."""
        clock = SystemClock()
        reader = FiguresReader(self._cluster, clock)
        while True:
            began = clock.boottime()
            if not self._view.paused:
                try:
                    self._seen = await reader.read()
                    self._trouble = None
                except JobMasterError as error:
                    self._trouble = str(error)
                self._draw()
            await reader.rest(self._every_seconds, began)

    def _draw(self) -> None:
        from jobmaster.cli.commands.terminal.screen import cut, lines_of

        width, height = shutil.get_terminal_size()
        if self._seen is not None:
            lines = lines_of(self._seen, self._view, width, height, self._trouble)
        else:
            lines = [cut(self._trouble or "reading the cluster", width)]
        sys.stdout.write(_HOME + "\r\n".join(line + _REST_OF_LINE for line in lines) + _REST_OF_SCREEN)
        sys.stdout.flush()


@contextlib.asynccontextmanager
async def keyboard() -> AsyncIterator[asyncio.Queue[str]]:
    """Keys as they are typed, on the other screen of the terminal; at the end the terminal is as it was.

    Raises:
        InputError: this system has no terminals of this kind.
    """
    try:
        import termios
        import tty
    except ImportError:
        raise InputError(
            "jobmaster top needs a terminal of a Unix system", hint="jobmaster stat prints lines"
        ) from None
    keys: asyncio.Queue[str] = asyncio.Queue()
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        typed = os.read(stdin, 64).decode(errors="ignore")
        if typed.startswith("\x1b"):  # an arrow or another key of several characters
            return
        for key in typed or _QUIT:  # the end of standard input
            keys.put_nowait(key)

    before = termios.tcgetattr(stdin)
    tty.setcbreak(stdin)
    sys.stdout.write(ENTER)
    loop.add_reader(stdin, read)
    loop.add_signal_handler(signal.SIGWINCH, keys.put_nowait, "")
    loop.add_signal_handler(signal.SIGTERM, keys.put_nowait, _QUIT)
    try:
        yield keys
    finally:
        for number in (signal.SIGWINCH, signal.SIGTERM):
            loop.remove_signal_handler(number)
        loop.remove_reader(stdin)
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
