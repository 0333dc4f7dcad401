"""The process between an owner and one server: when the owner ends in any way, the guardian stops the server properly.

Runs as a program of its own (standard library only, started with ``-I -S``), because nothing inside the owner survives
the owner's SIGKILL. It notices the owner's end by the end of its standard input; a child that the owner *forked* may still
hold the other end of that pipe, so it also looks at its parent's pid once a second. The opposite case, the guardian's own
SIGKILL, is covered by the kernel on Linux (PR_SET_PDEATHSIG). That signal alone would not do: it fires when the *thread*
that started the server ends, and changing the user clears it.

Protocol: the job description is the only argument (JSON); one JSON line goes to standard output, ``{"pid": n}`` or
``{"error": text}``; then end of file (or any byte) on standard input, or SIGTERM, means stop. Exit status: 0 after being
an order to stop, 3 when the server ended by itself.

The guardian must never outlive its server, nor the server its guardian.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_LOOK_MS = 1000
EXIT_STOPPED, EXIT_NOT_STARTED, EXIT_SERVER_ENDED = 0, 2, 3


def main() -> int:
    job: dict[str, Any] = json.loads(sys.argv[1])
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signals: list[int] = []
    # Functions, not SIG_IGN: an ignored signal stays ignored across exec, and the server needs its own handlers.
    for quiet in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(quiet, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    try:
        server = _start(job)
    except (OSError, subprocess.SubprocessError) as error:
        print(json.dumps({"error": str(error)}), flush=True)  # noqa: T201 - the reply of the protocol
        _remove(job["scratch"])
        return EXIT_NOT_STARTED
    print(json.dumps({"pid": server.pid}), flush=True)  # noqa: T201 - the reply of the protocol
    _watch(job["owner_pid"], server, wake_read, signals)
    ended_by_itself = server.poll() is not None
    if not ended_by_itself:
        _stop(server, job["stop"])
    _remove(job["scratch"])
    return EXIT_SERVER_ENDED if ended_by_itself else EXIT_STOPPED


def _start(job: dict[str, Any]) -> subprocess.Popen[bytes]:
    switch: dict[str, Any] = {}
    if job["uid"] is not None:
        switch = {"user": job["uid"], "group": job["gid"], "extra_groups": []}
    with open(job["log"], "ab") as log:
        return subprocess.Popen(
            job["argv"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=job["cwd"],
            env=job["env"],
            pass_fds=job["fds"],
            umask=0o077,
            preexec_fn=_die_with_me(job["stop"][0][0]),  # noqa: PLW1509 - this program has one thread
            **switch,
        )


def _die_with_me(signal_number: int) -> Callable[[], None] | None:
    """For the child, after it has changed its user: have the kernel signal it when this process ends."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    guardian = os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
        if os.getppid() != guardian:
            os.kill(os.getpid(), signal_number)

    return arm


def _watch(owner_pid: int, server: subprocess.Popen[bytes], wake: int, signals: list[int]) -> None:
    """Return when the server has ended, the owner is gone, or an order to stop came."""
    poller = select.poll()
    owner = sys.stdin.fileno()
    poller.register(owner, select.POLLIN)
    poller.register(wake, select.POLLIN)
    while server.poll() is None and not signals and os.getppid() == owner_pid:
        ready = dict(poller.poll(_LOOK_MS))
        if owner in ready:
            return
        if wake in ready:
            os.read(wake, 512)


def _stop(server: subprocess.Popen[bytes], steps: list[tuple[int, float]]) -> None:
    for signal_number, seconds in steps:
        server.send_signal(signal_number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
            return


def _remove(scratch: str | None) -> None:
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
