"""The demo's agents: real processes that can be terminated, stopped, and killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from jobmaster.embedded import EmbeddedError

_TAIL_CHARS = 3000
_POLL_SECONDS = 0.05


class DemoAgent:
    """``jobmaster agent run`` with one process. The supervisor and its agent run in sessions of their own."""

    def __init__(self, name: str, config: Path, directory: Path) -> None:
        self.name = name
        self.log = directory / f"agent-{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "jobmaster.cli.main", "agent", "run", "--leave-with-stdin"),
                    *(f"--config={config}", f"--name={name}"),
                ],
                # This process holds the other end, so the agent exits when this process ends in any way.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
            )
        self.child_pid = 0
        """Process id of the agent below the supervisor; 0 until it is known."""
        self.agent_id = b""

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def terminate(self) -> None:
        """Request a graceful exit."""
        self.process.send_signal(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop supervisor and agent with SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue supervisor and agent."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to both at once, so that no process is left to write a certificate."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    async def wait(self, seconds: float) -> int:
        """Its exit code; ``EmbeddedError`` when it does not end in time."""
        for _ in range(round(seconds / _POLL_SECONDS)):
            if (code := self.process.poll()) is not None:
                return code
            await asyncio.sleep(_POLL_SECONDS)
        raise EmbeddedError(f"agent {self.name} did not end within {seconds:g} s; its log ends with:\n{self.tail()}")

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-_TAIL_CHARS:]

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
        if self.child_pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child_pid, number)


def environment() -> Mapping[str, str]:
    """This process's environment without JobMaster settings: the demo's cluster has its own file."""
    kept = ("JOBMASTER_POSTGRES_BIN", "JOBMASTER_VALKEY_SERVER")
    return {name: value for name, value in os.environ.items() if not name.startswith("JOBMASTER_") or name in kept}
