"""Handlers that misbehave, for tests with real worker processes. Files and pipes show what they did."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from jobmaster.clock import new_id
from jobmaster.handlers import Cancel, Fail, Handlers, JobContext, Retry, Snooze
from jobmaster_agents.execute.process_pool.protocol import Ready, encode_frame

handlers = Handlers()
job = handlers.job
FOREVER_SECONDS = 3600.0
_kept: list[object] = []


def write_whole(path: str, text: str) -> None:
    """Write a file in one step, so that a reader never sees half of it."""
    scratch = f"{path}.{os.getpid()}.part"
    Path(scratch).write_text(text)
    os.replace(scratch, path)


# ---------------------------------------------------------------- well behaved


@job(name="iso.double", mode="process")
def double(value: int) -> int:
    return 2 * value


@job(name="iso.nothing", mode="process")
def nothing() -> None:
    return None


@job(name="iso.pid", mode="process")
def pid() -> int:
    return os.getpid()


@job(name="iso.parent", mode="process")
def parent() -> int:
    return os.getppid()


@job(name="iso.draws", mode="process")
def draws() -> tuple[float, str]:
    """A random number, and the random part of an id."""
    return random.random(), new_id()[8:].hex()


@job(name="iso.seen", mode="process")
def seen(ctx: JobContext) -> dict[str, Any]:
    return {
        "job_id": ctx.job_id.hex,
        "token": ctx.token,
        "attempt": ctx.attempt,
        "max_attempts": ctx.max_attempts,
        "rescues": ctx.rescues,
        "lane": ctx.lane,
        "priority": int(ctx.priority),
        "tags": list(ctx.tags),
        "metadata": ctx.metadata,
        "remaining_seconds": ctx.remaining_seconds,
    }


@job(name="iso.async_double")
async def async_double(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


@job(name="iso.async_loop")
async def async_loop() -> int:
    return id(asyncio.get_running_loop())


@job(name="iso.thread_double", mode="thread")
def thread_double(value: int) -> int:
    return 2 * value


@job(name="iso.waits", mode="process")
def waits(started: str, go_on: str) -> int:
    write_whole(started, str(os.getpid()))
    while not os.path.exists(go_on):
        time.sleep(0.005)
    return os.getpid()


@job(name="iso.environment", mode="process")
def environment(name: str) -> str | None:
    return os.environ.get(name)


# ---------------------------------------------------------------- raising


@job(name="iso.raises", mode="process")
def raises(text: str) -> None:
    raise ValueError(text)


class OnlyHere(Exception):
    """A type that the agent never gets to see: exceptions do not travel."""


def isolated_policy(ctx: JobContext, error: Exception) -> float | bool | None:
    match str(error):
        case "policy says no":
            return False
        case "policy says later":
            return ctx.attempt * 100.0
        case "policy breaks":
            raise SystemExit(5)
    return None


@job(name="iso.ruled", mode="process", give_up_on=OnlyHere, retry=isolated_policy)
def ruled(text: str, type_: str = "OnlyHere") -> None:
    raise OnlyHere(text) if type_ == "OnlyHere" else OSError(text)


@job(name="iso.ruled_async", mode="process", retry_on=OSError)
async def ruled_async() -> None:
    raise OnlyHere("not retried")


@job(name="iso.snooze", mode="process")
def snooze() -> None:
    raise Snooze(after=12.5, reason="not now")


@job(name="iso.fail", mode="process")
def fail() -> None:
    raise Fail("never")


@job(name="iso.warned", mode="process", warn_after=0.001, timeout=60)
def warned(ctx: JobContext) -> list[Any]:
    while not ctx.overdue:
        time.sleep(0.001)
    return [ctx.warn_after, ctx.snoozes]


@job(name="iso.retry", mode="process")
def retry() -> None:
    raise Retry(after=12.5, reason="not yet")


@job(name="iso.cancel", mode="process")
def cancel() -> None:
    raise Cancel("pointless")


@job(name="iso.nan", mode="process")
def nan() -> float:
    return float("nan")


@job(name="iso.unencodable", mode="process")
def unencodable() -> Any:
    return object()


@job(name="iso.huge", mode="process")
def huge(size: int) -> str:
    return "x" * size


@job(name="iso.huge_error", mode="process")
def huge_error(size: int) -> None:
    raise RuntimeError("e" * size)


# ---------------------------------------------------------------- dying


@job(name="iso.sys_exit", mode="process")
def sys_exit(code: int) -> None:
    sys.exit(code)


@job(name="iso.os_exit", mode="process")
def os_exit(code: int) -> None:
    print("last words")  # noqa: T201
    os._exit(code)


@job(name="iso.prints", mode="process")
def prints(text: str) -> None:
    sys.stdout.write(text + "\n")


@job(name="iso.dies_with_child", mode="process")
def dies_with_child(started: str) -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"])
    write_whole(started, str(child.pid))
    os._exit(5)


@job(name="iso.segfault", mode="process")
def segfault() -> None:
    ctypes.string_at(0)


@job(name="iso.kill_self", mode="process")
def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@job(name="iso.close_everything", mode="process")
def close_everything() -> None:
    os.closerange(3, 256)


@job(name="iso.garbage", mode="process")
def garbage() -> None:
    _write_everywhere(b"\xff" * 64)
    time.sleep(FOREVER_SECONDS)


@job(name="iso.ready_out_of_turn", mode="process")
def ready_out_of_turn() -> None:
    _write_everywhere(encode_frame(Ready()))
    time.sleep(FOREVER_SECONDS)


def _write_everywhere(data: bytes) -> None:
    """Into every socket that is there."""
    for fd in range(3, 64):
        try:
            with socket.socket(fileno=os.dup(fd)) as sock:
                sock.send(data)
        except OSError:
            pass


# ---------------------------------------------------------------- hanging


@job(name="iso.hangs", mode="process")
def hangs(started: str) -> None:
    write_whole(started, str(os.getpid()))
    time.sleep(FOREVER_SECONDS)


@job(name="iso.hangs_tidily", mode="process")
def hangs_tidily(started: str, ended: str) -> None:
    write_whole(started, str(os.getpid()))
    try:
        while True:
            try:
                time.sleep(FOREVER_SECONDS)
            except Exception:  # noqa: S112  # the habit that must not hold up a stop
                continue
    finally:
        write_whole(ended, "finally")


@job(name="iso.swallows", mode="process")
def swallows(started: str) -> None:
    write_whole(started, str(os.getpid()))
    while True:
        try:
            time.sleep(FOREVER_SECONDS)
        except BaseException:
            pass


@job(name="iso.async_hangs")
async def async_hangs(started: str, ended: str) -> None:
    write_whole(started, str(os.getpid()))
    try:
        await asyncio.sleep(FOREVER_SECONDS)
    except asyncio.CancelledError:
        write_whole(ended, "cancelled")
        raise


@job(name="iso.async_blocks")
async def async_blocks(started: str) -> None:
    write_whole(started, str(os.getpid()))
    time.sleep(FOREVER_SECONDS)


@job(name="iso.finishes_when_stopped", mode="process")
def finishes_when_stopped(started: str) -> str:
    write_whole(started, str(os.getpid()))
    try:
        time.sleep(FOREVER_SECONDS)
    except BaseException:
        return "finished after all"
    return "never"


@job(name="iso.holds_gil", mode="process")
def holds_gil(started: str) -> None:
    """Sleep in C without giving up the interpreter lock, with a child process at one's side."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"])
    write_whole(started, f"{os.getpid()} {child.pid}")
    libc = ctypes.PyDLL(None)
    while True:
        libc.sleep(3600)


