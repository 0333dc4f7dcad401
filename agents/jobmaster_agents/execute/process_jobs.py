"""A job of a worker process: what the worker is told of it, and the outcome of what it reports."""

from __future__ import annotations

from jobmaster.model.job import ErrorInfo
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.execute.dispatched_job import DispatchedJob
from jobmaster_agents.execute.process_pool.protocol import ProcessJob
from jobmaster_agents.outcomes.outcome_builder import OutcomeBuilder, StopCause, sealed_result
from jobmaster_agents.state.job_table import ClaimedJob

_WORKER_GRACE_SECONDS = 5.0
"""Added to the deadline of the pool, so that the sweep of the dispatcher stops a job first."""
NOT_STARTED_PAUSE_SECONDS = 5.0


def make_process_job(builder: OutcomeBuilder, job: ClaimedJob, now: float) -> ProcessJob:
    """What the worker is told."""
    handler = job.handler
    assert handler is not None
    success = None
    if handler.options.records_itself:
        success = builder.success_row(job, now)
        job.has_row = True
    entry, owned = job.entry, job.claimed_list.owned
    headers = builder.headers(job)
    return ProcessJob(
        job_id=entry.id,
        handler=entry.handler,
        args=handler.args_of(entry),
        token=entry.token,
        attempt=entry.attempt + 1,
        max_attempts=builder.max_attempts(job),
        rescues=entry.rescues,
        lane=owned.lane,
        priority=owned.priority,
        tags=headers.tags,
        metadata=headers.metadata,
        snoozes=headers.snoozes,
        timeout_seconds=builder.timeout_seconds(job) + _WORKER_GRACE_SECONDS,
        success=success,
    )


def record_result(builder: OutcomeBuilder, dispatched: DispatchedJob, result: AttemptResult | None, now: float) -> None:
    """Pass on the outcome of an attempt that has begun; ``None``: it was stopped without a result.

    A success counts although the job was to be given back: it would run a second time.
    """
    cause = dispatched.cause
    if result is None or not (cause is None or (cause is StopCause.RELEASE and result.kind is ResultKind.OK)):
        started = dispatched.started if result is None else now - result.ran_us / 1e6
        builder.stopped(dispatched.job, cause or StopCause.RELEASE, started, now)
        return
    job, started = dispatched.job, now - result.ran_us / 1e6
    kind = result.kind
    if kind is ResultKind.OK:
        builder.encoded(job, sealed_result(job, result.result), started, now)
    elif kind is ResultKind.TIMEOUT:
        builder.stopped(job, StopCause.TIMEOUT, started, now)
    elif kind is ResultKind.CANCELLED:
        builder.stopped(job, StopCause.RELEASE, started, now)
    elif kind is ResultKind.NOT_STARTED:
        builder.release(job, after_seconds=NOT_STARTED_PAUSE_SECONDS, now=now)
    else:
        info = result.error or ErrorInfo(type="Crashed", message="the worker process ended", reason="crashed")
        if kind is ResultKind.CANCEL:
            builder.cancelled(job, info.message, started, now)
        elif kind is ResultKind.SNOOZE:
            builder.snoozed(job, info, started, now, result.after_seconds)
        elif kind is ResultKind.FAIL:
            builder.failed(job, info, started, now)
        elif info.reason == "arguments":
            builder.arguments_rejected(job, info, started, now)
        else:
            builder.attempt_failed(job, info, started, now, result.after_seconds)
        if result.policy_problem:
            builder.on_policy_problem(job, result.policy_problem)
