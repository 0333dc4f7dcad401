"""Runs handlers that write their own outcome, each in a task of its own on the loop.

The outcome of such a job is the last statement of the transaction that its handler has used. It does not go through the
batches of the outcome writer, which only settles the job. Every other end (a failure, a time-out, another attempt) is an
ordinary outcome under the guard of the row: after a commit whose reply was lost, the row refuses it.

Once the handler has returned, neither time-out nor cancellation interrupts the commit; only the time limits of the connection
apply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from jobmaster.clock import Clock
from jobmaster.handlers.decisions import decision_in
from jobmaster.model.job import Conclusion, Confirm, ErrorInfo
from jobmaster.model.trace_context import TraceContext
from jobmaster.telemetry import Telemetry
from jobmaster_agents.call_retry import UntilAnswered
from jobmaster_agents.execute.dispatched_job import DispatchedJob
from jobmaster_agents.execute.transactional.attempt import AttemptTransaction, OpenTransaction, TransactionSource
from jobmaster_agents.execute.transactional.confirmation import Confirmation
from jobmaster_agents.execute.transactional.settlement import TransactionSettlement
from jobmaster_agents.outcomes.outcome_builder import OutcomeBuilder, StopCause, is_at_most_once
from jobmaster_agents.state.job_table import JobPhase
from jobmaster_agents.state.ownership import Ownership

_UNAVAILABLE_PAUSE_SECONDS = 5.0


class TransactionalRunner:
    """Runs attempts that write their own outcome."""

    def __init__(
        self,
        source: TransactionSource | None,
        settlement: TransactionSettlement,
        outcome_builder: OutcomeBuilder,
        ownership: Ownership,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._source = source
        self.settlement = settlement
        self._outcome_builder = outcome_builder
        self._ownership = ownership
        self._now = clock.boottime
        self._telemetry = telemetry
        self.closing = False
        """The process ends: a cancellation is no stop of one job any more."""
        self.trace_context: Callable[[], TraceContext | None] | None = None
        """The current span, where there are traces."""

    # ------------------------------------------------------------ on the loop

    async def run(self, dispatched: DispatchedJob) -> None:
        """Run one attempt to its outcome. It has none when the process ends or the handler was detached."""
        job, outcome_builder = dispatched.job, self._outcome_builder
        handler, source = job.handler, self._source
        assert handler is not None
        assert source is not None, "an agent has connections for transactions"
        explicit = handler.options.confirm is Confirm.EXPLICIT
        attempt: AttemptTransaction | Confirmation = (
            self._confirmation(dispatched, source)
            if explicit
            else AttemptTransaction(source, outcome_builder.success_row(job, dispatched.started))
        )
        if self.trace_context is not None and isinstance(attempt, AttemptTransaction):
            attempt.trace_context = self.trace_context
        dispatched.attempt = attempt
        try:
            arguments = handler.decode(handler.args_of(job.entry))
            context = dispatched.current_context()
            context.runtime = attempt
            result = await handler.run(context, arguments)
        except BaseException as error:
            if self.closing and isinstance(error, asyncio.CancelledError) and dispatched.cause is None:
                await attempt.rollback()
                raise
            if not is_current_task(error):
                raise  # the coroutine is closed from outside
            await self._finish(dispatched, attempt, self._failed(dispatched, attempt, error))
            return
        await self._finish(dispatched, attempt, self._returned(dispatched, attempt, result))

    async def _finish(
        self, dispatched: DispatchedJob, attempt: AttemptTransaction | Confirmation, work: Coroutine[Any, Any, None]
    ) -> None:
        dispatched.is_ending = True
        if dispatched.detached:
            work.close()
            await attempt.rollback()
            return
        # A cancellation that the handler has left behind in its own task does not mean the end of the process.
        await finish_shielded(work, lambda: not self.closing)

    async def _failed(
        self, dispatched: DispatchedJob, attempt: AttemptTransaction | Confirmation, error: BaseException
    ) -> None:
        await attempt.rollback()
        if isinstance(attempt, Confirmation) and await self._confirmed(dispatched, attempt):
            return  # confirmed: later errors of the handler do not count
        job, now, outcome_builder = dispatched.job, self._now(), self._outcome_builder
        cause = dispatched.cause
        if isinstance(error, asyncio.CancelledError) and cause is not None:
            outcome_builder.stopped(job, cause, dispatched.started, now)
        elif cause is StopCause.SUPERSEDED:
            return
        elif _comes_of(error, attempt.unavailable) and not is_at_most_once(job):
            outcome_builder.release(
                job, after_seconds=_UNAVAILABLE_PAUSE_SECONDS, now=now
            )  # it could not begin its work
        else:
            outcome_builder.raised(job, error, dispatched.started, now)

    async def _returned(
        self, dispatched: DispatchedJob, attempt: AttemptTransaction | Confirmation, result: object
    ) -> None:
        job, started, now, outcome_builder = dispatched.job, dispatched.started, self._now(), self._outcome_builder
        if isinstance(attempt, Confirmation):
            if not await self._confirmed(dispatched, attempt) and dispatched.cause is not StopCause.SUPERSEDED:
                await self.settlement.await_confirmation(job, started)
        elif dispatched.cause is StopCause.SUPERSEDED:
            await attempt.rollback()
        elif not attempt.pending:  # it used no transaction, or has handled the failure of one
            outcome_builder.returned(job, result, started, now)
        elif isinstance(encoded := outcome_builder.encode(job, result), ErrorInfo):
            await attempt.rollback()
            outcome_builder.attempt_failed(job, encoded, started, now)
        else:
            if job.phase is JobPhase.RUNNING:
                job.phase = JobPhase.ENDED  # no in-flight row is written over the outcome that is about to be committed
            job.has_row = True
            ran_us = int((now - started) * 1e6)
            row = outcome_builder.success_row(job, started)._replace(result=encoded, ran_us=ran_us)
            try:
                conclusion = await attempt.conclude(row, lambda: self._ownership.may_commit(self._now()))
            except Exception as error:
                self._telemetry.transactions["rolled_back"] += 1
                outcome_builder.raised(job, error, started, self._now())
            else:
                await self.settlement.conclude(job, row, conclusion, started)

    # ------------------------------------------------------------ explicit confirmation

    def _confirmation(self, dispatched: DispatchedJob, source: TransactionSource) -> Confirmation:
        job, outcome_builder = dispatched.job, self._outcome_builder

        def on_confirm() -> None:
            job.has_row = True
            if job.phase is JobPhase.RUNNING:
                job.phase = JobPhase.ENDED  # as above; and no stop gives it back any more

        return Confirmation(
            _RetryingSource(source, self.settlement.until_answered),
            outcome_builder.success_row(job, dispatched.started),
            encode=lambda result: outcome_builder.encode(job, result),
            ran_us=lambda: int((self._now() - dispatched.started) * 1e6),
            allowed=lambda: self._ownership.may_commit(self._now()),
            on_confirm=on_confirm,
            is_recorded=self.settlement.is_recorded,
        )

    async def _confirmed(self, dispatched: DispatchedJob, attempt: Confirmation) -> bool:
        """Settle the job by its confirmation; False when there is none."""
        conclusion = attempt.conclusion
        if conclusion is None or (
            conclusion is Conclusion.UNKNOWN and not await self.settlement.is_recorded(attempt.row)
        ):
            return False
        if conclusion is Conclusion.UNKNOWN:
            conclusion = Conclusion.COMMITTED
        await self.settlement.conclude(dispatched.job, attempt.row, conclusion, dispatched.started)
        return True


class _RetryingSource:
    """Waits for a connection while the master is away: the work that a handler confirms is done already."""

    def __init__(self, source: TransactionSource, until_answered: UntilAnswered) -> None:
        self._source = source
        self._until_answered = until_answered

    async def begin(self, attempt: str) -> OpenTransaction:
        return await self._until_answered("confirm", lambda: self._source.begin(attempt))


def _comes_of(error: BaseException, unavailable: BaseException | None) -> bool:
    """True when no transaction could be opened and that is the reason of this error; middleware may have wrapped it. A
    decision of the handler counts as it is."""
    if unavailable is None or decision_in(error) is not None:
        return False
    todo, seen = [error], set[int]()
    while todo:
        each = todo.pop()
        if each is unavailable:
            return True
        if id(each) not in seen:
            seen.add(id(each))
            todo.extend(linked for linked in (each.__cause__, each.__context__) if linked is not None)
            if isinstance(each, BaseExceptionGroup):
                todo.extend(each.exceptions)
    return False


def is_current_task(error: BaseException) -> bool:
    """False when a coroutine is closed from outside: ``GeneratorExit`` while no task runs."""
    if not isinstance(error, GeneratorExit):
        return True
    try:
        return asyncio.current_task() is not None
    except RuntimeError:  # no loop runs in this thread
        return False


async def finish_shielded(work: Coroutine[Any, Any, None], is_job_stop: Callable[[], bool]) -> None:
    """Await ``work`` to its end, shielded from cancellations of this task, unless the process ends.

    Args:
        is_job_stop: true while a cancellation means the job alone.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            if not is_job_stop():
                task.cancel()
                await asyncio.wait((task,))
                raise
    task.result()
