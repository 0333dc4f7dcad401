"""The agent's side of starting worker processes: forks of a process that has imported the handlers, or new interpreters.

``WorkerLauncher`` decides which. The fork server (``fork_server_main``) starts with the first worker. It is not used on other
systems than Linux, where the settings exclude it, and where the import of the handlers has left threads or descriptors: then
every worker is a new interpreter. If it is killed, its workers go on, and a later worker starts another one, at most one a
minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from jobmaster_agents.execute.process_pool.protocol import (
    Forked,
    ForkServerReady,
    Setup,
    encode_packet,
    from_fork_server,
)
from jobmaster_agents.execute.process_pool.worker_output import OutputLines, OutputReads, OutputTail

_WORKER_PROGRAM = "jobmaster_agents.execute.process_pool.worker_main"
_SERVER_PROGRAM = "jobmaster_agents.execute.process_pool.fork_server_main"
_PACKET_BYTES = 4096
_SERVER_AGAIN_SECONDS = 60.0
_OUTPUT_KEPT_BYTES = 8 * 1024
_OUTPUT_BYTES_PER_SECOND = 4 * 1024 * 1024
_FORK = b"f"


class LaunchedProcess(Protocol):
    """A worker process that was started."""

    @property
    def pid(self) -> int:
        """Its process id; it leads the process group of that number."""

    @property
    def returncode(self) -> int | None:
        """Its exit code, ``None`` while it runs or when the code is not known."""

    async def wait(self) -> int | None:
        """Wait until it has ended. Exit code, -N for signal N; ``None``: not known."""


class WorkerLauncher:
    """Starts the workers of one pool.

    Args:
        on_output: called with each line that the import in the fork server prints, its process id, and no job.
        forks: False: every worker is a new interpreter.
        start_seconds: for the fork server to import the handlers, and to fork.
    """

    def __init__(
        self,
        setup: Setup,
        logger: logging.Logger,
        now: Callable[[], float],
        on_output: Callable[[str, int, None], None],
        *,
        forks: bool,
        start_seconds: float,
    ) -> None:
        self.setup = setup
        """Of the workers that start from now on."""
        self._forks = forks and _has_pidfd()
        self._start_seconds = start_seconds
        self._logger = logger
        self._now = now
        self._on_output = on_output
        self._server: ForkServerProcess | None = None
        self._starting = asyncio.Lock()
        self._not_before = float("-inf")
        self._closing = False

    async def launch(
        self, sock: socket.socket, lifeline_fd: int, reads: OutputReads, output_fd: int
    ) -> LaunchedProcess:
        """Start a worker with copies of these descriptors.

        Raises:
            OSError, ValueError: it could not be started.
        """
        server = await self._running_server()
        if server is not None:
            return await server.fork((sock.fileno(), lifeline_fd, reads.fd, output_fd))
        return await _new_interpreter(
            _WORKER_PROGRAM, self.setup.import_path, (sock.fileno(), lifeline_fd, reads.fd), output_fd
        )

    def refuse(self) -> None:
        """Start no worker any more. An import of the handlers that has not ended is given up."""
        self._closing = True
        if self._server is not None:
            self._server.give_up_start()

    async def close(self) -> None:
        """End the fork server. Call it after ``refuse``, when no worker is left."""
        async with self._starting:
            if self._server is not None:
                await self._server.close()

    async def _running_server(self) -> ForkServerProcess | None:
        """The fork server; ``None``: the worker is to be a new interpreter."""
        async with self._starting:
            if self._closing:
                raise OSError("the pool of worker processes is closed")
            server = self._server
            if not self._forks:
                return None
            if server is not None and not server.gone:
                return server
            if self._now() < self._not_before:
                return None
            self._not_before = self._now() + _SERVER_AGAIN_SECONDS
            if server is not None:
                self._logger.warning("the fork server of the worker processes has ended; another one is started")
                await server.close()
            self._server = server = ForkServerProcess(self._start_seconds, self._on_output)
            ready = await server.start(self.setup)
            if not (ready.unsafe or ready.failed):
                return server
            self._server = None
            await server.close()
            if self._closing:
                raise OSError("the pool of worker processes is closed")
            if ready.unsafe:
                self._forks = False
            self._logger.info("worker processes start as new interpreters, because %s", ready.unsafe or ready.failed)
            return None


class ForkServerProcess:
    """The fork server and the ends of its workers."""

    def __init__(self, start_seconds: float, on_output: Callable[[str, int, None], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._start_seconds = start_seconds
        self._lines = OutputLines(lambda line: on_output(line, self._pid, None))
        self._pid = 0
        self._control: socket.socket | None = None
        """``None`` once it has ended or is not to be used any more."""
        self._lifeline = -1
        self._output: OutputTail | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ready: asyncio.Future[ForkServerReady] = self._loop.create_future()
        self._requests: deque[asyncio.Future[ForkedProcess]] = deque()
        self._workers: dict[int, ForkedProcess] = {}
        self.gone = False
        """True once it has ended or is not to be used any more."""

    async def start(self, setup: Setup) -> ForkServerReady:
        """Start it; the answer says whether it can be used."""
        try:
            self._process = process = await self._spawn(setup.import_path)
            self._pid = process.pid
            assert self._control is not None
            self._control.send(encode_packet(setup))
        except OSError as error:
            return ForkServerReady(failed=f"the fork server could not be started: {error}")
        try:
            async with asyncio.timeout(self._start_seconds):
                return await self._ready
        except TimeoutError:
            return ForkServerReady(failed=f"the import of the handlers took longer than {self._start_seconds:g} s")

    def give_up_start(self) -> None:
        """Have ``start`` return, if it still waits."""
        if not self._ready.done():
            self._ready.set_result(ForkServerReady(failed="it is not needed any more"))

    async def _spawn(self, import_path: Sequence[str]) -> asyncio.subprocess.Process:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        life_read, self._lifeline = os.pipe()
        out_read, out_write = os.pipe()
        self._output = OutputTail(self._loop, out_read, _OUTPUT_KEPT_BYTES, _OUTPUT_BYTES_PER_SECOND, self._lines)
        try:
            ours.setblocking(False)
            self._control = ours
            self._loop.add_reader(ours.fileno(), self._read)
            return await _new_interpreter(_SERVER_PROGRAM, import_path, (theirs.fileno(), life_read), out_write)
        finally:
            theirs.close()
            os.close(life_read)
            os.close(out_write)

    async def fork(self, descriptors: Sequence[int]) -> ForkedProcess:
        """A worker with copies of the descriptors.

        Raises:
            OSError: there is none, and none will come of this request.
        """
        if self._control is None or self.gone:
            raise OSError("the fork server has ended")
        request: asyncio.Future[ForkedProcess] = self._loop.create_future()
        socket.send_fds(self._control, [_FORK], descriptors)
        self._requests.append(request)
        try:
            async with asyncio.timeout(self._start_seconds):
                return await asyncio.shield(request)
        except TimeoutError:
            # A worker that is forked later finds its socket closed, and ends.
            self._lose()
            raise OSError(f"the fork server did not answer within {self._start_seconds:g} s") from None

    async def close(self) -> None:
        """End it and release its resources."""
        self._lose()
        if self._process is not None:
            # It may be in an import that does not end. The group, because an import may have started processes.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
            await self._process.wait()
        if self._output is not None:
            self._output.read_available()
            self._lines.end()
            self._output.close()
            self._output = None
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _read(self) -> None:
        assert self._control is not None
        try:
            packet = self._control.recv(_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._lose()
            return
        message = from_fork_server.decode(packet)
        if isinstance(message, ForkServerReady):
            if not self._ready.done():
                self._ready.set_result(message)
        elif isinstance(message, Forked):
            self._forked(message)
        elif (worker := self._workers.pop(message.pid, None)) is not None:
            worker.exited(message.code)

    def _forked(self, message: Forked) -> None:
        request = self._requests.popleft()
        if message.problem:
            if not request.done():
                request.set_exception(OSError(message.problem))
            return
        self._workers[message.pid] = worker = ForkedProcess(message.pid)
        if not request.done():
            request.set_result(worker)

    def _lose(self) -> None:
        """No worker comes of it any more. Those that it has forked go on."""
        if self.gone:
            return
        self.gone = True
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        if not self._ready.done():
            self._ready.set_result(ForkServerReady(failed="the fork server ended while it imported the handlers"))
        for request in self._requests:
            if not request.done():
                request.set_exception(OSError("the fork server has ended"))
                request.exception()  # its caller may have been cancelled
        self._requests.clear()
        for worker in self._workers.values():
            worker.watch_alone()
        self._workers.clear()


class ForkedProcess:
    """A worker that the fork server has forked, which is therefore no child of the agent."""

    def __init__(self, pid: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.pid = pid
        self.returncode: int | None = None
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = -1  # it has ended already

    async def wait(self) -> int | None:
        """See ``LaunchedProcess``."""
        await self._ended.wait()
        return self.returncode

    def exited(self, code: int | None) -> None:
        """It has ended."""
        self.returncode = code
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._ended.set()

    def watch_alone(self) -> None:
        """The fork server, which would report the end, has ended. Its exit code will not be known."""
        if self._pidfd < 0:
            self.exited(None)
        else:
            self._loop.add_reader(self._pidfd, self.exited, None)


def _has_pidfd() -> bool:
    """Whether the end of a process that is no child can be waited for (Linux since 5.3)."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


async def _new_interpreter(
    program: str, import_path: Sequence[str], descriptors: Sequence[int], output_fd: int
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", program, *map(str, descriptors),
        stdin=subprocess.DEVNULL, stdout=output_fd, stderr=output_fd, close_fds=True,
        pass_fds=tuple(descriptors), start_new_session=True,
        # Only until the child has read the setup: it then uses our sys.path and restores the variable.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path)},
    )  # fmt: skip
