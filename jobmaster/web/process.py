"""``jobmaster web`` as a child of another command: it ends when that one ends, however that happens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from threading import Thread

from jobmaster.distribution import install_command

NEEDED = ("jinja2", "starlette", "uvicorn")
LEAVE = "--leave-with-stdin"
END_SECONDS = 5.0


class WebProcess:
    """The pages in a process of their own.

    Args:
        options: of ``jobmaster web``.
        log: called with each line that it prints, the address first; in a thread of its own.
        env: its environment; ``None``: that of this process.
    """

    def __init__(
        self, options: Sequence[str], log: Callable[[str], None], env: Mapping[str, str] | None = None
    ) -> None:
        self._child: subprocess.Popen[str] | None = None
        if any(find_spec(name) is None for name in NEEDED):
            log(f"no pages: {install_command('web')}")
            return
        # This process holds the other end of its standard input. A session of its own does not get the terminal's Ctrl-C.
        self._child = subprocess.Popen(
            [sys.executable, "-m", "jobmaster.cli.main", "web", LEAVE, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            env=env,
        )
        self._reader = Thread(target=self._relay, args=(self._child, log), daemon=True)
        self._reader.start()

    def close(self) -> None:
        """End it, and wait for its end."""
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        self._reader.join()
        if child.stdin is not None:
            child.stdin.close()

    @staticmethod
    def _relay(child: subprocess.Popen[str], log: Callable[[str], None]) -> None:
        assert child.stderr is not None
        with child.stderr as lines:
            for line in lines:
                log(line.rstrip())
