"""One child process of a supervisor: started in its own process group, controlled through a pipe, killed with its group."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

from jobmaster_agents.launch.launch_order import ControlMessage, LaunchOrder, write_order
from jobmaster_agents.launch.shared_deadline import AgentPhase, Deadline

STACKS_SIGNAL = signal.SIGUSR2
"""Has the child write the stacks of its threads (``agent_main``)."""


def kill_unreaped(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to a process that the supervisor reaps. ``Popen.kill`` would first ask whether it has ended, and so take
    its exit code away from the supervisor."""
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class ChildProcess:
    """A running agent process."""

    def __init__(self, command: Sequence[str], order: LaunchOrder, now: float) -> None:
        self.order = order
        self.started_at = now
        self.overdue = False
        """True after its stacks were requested."""
        self.killed = False
        self.deadline, deadline_fd = Deadline.create()
        read_end, self._control = os.pipe()
        try:
            self.process = subprocess.Popen(
                [*command, str(read_end), str(deadline_fd)],
                stdin=subprocess.DEVNULL,
                pass_fds=(read_end, deadline_fd),
                # A group of its own: Ctrl-C in a terminal reaches the supervisor alone, and a kill reaches the workers too.
                start_new_session=True,
            )
        except OSError:
            os.close(self._control)
            self.deadline.close()
            raise
        finally:
            os.close(read_end)
            os.close(deadline_fd)
        try:
            write_order(self._control, order)
        except BrokenPipeError:
            pass  # the child died at once: its exit is reaped like any other
        os.set_blocking(self._control, False)

    @property
    def pid(self) -> int:
        """Process id, and id of its process group."""
        return self.process.pid

    def send_message(self, message: ControlMessage, body: bytes = b"") -> None:
        """Send a message without waiting; it is dropped when the child does not read."""
        try:
            os.write(self._control, message.encode() + (b" " + body if body else b"") + b"\n")
        except (BlockingIOError, BrokenPipeError):
            pass

    def send_signal(self, signum: int) -> None:
        """Send a signal to the child alone."""
        try:
            os.kill(self.pid, signum)
        except ProcessLookupError:
            pass

    def kill(self) -> None:
        """Send SIGKILL to the child and everything it started; it also ends a stopped process."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self, returncode: int) -> AgentPhase:
        """After the child was reaped: kill the rest of its group, close descriptors. Returns the phase it had reached."""
        self.process.returncode = returncode
        self.kill()
        os.close(self._control)
        phase = self.deadline.phase
        self.deadline.close()
        return phase
