"""One attempt of a handler, in the process of the test and without a server."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, Unpack

import msgspec

from jobmaster.client.options import BulkOptions
from jobmaster.handlers import Call, Handlers
from jobmaster.handlers.call import parts
from jobmaster.model.errors import InputError, JobFailed, JobMasterError
from jobmaster.model.job import JobState
from jobmaster.settings.model import ClusterSettings
from jobmaster.testing.memory.agent import GivenByTest, MemoryAgent
from jobmaster.testing.memory.cluster import MemoryJobs
from jobmaster.testing.memory.rows import MemoryJob
from jobmaster.testing.registries import handler_of

R = TypeVar("R")
_SETTINGS = ClusterSettings()


def run_handler(
    call: Call[R],
    /,
    *,
    attempt: int = 1,
    handlers: Handlers | None = None,
    resources: Any = None,
    connection: Any = None,
    **options: Unpack[BulkOptions],
) -> R:
    """Run one attempt of a handler without servers, as an agent would: the arguments are checked and encoded as a submit does
    it, decoded, the handler runs with its context and time-out, and its result is checked, encoded and decoded.

    ::

        def test_resize():
            assert run_handler(call(resize, "a.png", width=400), attempt=2) == Size(400, 300)

    An async handler runs on an event loop of its own, a plain one in a thread, one of mode ``process`` in this process.

    Args:
        attempt: number of the attempt; 1 is the first.
        handlers: registry of the handler; default: the one that the function's module uses.
        resources: what ``ctx.resources`` is; default: the lifespan of the handler's registry is entered and left.
        connection: what ``ctx.transaction()`` gives, an asyncpg connection; committed when the handler succeeds.
        options: see ``BulkOptions``: tags, metadata, max_attempts, timeout and others.

    Returns: the result, as a waiting producer would get it.

    Raises:
        UnknownHandler, InvalidArguments, InputError: as ``submit`` raises them.
        ConfigError: the lifespan failed.
        JobFailed: the attempt failed without an error of the handler: time-out, a result that cannot be recorded, expired,
            not confirmed; ``info`` has the recorded error.
        Exception: whatever the handler raised, ``Retry`` and ``Cancel`` included.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(
            run_handler_async(
                call, attempt=attempt, handlers=handlers, resources=resources, connection=connection, **options
            )
        )
    raise InputError("run_handler() was called in a coroutine", hint="await run_handler_async(...) there")


async def run_handler_async(
    call: Call[R],
    /,
    *,
    attempt: int = 1,
    handlers: Handlers | None = None,
    resources: Any = None,
    connection: Any = None,
    **options: Unpack[BulkOptions],
) -> R:
    """``run_handler`` on the running event loop, so that the handler can use what the test has opened there."""
    if not isinstance(call, Call):
        raise InputError(
            f"run_handler() takes a call, not {type(call).__name__}", hint="run_handler(call(resize, 'a.png'))"
        )
    number: Any = attempt
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InputError(f"'attempt' must be a whole number of at least 1, not {attempt!r}")
    if options.get("wait_for") is not None:
        raise InputError(
            "run_handler() runs an attempt at once, and 'wait_for' waits for a signal",
            hint="use the fixture jobs: submit the job, await jobs.cluster.signals.send(...), then await jobs.drain()",
        )
    registry, handler = handler_of(call.handler, handlers)
    jobs = MemoryJobs(_SETTINGS, registry)
    jobs.rows.serve_lane(options.get("lane") or handler.options.lane)
    cluster = jobs.open()
    name, arguments = handler.name, parts(call, None)[1]
    receipt = await cluster.submit(name, arguments, **options)
    job = jobs.rows.jobs[receipt.id_bytes]
    job.entry = msgspec.structs.replace(job.entry, attempt=attempt - 1)
    agent = await MemoryAgent.open(jobs.rows, [handler], GivenByTest(connection, resources))
    try:
        with jobs.rows.clock.at_least(job.due_us):
            await agent.run(job, handler)
    finally:
        await agent.aclose()
    if job.raised is not None:
        raise job.raised
    if job.state is JobState.SUCCEEDED or job.state is JobState.WAITING:
        result: R = handler.decode_result(job.result)
        return result
    raise _failed(job)


def _failed(job: MemoryJob) -> JobMasterError:
    info = job.view().error
    detail = f": {info.type}: {info.message}" if info is not None else ""
    return JobFailed(f"the attempt of handler {job.entry.handler!r} failed{detail}", state=job.state, info=info)
