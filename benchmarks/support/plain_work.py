"""What the jobs of the measurements do, by kind of work, without any job system.

The handlers of ``benchmarks.work`` and the adapters of other systems call these functions. Only the standard library:
this also runs inside the environments of the other systems.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Callable

_CPU_NS = 1_000_000
WAIT_SECONDS = 0.01
RETRY_PERCENT, FAIL_PERCENT = 5, 1
_EMPTY = '{"text":""}'
_KIB = {"1k": 1, "16k": 16, "128k": 128}
ARGUMENTS = {f"arguments_{name}": kib for name, kib in _KIB.items()}
RESULTS = {f"results_{name}": kib for name, kib in _KIB.items()}
"""Kinds whose arguments, or arguments and result, have so many KiB."""
_SHORT = "x" * 89
"""Makes arguments of 100 bytes."""


def noop(text: str = "") -> None:
    """No work."""


def cpu(text: str = "") -> None:
    """One millisecond of processor time of this thread, however many threads want the processor."""
    end = time.thread_time_ns() + _CPU_NS
    while time.thread_time_ns() < end:
        pass


def wait(text: str = "") -> None:
    """Ten milliseconds without the processor."""
    time.sleep(WAIT_SECONDS)


def echo(text: str = "") -> str:
    """A result as large as the argument."""
    return text


PLAIN: dict[str, Callable[[str], str | None]] = {
    "noop": noop,
    "cpu_1ms": cpu,
    "wait_10ms": wait,
    **dict.fromkeys(ARGUMENTS, noop),
    **dict.fromkeys(RESULTS, echo),
}


def text_of(kind: str) -> str:
    """The argument of a kind: as JSON the arguments have the size that its name states. Large ones do not compress."""
    kib = ARGUMENTS.get(kind) or RESULTS.get(kind)
    if kib is None:
        return _SHORT
    length = kib * 1024 - len(_EMPTY)
    return base64.b64encode(random.Random(1).randbytes(length)).decode()[:length]
