"""``python -m MODULE`` of an agent and of its supervisor, each forked off a process that has imported it.

The start of an agent is two new interpreters. They take half a second of processor time, of which imports take nine tenths,
and the tests start hundreds of agents. Here a command that becomes a supervisor, and a supervisor that starts a program, fork
instead. The process has the number, parent, session, descriptors, signals and standard streams that the new interpreter would
have, and runs the same main program. Its command line and environment in ``/proc`` are those of the process that imported
everything. What only a new interpreter shows (imports in another order, a seed of hashes of its own, the end of all objects)
is shown by ``make test-long``, which starts new ones (``NEW_PROGRAMS``) but for the agents under fault of the crash points.

A program gets no module that the command before it has imported, such as handlers: the command runs in a child of the process
that becomes the supervisor.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from types import FrameType, SimpleNamespace
from typing import IO, NoReturn

from tests.support.processes import end_with_parent

IMPORTS = ("jobmaster_agents.run_agent", "jobmaster_agents.supervisor.main", "jobmaster.master.master")
"""What the programs import when they run."""
NEW_PROGRAMS = "TEST_NEW_PROGRAMS"
"""Environment variable: commands, and agents with their supervisors, are new interpreters, as those of users are."""
_SUPERVISOR = "jobmaster_agents.supervisor.main"
_MESSAGE_BYTES = 1 << 16
_FDS = 16
_PR_SET_NAME = 15


def run_until_exec() -> None:
    """Return in a child, which runs a command. This process takes its end, or becomes the program that the child asks for by
    ``os.execv``; the function does not return here."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    received: list[int] = []
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    command = os.fork()
    if command == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        end_with_parent()
        ours.close()
        os.execv = partial(_ask, theirs)
        return

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        os.kill(command, number)

    for number in signals:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    theirs.close()
    text, fds, _, _ = socket.recv_fds(ours, _MESSAGE_BYTES, _FDS)
    # A command that is reaped gets no signal any more. One that asked has not seen those that came since: they end what
    # comes after it, as they would end a new interpreter.
    for number in signals:
        signal.signal(number, signal.SIG_DFL if text else signal.SIG_IGN)
    _, status = os.waitpid(command, 0)
    ours.close()
    if not text:
        _end_as(os.waitstatus_to_exitcode(status))
    for missed in received:
        os.kill(os.getpid(), missed)
    words, numbers, environment = json.loads(text)
    _place(dict(zip(numbers, fds, strict=True)))
    os.environ.clear()
    os.environ.update(environment)
    _run(words[2:])


def fork_children() -> None:
    """The supervisor that this process becomes forks its agents and its writers of death certificates."""
    from jobmaster_agents.supervisor import child_process, death_certificates

    replaced = SimpleNamespace(Popen=_popen, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    vars(child_process)["subprocess"] = vars(death_certificates)["subprocess"] = replaced


def _ask(there: socket.socket, path: str, words: Sequence[str]) -> NoReturn:
    """In place of ``os.execv`` of a command: ask the process above to become the program."""
    assert [path, words[1]] == [sys.executable, "-m"], words
    with os.scandir("/proc/self/fd") as entries:  # its own descriptor is not inheritable
        numbers = [fd for fd in (int(entry.name) for entry in entries) if fd > 2 and os.get_inheritable(fd)]
    text = json.dumps([list(words), numbers, dict(os.environ)]).encode()
    there.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers))])
    os._exit(0)


def _end_as(code: int) -> NoReturn:
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        time.sleep(60)
    os._exit(code)


def _place(fds: dict[int, int]) -> None:
    """Give descriptors the numbers that they are wanted under."""
    high = {number: os.dup(os.dup(fd)) for number, fd in fds.items()}
    while set(high.values()) & set(high):
        high = {number: os.dup(fd) for number, fd in high.items()}
    for number, fd in high.items():
        os.dup2(fd, number, inheritable=True)
    _close_all_but({0, 1, 2, *fds})


class _Forked:
    """The part of ``subprocess.Popen`` that a supervisor uses."""

    def __init__(self, pid: int, stdin: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None

    def kill(self) -> None:
        """Send SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _popen(
    command: list[str],
    *,
    stdin: int | None = None,
    pass_fds: Sequence[int] = (),
    start_new_session: bool = False,
) -> _Forked:
    """In place of ``subprocess.Popen`` of a supervisor."""
    assert command[:2] == [sys.executable, "-m"], command
    read, write = os.pipe() if stdin == subprocess.PIPE else (os.open(os.devnull, os.O_RDONLY), -1)
    # Until its handlers are its own, a signal would be counted by the child's copy of the supervisor's.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid == 0:
        try:
            gc.freeze()  # what belongs to the supervisor closes nothing here: its numbers may be others' by now
            if start_new_session:
                os.setsid()
            os.dup2(read, 0)
            _close_all_but({0, 1, 2, *pass_fds})
            for fd in pass_fds:
                os.set_inheritable(fd, True)
            _run(command[2:], blocked)
        finally:
            os._exit(os.EX_SOFTWARE)  # never back into the supervisor, which would kill the other agents
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.close(read)
    return _Forked(pid, None if write < 0 else os.fdopen(write, "wb", buffering=0))


def _run(words: list[str], blocked: Iterable[int] | None = None) -> NoReturn:
    """Run a main program as a new interpreter would, and end the process.

    Args:
        blocked: signals that the program blocks; ``None``: those that this process blocks.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if blocked is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    module, *arguments = words
    sys.argv[:] = [module, *arguments]
    ctypes.CDLL(None).prctl(_PR_SET_NAME, module.rpartition(".")[2].encode()[:15])
    if module == _SUPERVISOR:
        fork_children()
    code: int | str | None = 1
    try:
        with warnings.catch_warnings():
            # The module is there already: that is the purpose.
            warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning)
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    end(code)


def end(code: int | str | None) -> NoReturn:
    """End the process as an interpreter does, except that no object is freed: each would be copied first, because the memory
    is that of the process that imported everything. It was half of the time of a command.

    Args:
        code: of ``SystemExit``.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120  # as Python itself
    os._exit(code or 0)


def _close_all_but(kept: Iterable[int]) -> None:
    low = 3
    for number in (*sorted(number for number in kept if number > 2), 1 << 16):
        os.closerange(low, number)
        low = number + 1
