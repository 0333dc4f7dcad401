"""Commands of ``jobmaster`` and of scripts, each a process of its own, forked off one process that has imported them.

A command takes a quarter of a second of processor time, nearly all of it for imports, and the tests run hundreds of them. The
first command of a program starts the process below. It imports what commands import, waits for requests, and forks a process
for each. The command has the arguments, environment, working directory and standard streams that were asked for, and ends as
the program ``jobmaster`` ends. The process below ends with the process that started it.

Commands that stay (agents, ``jobmaster dev``), and those of the pages of the documentation, are started without it.
"""

from __future__ import annotations

import array
import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

_REPOSITORY = Path(__file__).parents[2]
_REQUEST_BYTES = 1 << 20
_SENT_FDS = 4


class Program(NamedTuple):
    """What commands are commands of."""

    script: str = ""
    """Path of a Python script; empty: ``jobmaster``."""
    imports: tuple[str, ...] = ()
    """Modules that are imported once, beside those of ``jobmaster``."""


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
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as read, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        read.write((given or "").encode())
        read.seek(0)
        request = json.dumps([program.script, list(arguments), dict(env), str(cwd)]).encode()
        with theirs:
            fds = array.array("i", [theirs.fileno(), read.fileno(), out.fileno(), err.fileno()])
            _server(program).sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        code = _exit_code(ours, arguments, time.monotonic() + seconds)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(list(arguments), code, *texts)


def _exit_code(answers: socket.socket, arguments: Sequence[str], limit: float) -> int:
    """Exit code of the command, negative for a signal; its process id is the first line of the answers."""
    lines: list[bytes] = []
    text = b""
    while len(lines := text.split(b"\n")) < 3:
        answers.settimeout(max(limit - time.monotonic(), 0.001))
        try:
            more = answers.recv(64)
        except TimeoutError:
            if len(lines) == 2:
                os.kill(int(lines[0]), signal.SIGKILL)
                answers.settimeout(None)
                answers.recv(64)  # it has ended
            raise subprocess.TimeoutExpired(list(arguments), 0.0) from None
        assert more, f"the process of the commands has ended, or could not start {arguments}"
        text += more
    return int(lines[1])


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

    for name, _ in jobmaster.cli.main.COMMANDS.values():
        import_module(name.partition(":")[0])
    for name in ("jobmaster.wiring", "jobmaster.audit", "jobmaster.client.cluster", *imports):
        import_module(name)
    added = {str(_REPOSITORY), str(_REPOSITORY / "agents"), ""}
    installed = [path for path in sys.path if path not in added]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, _SENT_FDS)
        if not request:
            return None
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            answers = socket.socket(fileno=fds[0])
            if (pid := os.fork()) == 0:
                answers.close()
                script, arguments, env, cwd = json.loads(request)
                _become([script, *arguments], env, cwd, fds[1:], installed)
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


if __name__ == "__main__":
    asked = _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    if asked:
        runpy.run_path(asked, run_name="__main__")
    elif asked is not None:
        from jobmaster.cli.main import main

        main()