@job(name="iso.hangs_with_child", mode="process")
def hangs_with_child(started: str) -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"])
    write_whole(started, f"{os.getpid()} {child.pid}")
    time.sleep(FOREVER_SECONDS)


# ---------------------------------------------------------------- flooding


@job(name="iso.floods", mode="process")
def floods(megabytes: int) -> str:
    line = b"flood " * 170 + b"\n"
    for _ in range(megabytes * 1024 * 1024 // len(line)):
        os.write(1, line)
    return "flooded"


@job(name="iso.floods_for_ever", mode="process")
def floods_for_ever(started: str) -> None:
    write_whole(started, str(os.getpid()))
    line = b"flood " * 10_000
    while True:
        os.write(2, line)


# ---------------------------------------------------------------- leaving things behind


@job(name="iso.messes_up", mode="process")
def messes_up() -> int:
    os.chdir(tempfile.gettempdir())
    os.umask(0)
    os.environ["ISO_MESS"] = "left behind"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # left open on purpose
    return os.getpid()


@job(name="iso.surroundings", mode="process")
def surroundings() -> dict[str, Any]:
    umask = os.umask(0)
    os.umask(umask)
    return {
        "pid": os.getpid(),
        "directory": os.getcwd(),
        "umask": umask,
        "mess": os.environ.get("ISO_MESS"),
        "variables": len(os.environ),
        "ignored": [n.name for n in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(n) is signal.SIG_IGN],
        "usr1": signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL,
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "timer": signal.getitimer(signal.ITIMER_REAL)[0],
        "stdout": sys.stdout.fileno() if sys.stdout else None,
    }


@job(name="iso.leaves_thread", mode="process")
def leaves_thread() -> int:
    threading.Thread(target=time.sleep, args=(FOREVER_SECONDS,)).start()
    return os.getpid()


@job(name="iso.leaves_child", mode="process")
def leaves_child() -> list[int]:
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"])
    _kept.append(child)  # or its destructor would warn
    return [os.getpid(), child.pid]


@job(name="iso.leaves_zombie", mode="process")
def leaves_zombie() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # ended, and not reaped
    return os.getpid()


@job(name="iso.forks_and_returns", mode="process")
def forks_and_returns(child_pid: str) -> str:
    """Both the process and its fork return from the handler."""
    child = os.fork()
    if child == 0:
        return "the child"
    write_whole(child_pid, str(child))
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return "the parent"


@job(name="iso.async_leaves_task")
async def async_leaves_task(ended: str) -> int:
    async def linger() -> None:
        try:
            await asyncio.sleep(FOREVER_SECONDS)
        finally:
            write_whole(ended, "cancelled")

    _kept.append(asyncio.get_running_loop().create_task(linger()))
    await asyncio.sleep(0)
    return os.getpid()


@job(name="iso.async_leaves_printer")
async def async_leaves_printer(text: str) -> None:
    async def linger() -> None:
        try:
            await asyncio.sleep(FOREVER_SECONDS)
        finally:
            await asyncio.sleep(0.02)
            sys.stdout.write(text + "\n")

    _kept.append(asyncio.get_running_loop().create_task(linger()))
    await asyncio.sleep(0)


@job(name="iso.prints_and_ends", mode="process")
def prints_and_ends(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
    os._exit(3)


@job(name="iso.async_uses_thread")
async def async_uses_thread() -> int:
    return await asyncio.to_thread(os.getpid)


@job(name="iso.async_leaves_thread_work")
async def async_leaves_thread_work() -> int:
    asyncio.get_running_loop().run_in_executor(None, time.sleep, FOREVER_SECONDS)
    return os.getpid()


@job(name="iso.grows", mode="process")
def grows(megabytes: int) -> int:
    _kept.append(os.urandom(megabytes * 1024 * 1024))
    return os.getpid()


@job(name="iso.open_files", mode="process")
def open_files(inode: int) -> bool:
    """Does any descriptor of this process refer to that file?"""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.fstat(int(name)).st_ino == inode:
                return True
        except OSError:
            continue
    return False


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@handlers.job(name="iso.speaks_for")
def speaks_for(name: str) -> str:
    before = tenant.get()
    tenant.set(name)
    return before


@handlers.job(name="iso.async_speaks_for", mode="process")
async def async_speaks_for(name: str) -> str:
    before = tenant.get()
    tenant.set(name)
    return before


@job(name="iso.prints_lines", mode="process")
def prints_lines(lines: list[str], end: str) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.write(end)
    sys.stdout.flush()


@job(name="iso.logs_and_fails", mode="process")
def logs_and_fails() -> None:
    logging.warning("about to fail")
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logging.getLogger("app").exception("it failed")
        raise
