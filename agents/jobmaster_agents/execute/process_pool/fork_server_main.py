"""The program of the fork server, started by an agent: it imports the handlers once and forks a worker for each request.

A worker is a copy of this process, so it starts without importing anything and shares the memory of what was imported. That
is safe only while the import has left nothing that copies would share or lose: threads, descriptors, children, timers, a
generator of random numbers that does not notice a fork. If it has left any of these, the fork server reports what and ends,
and workers start as new interpreters.

This process runs no job and starts no thread. It ends when its socket is closed. The kernel ends it with the agent, by the
lifeline that ``worker_main`` describes. Workers have lifelines of their own and do not need it.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from typing import NamedTuple

from jobmaster.handlers import load_handlers
from jobmaster_agents.execute.process_pool.protocol import (
    Forked,
    ForkServerReady,
    FromForkServer,
    Setup,
    WorkerExited,
    encode_packet,
    to_worker,
)
from jobmaster_agents.execute.process_pool.worker_main import (
    arm_lifeline,
    be_worker,
    close_others,
    configure_root_logger,
    take_over_import_path,
)

PACKET_BYTES_MAX = 1 << 20
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class WorkerDescriptors(NamedTuple):
    """What a worker is given, in the order of the packet."""

    sock: int
    lifeline: int
    reads: int
    output: int


class ForkServer:
    """Forks workers and reports their ends."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._workers: dict[int, int] = {}
        """Process ids by descriptors (pidfd) that become readable when the process ends."""

    def serve(self) -> WorkerDescriptors | None:
        """Fork until the agent closes the socket. Returns in the fork server with ``None``, and in each worker with its
        descriptors."""
        control_fd = self._control.fileno()
        while True:
            readable, _, _ = select.select([control_fd, *self._workers], [], [])
            for pidfd in readable:
                if pidfd != control_fd:
                    self._reap(pidfd)
            if control_fd in readable:
                data, fds, _, _ = socket.recv_fds(self._control, 1, len(WorkerDescriptors._fields))
                if not data:
                    return None
                if (worker := self._fork(WorkerDescriptors(*fds))) is not None:
                    return worker

    def _fork(self, given: WorkerDescriptors) -> WorkerDescriptors | None:
        try:
            pid = os.fork()
        except OSError as error:
            pid, problem = 0, str(error)
        else:
            problem = ""
            if not pid:
                self._forget_all()
                return given
        for fd in given:
            os.close(fd)
        if pid:
            # Before the report, and before the process is reaped: until then its id belongs to it.
            self._workers[os.pidfd_open(pid)] = pid
        self._send(Forked(pid, problem))
        return None

    def _forget_all(self) -> None:
        """In a worker: nothing of the fork server stays."""
        self._control.close()
        for fd in self._workers:
            os.close(fd)
        self._workers.clear()

    def _reap(self, pidfd: int) -> None:
        pid = self._workers.pop(pidfd)
        os.close(pidfd)
        try:
            os.killpg(pid, signal.SIGKILL)  # its children end with it; until it is reaped no other group has this id
        except (ProcessLookupError, PermissionError):
            pass
        _, status = os.waitpid(pid, 0)
        self._send(WorkerExited(pid, os.waitstatus_to_exitcode(status)))

    def _send(self, message: FromForkServer) -> None:
        try:
            self._control.send(encode_packet(message))
        except OSError:
            pass  # the agent has closed it: the next read ends this process


def why_unsafe(descriptors_before: frozenset[int]) -> str:
    """What the import has left that a fork would share or lose; empty: nothing."""
    if (threads := len(os.listdir("/proc/self/task")) - 1) > 0:
        return f"the import of the handlers has started {threads} thread(s)"
    if opened := open_descriptors() - descriptors_before:
        return f"the import of the handlers has opened {len(opened)} descriptor(s), such as sockets or files"
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return "the import of the handlers has started processes"
    except ChildProcessError:
        pass
    if any(any(signal.getitimer(timer)) for timer in _TIMERS):
        return "the import of the handlers has started a timer"
    if "numpy.random" in sys.modules:
        return "the handlers use numpy.random, whose numbers would be the same in every worker"
    return ""


def open_descriptors() -> frozenset[int]:
    """Numbers of the open descriptors of this process."""
    found = frozenset(map(int, os.listdir("/proc/self/fd")))
    return frozenset(fd for fd in found if _is_open(fd))


def _is_open(fd: int) -> bool:
    """False for the descriptor that the listing itself has used."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def import_handlers(setup: Setup) -> str:
    """Import the handlers as a worker does; why they cannot be imported, empty: they are.

    A worker that is a new interpreter finds the same error, and reports it for its job.
    """
    take_over_import_path(setup)
    if setup.log_level is not None:
        configure_root_logger(setup.log_level)
    try:
        load_handlers(setup.handler_paths)
    except BaseException as error:  # an import may raise any exception, SystemExit too
        return f"the import of the handlers failed: {type(error).__name__}"
    return ""


def main() -> None:
    """Entry of the process."""
    control_fd, lifeline_fd = map(int, sys.argv[1:3])
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    close_others(control_fd, lifeline_fd)
    for fd in (control_fd, lifeline_fd):
        os.set_inheritable(fd, False)
    arm_lifeline(lifeline_fd)
    control = socket.socket(fileno=control_fd)
    setup = to_worker.decode(control.recv(PACKET_BYTES_MAX))
    assert isinstance(setup, Setup), "the first packet is the setup"
    before = open_descriptors()
    failed = import_handlers(setup)
    unsafe = "" if failed else why_unsafe(before)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # otherwise each worker would print it again
    control.send(encode_packet(ForkServerReady(unsafe, failed)))
    worker = None
    if not (unsafe or failed):
        gc.collect()
        gc.freeze()  # what was imported is not looked at again, so that its memory stays shared
        worker = ForkServer(control).serve()
    if worker is None:
        # Without `atexit` of the handlers' modules, because no job has run here. The import may have started processes.
        os.killpg(0, signal.SIGKILL)
        os._exit(0)
    be_forked_worker(worker, lifeline_fd)


def be_forked_worker(given: WorkerDescriptors, server_lifeline_fd: int) -> None:
    """In a new worker: be as one that was started as a new interpreter."""
    os.setsid()
    os.close(server_lifeline_fd)
    for stream_fd in (1, 2):
        os.dup2(given.output, stream_fd)
    close_others(given.sock, given.lifeline, given.reads)
    be_worker(given.sock, given.lifeline, given.reads)


if __name__ == "__main__":
    main()
