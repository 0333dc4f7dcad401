"""The end of attempts that have written, or may have written, their own outcome: succeeded, refused, or not committed.

An attempt whose end was not seen (a lost reply to the commit, a worker process that died) is looked up in the master, so that
a job whose transaction was committed has succeeded, whatever happened after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.model.job import Conclusion, Confirm, ErrorInfo, FinalRow
from jobmaster.ports import AttemptOutcomes
from jobmaster.telemetry import Telemetry
from jobmaster_agents.call_retry import UntilAnswered
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.outcomes.outcome_builder import UNCONFIRMED, OutcomeBuilder, StopCause
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase

_UNSEEN = (ResultKind.CRASHED, ResultKind.TIMEOUT, ResultKind.CANCELLED)
"""Results after which the agent cannot know how far the worker process got."""
_NOT_COMMITTED = ErrorInfo(
    type="CommitLost",
    message="the connection to the master was lost at the commit, and nothing was committed",
    reason="error",
)


class OutcomeRecorder(Protocol):
    """Settles outcomes that were written without it; implemented by `OutcomeWriter`."""

    refused: int

    @property
    def until_answered(self) -> UntilAnswered: ...

    def recorded(self, row: FinalRow) -> None: ...

    def settle_accepted(self, jobs: list[ClaimedJob]) -> None: ...

    def settle_refused(self, job: ClaimedJob) -> None: ...


class TransactionSettlement:
    """Settles jobs by the end of their transaction.

    Args:
        outcomes: the master's outcomes.
        recorder: settles jobs whose outcome is in the master.
        outcome_builder: makes the ordinary outcome where nothing was committed.
    """

    def __init__(
        self,
        outcomes: AttemptOutcomes,
        recorder: OutcomeRecorder,
        outcome_builder: OutcomeBuilder,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._outcomes = outcomes
        self._recorder = recorder
        self._outcome_builder = outcome_builder
        self._now = clock.boottime
        self._telemetry = telemetry
        self.on_success: Sequence[Callable[[ClaimedJob], None]] = ()
        """Called for each success that an attempt has recorded itself."""

    @property
    def until_answered(self) -> UntilAnswered:
        """Repeats a call until the master answers."""
        return self._recorder.until_answered

    async def conclude(self, job: ClaimedJob, row: FinalRow, conclusion: Conclusion, started: float) -> None:
        """Settle a job whose transaction has ended; an unknown end is looked up in the master."""
        if conclusion is Conclusion.UNKNOWN:
            self._telemetry.transactions["unknown"] += 1
            conclusion = Conclusion.COMMITTED if await self.is_recorded(row) else Conclusion.UNKNOWN
        self._telemetry.transactions[conclusion.value if conclusion is not Conclusion.UNKNOWN else "rolled_back"] += 1
        now, outcome_builder = self._now(), self._outcome_builder
        if conclusion is Conclusion.COMMITTED:
            self._recorder.recorded(row)
            for noted in self.on_success:
                noted(job)
            if job.phase is not JobPhase.GONE:
                self._recorder.settle_accepted([job])
        elif job.phase is JobPhase.GONE:
            return
        elif conclusion is Conclusion.REFUSED:
            self._recorder.refused += 1
            self._recorder.settle_refused(job)
            await self._recorder.until_answered("mark_refused", lambda: self._outcomes.mark_refused([row]))
        elif conclusion is Conclusion.WITHHELD:
            outcome_builder.stopped(job, StopCause.RELEASE, started, now)
        else:
            outcome_builder.attempt_failed(job, _NOT_COMMITTED, started, now)

    async def settle_process_result(
        self, job: ClaimedJob, row: FinalRow, result: AttemptResult | None, started: float
    ) -> bool:
        """Settle the job by what a worker process did with its transaction; False when that settles nothing.

        Args:
            row: the outcome if it succeeded.
            result: from the worker; ``None`` when it was stopped without one.
        """
        if result is not None and result.conclusion is not None:
            row = row._replace(result=result.result, ran_us=result.ran_us)
            if job.phase is JobPhase.RUNNING:
                job.phase = JobPhase.ENDED
            await self.conclude(job, row, result.conclusion, started)
            return True
        handler = job.handler
        explicit = handler is not None and handler.options.confirm is Confirm.EXPLICIT
        if explicit and result is not None and result.kind is ResultKind.OK:
            await self.await_confirmation(job, started)
            return True
        unseen = result is None or result.kind in _UNSEEN
        if unseen and job.phase is not JobPhase.GONE and await self.is_recorded(row):  # it died after its commit
            await self.conclude(job, row, Conclusion.COMMITTED, started)
            return True
        return False

    async def await_confirmation(self, job: ClaimedJob, started: float) -> None:
        """The handler has returned without a confirmation: the job waits for one, or the attempt has failed."""
        outcome_builder, handler = self._outcome_builder, job.handler
        assert handler is not None
        now, within = self._now(), handler.options.confirm_within_seconds
        if job.phase is JobPhase.GONE:
            return
        if within is None:
            outcome_builder.attempt_failed(job, UNCONFIRMED, started, now)
            return
        row = outcome_builder.success_row(job, started)._replace(ran_us=int((now - started) * 1e6))
        job.phase = JobPhase.ENDED
        pause, error = outcome_builder.retry_if_unconfirmed(job)
        until_answered, outcomes = self._recorder.until_answered, self._outcomes
        waits = await until_answered(
            "await_confirmation", lambda: outcomes.await_confirmation(row, within, pause, error)
        )
        if job.phase is JobPhase.GONE:
            return
        if waits:
            self._recorder.settle_accepted([job])
        else:
            self._recorder.refused += 1
            self._recorder.settle_refused(job)

    async def is_recorded(self, row: FinalRow) -> bool:
        """Ask the master until it answers. (False may come while a commit is still under way; then the row refuses
        the outcome that is written instead.)"""
        return await self._recorder.until_answered("is_recorded", lambda: self._outcomes.is_recorded(row))
