"""Messages between an agent and its worker processes, over a socket pair.

A frame is four bytes of length (big-endian) and a MessagePack array with a tag. Standard output carries no messages: handlers
may print to it.

Parent: ``Setup`` once, then any number of ``RunJob``, several at a time: the worker runs one after another. ``StopJob`` and
``TakeBack`` name a job, ``GoOn`` answers a ``JobEnded`` with ``printed``; ``Leave`` comes at the end.
Child: ``Ready`` after ``Setup``. Then per ``RunJob`` either ``Returned``, or ``Started`` *before* the job runs and
``JobEnded`` after it. ``Ready`` when it has cleaned up and no other job is there; ``Started`` of the next job means the same.
What is known at one moment travels in one write: the end of a job with the start of the next one.

A socket keeps what was written by a process that has died. So the agent knows of every job whether it has begun.

The fork server gets ``Setup`` once over a socket of packets, then a byte with four descriptors for each worker. It answers
``ForkServerReady`` once, ``Forked`` for each request in order, and ``WorkerExited`` when a worker has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import msgspec

from jobmaster.model.job import ErrorInfo, FinalRow
from jobmaster.model.job_log import LogLine
from jobmaster.model.run_progress import RunProgress
from jobmaster.model.trace_context import TraceContext
from jobmaster.settings.model import Traces
from jobmaster_agents.execute.attempt_result import AttemptResult

_LENGTH_BYTES = 4


class ProcessJob(msgspec.Struct, kw_only=True, array_like=True, eq=False):
    """One attempt to be run in a worker process. Only ``trace`` is set later, when the attempt begins."""

    job_id: bytes
    handler: str
    args: bytes
    """JSON object."""
    token: int
    attempt: int
    """This attempt, counted from 1."""
    max_attempts: int
    rescues: int
    lane: str
    priority: int
    timeout_seconds: float
    """Counted from its start."""
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    snoozes: int = 0
    success: FinalRow | None = None
    """For transactional handlers: the outcome to write in the transaction, without its result."""
    trace: TraceContext | None = None
    """The span of the attempt, which those of the handler are in."""


class Setup(msgspec.Struct, frozen=True, tag="setup", array_like=True):
    """First frame to a worker."""

    handler_paths: list[str]
    import_path: list[str]
    """``sys.path`` of the parent."""
    python_path: str | None
    """PYTHONPATH of the parent's own environment, to be restored."""
    result_bytes: int
    error_bytes: int
    growth_bytes: int
    """Growth of its resident size since its first job above which the worker asks to be replaced; 0 = never."""
    access: bytes = b""
    """How transactions on the master are opened: MessagePack of ``MasterAccess``, empty = not at all."""
    lifespan_seconds: float = 60.0
    """How long the lifespans of the handlers may take to start."""
    log_level: str | None = None
    """Least severe line of the root logger; ``None``: logging is left to the handlers' modules."""
    traces: Traces | None = None
    """Where spans of handlers go; ``None``: there are none."""
    provides: tuple[str, ...] = ()
    """What the agent provides: no lifespan is opened of handlers that need others."""


class RunJob(msgspec.Struct, frozen=True, tag="run", array_like=True):
    """Run a job."""

    number: int
    """Number of the job in this worker, so that a late ``StopJob`` cannot hit the next one."""
    job: ProcessJob
    start_before: float = inf
    """When the authority to start it ends (CLOCK_BOOTTIME seconds): the lease at the time when it was sent."""


class StopJob(msgspec.Struct, frozen=True, tag="stop", array_like=True):
    """Interrupt the job of that number, or return it if it has not begun."""

    number: int


class TakeBack(msgspec.Struct, frozen=True, tag="back", array_like=True):
    """Return the job of that number if it has not begun; else go on with it."""

    number: int


class GoOn(msgspec.Struct, frozen=True, tag="go", array_like=True):
    """The output of the last job has been read."""


class Leave(msgspec.Struct, frozen=True, tag="leave", array_like=True):
    """End the process normally (``atexit`` runs)."""


class Ready(msgspec.Struct, frozen=True, tag="ready", array_like=True):
    """The worker has cleaned up, and has no job."""

    problem: ErrorInfo | None = None
    """Why it could not start; it has ended."""
    replace: str = ""
    """Why it must not get another job (threads or processes left behind, too large); empty: it may."""


class Started(msgspec.Struct, frozen=True, tag="started", array_like=True):
    """A job begins now."""

    number: int
    at: float
    """CLOCK_BOOTTIME seconds."""


class Returned(msgspec.Struct, frozen=True, tag="returned", array_like=True):
    """A job has not begun and will not begin here: it was taken back, or its authority to start has ended."""

    number: int


class JobEnded(msgspec.Struct, frozen=True, tag="ended", array_like=True):
    """A job has ended."""

    number: int
    result: AttemptResult
    printed: bool = False
    """There was output while it ran: the worker waits for ``GoOn``, so that no output of the next job mixes with it."""


class Progressed(msgspec.Struct, frozen=True, tag="progress", array_like=True):
    """A handler has reported how far it is."""

    number: int
    progress: RunProgress


class Logged(msgspec.Struct, frozen=True, tag="logged", array_like=True):
    """A handler has written lines for the log of its job."""

    number: int
    lines: list[LogLine]
    lowest: int
    """Number of the first line of the run that is kept."""


class ForkServerReady(msgspec.Struct, frozen=True, tag="forks", array_like=True):
    """The fork server has imported the handlers."""

    unsafe: str = ""
    """Why copies of its process would not be as good as new interpreters; it has ended."""
    failed: str = ""
    """Why it could not import them; it has ended. Both are empty when it forks workers."""


class Forked(msgspec.Struct, frozen=True, tag="forked", array_like=True):
    """The answer to a request."""

    pid: int
    problem: str = ""
    """Why there is no worker; ``pid`` is 0."""


class WorkerExited(msgspec.Struct, frozen=True, tag="exited", array_like=True):
    """A worker has ended, and so have the processes of its group."""

    pid: int
    code: int
    """Exit code; -N: signal N."""


ToWorker = Setup | RunJob | StopJob | TakeBack | GoOn | Leave
ToParent = Ready | Started | Returned | JobEnded | Progressed | Logged
FromForkServer = ForkServerReady | Forked | WorkerExited

_ENCODER = msgspec.msgpack.Encoder()
to_worker = msgspec.msgpack.Decoder(ToWorker)
to_parent = msgspec.msgpack.Decoder(ToParent)
from_fork_server = msgspec.msgpack.Decoder(FromForkServer)


def encode_packet(message: Setup | FromForkServer) -> bytes:
    """One message of the fork server's socket, which keeps packets apart."""
    return _ENCODER.encode(message)


def encode_frame(message: ToWorker | ToParent) -> bytes:
    """Length and body of one message."""
    body = _ENCODER.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class FrameReader:
    """Splits a stream of bytes into message bodies.

    Args:
        body_bytes_max: longest body that is accepted; a longer one raises ``ValueError``.
    """

    def __init__(self, body_bytes_max: int) -> None:
        self._max = body_bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are complete with this data."""
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) >= at + _LENGTH_BYTES:
                length = int.from_bytes(buffer[at : at + _LENGTH_BYTES], "big")
                if length > self._max:
                    raise ValueError(f"a frame of {length} bytes, at most {self._max} are allowed")
                end = at + _LENGTH_BYTES + length
                if len(buffer) < end:
                    return
                begin, at = at + _LENGTH_BYTES, end
                yield bytes(buffer[begin:end])
        finally:
            del buffer[:at]  # once, and not after each frame: it moves the rest
