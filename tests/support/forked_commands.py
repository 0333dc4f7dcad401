"""Commands of ``jobmaster`` and of scripts, each a process of its own, forked off one process that has imported them.

A command takes a quarter of a second of processor time, nearly all of it for imports, and the tests run hundreds of them. The
first command of a program starts the process below. It imports what commands import, waits for requests, and forks a process
for each. The command has the arguments, environment, working directory and standard streams that were asked for, and ends
with the exit code of the program ``jobmaster``; its objects are not freed at the end. The process below ends with the process
that started it.

``jobmaster dev`` and the commands of the pages of the documentation are started without it. A command that stays, such as an
agent, becomes its supervisor by ``forked_programs``.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tests.support import forked_programs
from tests.support.processes import end_with_parent

_REPOSITORY = Path(__file__).parents[2]
_IMPORTS = (
    "jobmaster.wiring",
    "jobmaster.settings.loader",
    "jobmaster.audit",
    "jobmaster.client.cluster",
    "importlib.readers",
)
"""What commands import when they run."""
_REQUEST_BYTES = 1 << 20
_SENT_FDS = 4


class Program(NamedTuple):
    """What commands are commands of."""

    script: str = ""
    """Path of a Python script; empty: ``jobmaster``."""
    imports: tuple[str, ...] = ()
    """Modules that are imported once, beside those of ``jobmaster``."""
    supervises: bool = False
    """The script is a supervisor; a command of ``jobmaster`` becomes one."""


JOBMASTER = Program()


def run_command(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    given: str | None = None,
    seconds: float,
    program: Program = JOBMASTER,
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end.

    Args:
        env: its whole environment.
        given: its standard input.
        seconds: limit of its time.

    Raises:
        subprocess.TimeoutExpired: it was killed at the limit.
    """
    if program == JOBMASTER and os.environ.get(forked_programs.NEW_PROGRAMS):
        words = [sys.executable, "-m", "jobmaster.cli.main", *arguments]
        return subprocess.run(
            words,
            env=dict(env),
            cwd=cwd,
            input=given or "",
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    with tempfile.TemporaryFile() as read, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        read.write((given or "").encode())
        read.seek(0)
        streams = [read.fileno(), out.fileno(), err.fileno()]
        command = _Command(arguments, env=env, cwd=cwd, streams=streams, program=program)
        try:
            code = command.wait(seconds)
        except subprocess.TimeoutExpired:
            command.kill()
            command.wait()
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(list(arguments), code, *texts)


class _Command:
    """A command that runs or has run, with the part of ``subprocess.Popen`` that the tests use.

    Args:
        streams: its standard input, output and error.
        has_session: it leads a session and a process group of its own.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        streams: Sequence[int],
        program: Program = JOBMASTER,
        has_session: bool = False,
    ) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        self._answers, theirs = socket.socketpair()
        with theirs:
            asked = [program.script, self.args, dict(env), str(cwd), has_session, program.supervises]
            request = json.dumps(asked).encode()
            fds = array.array("i", [theirs.fileno(), *streams])
            _server(program).sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        self._text = b""
        while b"\n" not in self._text:
            assert self._receive(None), f"the process of the commands has ended, or could not start {arguments}"
        self.pid = int(self._text.split(b"\n")[0])
        """Also of the program that it becomes, of its session and of its process group."""

    def poll(self) -> int | None:
        """Exit code; ``None``: it runs."""
        while self.returncode is None and self._receive(0.0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        limit = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._receive(left)
        return code

    def kill(self) -> None:
        """Send SIGKILL to it alone, if it runs."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal to it alone, if it runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _receive(self, seconds: float | None) -> bool:
        """True when an answer came within so many seconds."""
        if not select.select([self._answers], [], [], seconds if seconds is None else max(seconds, 0.0))[0]:
            return False
        more = self._answers.recv(64)
        self._text += more
        _, *ended = self._text.split(b"\n")
        if len(ended) > 1:
            self.returncode = int(ended[0])
            self._answers.close()
        elif not more:
            self.returncode = -signal.SIGKILL  # the process that waited for it was killed, so its code is not known
        return bool(more)


class ForkedProcess(_Command):
    """A command that stays.

    Args:
        arguments: of the program.
        out: file for its standard output and error.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        out: BinaryIO,
        program: Program = JOBMASTER,
    ) -> None:
        read, write = os.pipe()
        self.stdin = os.fdopen(write, "wb", buffering=0)
        with os.fdopen(read, "rb") as given:
            streams = [given.fileno(), out.fileno(), out.fileno()]
            super().__init__(arguments, env=env, cwd=cwd, streams=streams, program=program, has_session=True)


@cache
def _server(program: Program) -> socket.socket:
    """The connection to the process that forks commands of a program; it ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked_commands", str(theirs.fileno()), *program.imports],
            cwd=_REPOSITORY,
            env={**os.environ, "PYTHONPATH": f"{_REPOSITORY}{os.pathsep}{_REPOSITORY / 'agents'}"},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# ---------------------------------------------------------------- the process that forks


def _serve(requests: socket.socket, imports: Sequence[str]) -> str | None:
    """Fork a process for each request. Returns the script in the process of a command, ``None`` at the end."""
    import jobmaster.cli.main
    import jobmaster.settings.schema

    for name, _ in jobmaster.cli.main.COMMANDS.values():
        import_module(name.partition(":")[0])
    for name in (*_IMPORTS, *forked_programs.IMPORTS, *imports):
        import_module(name)
    jobmaster.settings.schema.settings_shape()  # it is kept
    gc.freeze()
    added = {str(_REPOSITORY), str(_REPOSITORY / "agents"), ""}
    installed = [path for path in sys.path if path not in added]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, _SENT_FDS)
        if not request:
            return None
        if os.fork() == 0:
            end_with_parent()
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            answers = socket.socket(fileno=fds[0])
            if (pid := os.fork()) == 0:
                answers.close()
                script, arguments, env, cwd, has_session, supervises = json.loads(request)
                if has_session:
                    os.setsid()
                _become([script, *arguments], env, cwd, fds[1:], installed)
                if supervises:
                    forked_programs.fork_children()
                elif has_session:
                    forked_programs.run_until_exec()
                return str(script)
            answers.sendall(b"%d\n" % pid)
            _, status = os.waitpid(pid, 0)
            answers.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
            os._exit(0)
        for fd in fds:
            os.close(fd)


def _become(words: list[str], env: Mapping[str, str], cwd: str, streams: Sequence[int], installed: list[str]) -> None:
    """The process has from here on what a new one would have."""
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    folder = os.path.dirname(words[0]) if words[0] else cwd
    sys.path[:] = [folder, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *installed]
    sys.argv[not words[0] :] = words[not words[0] :]


def _run_to_end(run: Callable[[], object]) -> None:
    """Run a main program, and end the process. What it raises is left to the interpreter."""
    code: object = None
    try:
        run()
    except SystemExit as ended:
        code = ended.code
    if code is None or isinstance(code, int | str):
        forked_programs.end(code)
    sys.exit(code)  # type: ignore[arg-type]  # any object may be


if __name__ == "__main__":
    asked = _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    if asked:
        script = asked
        _run_to_end(lambda: runpy.run_path(script, run_name="__main__"))
    elif asked is not None:
        from jobmaster.cli.main import main

        _run_to_end(main)
