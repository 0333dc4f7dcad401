"""Stamps of single jobs on their way from submit to outcome, for ``python -m benchmarks.latency --trace``.

Functions of the product are wrapped in the producer's and the agent's process, so the product pays nothing for it while
nothing is traced. All stamps are of the monotonic clock, which the processes of one machine share. The agent's stamps reach
the producer in a file, which a job writes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.support.handlers import handlers
from jobmaster.agentstore.pipelined_connection import _Link
from jobmaster.agentstore.producer import ProducerStore
from jobmaster.agentstore.store import AgentStore
from jobmaster.agentstore.wake_wait import WakeWaiter
from jobmaster.codec import ID_AT


class Stamp(StrEnum):
    """A moment on the way of a job, in their order at light load."""

    CALLED = "called"
    COALESCED = "coalesced"
    WRITTEN = "written"
    READ = "read"
    ACKNOWLEDGED = "acknowledged"
    WOKEN = "woken"
    CLAIM_SENT = "claim_sent"
    CLAIM_ANSWERED = "claim_answered"
    STARTED = "started"
    RECORDED = "recorded"


LEGS = {
    "submit called -> call to the store": (Stamp.CALLED, Stamp.COALESCED),
    "-> command written": (Stamp.COALESCED, Stamp.WRITTEN),
    "command written -> reply read": (Stamp.WRITTEN, Stamp.READ),
    "reply read -> submit returns": (Stamp.READ, Stamp.ACKNOWLEDGED),
    "command written -> agent woken": (Stamp.WRITTEN, Stamp.WOKEN),
    "agent woken -> claim sent": (Stamp.WOKEN, Stamp.CLAIM_SENT),
    "command written -> claim sent": (Stamp.WRITTEN, Stamp.CLAIM_SENT),
    "claim sent -> claim answered": (Stamp.CLAIM_SENT, Stamp.CLAIM_ANSWERED),
    "claim answered -> handler started": (Stamp.CLAIM_ANSWERED, Stamp.STARTED),
    "handler started -> outcome recorded": (Stamp.STARTED, Stamp.RECORDED),
    "submit called -> handler started": (Stamp.CALLED, Stamp.STARTED),
}
Stamps = dict[str, dict[bytes, int]]
"""Stamp -> id of the job -> nanoseconds."""

_stamps: Stamps = {stamp.value: {} for stamp in Stamp}
_sending: ContextVar[Sequence[bytes]] = ContextVar("_sending", default=())
_gathered: list[bytes] = []
_woken: dict[bytes, int] = {}


def stamp(which: Stamp, ids: Sequence[bytes]) -> None:
    """Note that some jobs have come so far."""
    now = time.monotonic_ns()
    _stamps[which].update(dict.fromkeys(ids, now))


def called(job_id: bytes, at_ns: int) -> None:
    """Note when the submit of a job was called; its id is known afterwards."""
    _stamps[Stamp.CALLED][job_id] = at_ns


def taken() -> Stamps:
    """The stamps of this process, which forgets them."""
    found = {name: dict(by_id) for name, by_id in _stamps.items()}
    for by_id in _stamps.values():
        by_id.clear()
    return found


def read(path: Path) -> Stamps:
    """The stamps that an agent has written."""
    found: dict[str, dict[str, int]] = json.loads(path.read_text())
    return {name: {bytes.fromhex(id_): ns for id_, ns in by_id.items()} for name, by_id in found.items()}


def legs(stamps: Stamps, ids: Sequence[bytes]) -> dict[str, list[float]]:
    """Milliseconds of each leg. A job that another one's wake-up brought has no leg of its own there."""
    found: dict[str, list[float]] = {}
    for leg, (first, last) in LEGS.items():
        one, other = stamps[first], stamps[last]
        spans = [(other[id_] - one[id_]) / 1e6 for id_ in ids if id_ in one and id_ in other]
        found[leg] = [span for span in spans if span >= 0.0]
    return found


def wrap_producer() -> None:
    """Stamp what this process submits."""
    submit, call, flush = ProducerStore.submit, _Link.call, _Link._flush

    async def stamped_submit(self: ProducerStore, bucket_id: bytes, items: Sequence[bytes], **limits: int) -> Any:
        ids = [item[ID_AT] for item in items]
        stamp(Stamp.COALESCED, ids)
        before = _sending.set(ids)
        try:
            answer = await submit(self, bucket_id, items, **limits)
        finally:
            _sending.reset(before)
        stamp(Stamp.READ, ids)
        return answer

    def stamped_call(self: _Link, command: bytes) -> Any:
        waits = len(self._outbox)
        reply = call(self, command)
        if len(self._outbox) > waits:
            _gathered.extend(_sending.get())
        else:
            stamp(Stamp.WRITTEN, _sending.get())
        return reply

    def stamped_flush(self: _Link) -> None:
        flush(self)
        if not self._outbox:
            stamp(Stamp.WRITTEN, _gathered)
            _gathered.clear()

    _replace(ProducerStore, "submit", stamped_submit)
    _replace(_Link, "call", stamped_call)
    _replace(_Link, "_flush", stamped_flush)


def wrap_agent() -> None:
    """Stamp what this process runs."""
    from jobmaster_agents.execute.executor import Executor
    from jobmaster_agents.outcomes.writer import OutcomeWriter

    wait, claim = WakeWaiter.wait, AgentStore.claim
    run: Callable[..., Awaitable[float]] = Executor._run
    settle = OutcomeWriter.settle_accepted

    async def stamped_wait(self: WakeWaiter, bucket_ids: Sequence[bytes], timeout_seconds: float) -> bytes | None:
        bucket_id = await wait(self, bucket_ids, timeout_seconds)
        if bucket_id is not None:
            _woken[bucket_id] = time.monotonic_ns()
        return bucket_id

    async def stamped_claim(self: AgentStore, fence: Any, *arguments: Any, **options: Any) -> Any:
        sent, woken = time.monotonic_ns(), _woken.pop(fence.bucket_id, None)
        answer = await claim(self, fence, *arguments, **options)
        ids = [entry.id for entry in answer.entries]
        stamp(Stamp.CLAIM_ANSWERED, ids)
        _stamps[Stamp.CLAIM_SENT].update(dict.fromkeys(ids, sent))
        if woken is not None:
            _stamps[Stamp.WOKEN].update(dict.fromkeys(ids, woken))
        return answer

    async def stamped_run(self: Executor, slot: Any, queue: Any, job: Any, now: float) -> float:
        stamp(Stamp.STARTED, (job.entry.id,))
        return await run(self, slot, queue, job, now)

    def stamped_settle(self: OutcomeWriter, jobs: Sequence[Any]) -> None:
        stamp(Stamp.RECORDED, [job.entry.id for job in jobs])
        settle(self, jobs)

    _replace(WakeWaiter, "wait", stamped_wait)
    _replace(AgentStore, "claim", stamped_claim)
    _replace(Executor, "_run", stamped_run)
    _replace(OutcomeWriter, "settle_accepted", stamped_settle)


def _replace(owner: type, name: str, wrapper: object) -> None:
    setattr(owner, name, wrapper)


@handlers.job(name="bench.write_stamps")
async def write_stamps(path: str) -> None:
    """Write the stamps of the agent that runs this job into a file, and forget them."""
    found = {name: {id_.hex(): ns for id_, ns in by_id.items()} for name, by_id in taken().items()}
    Path(path).write_text(json.dumps(found))
