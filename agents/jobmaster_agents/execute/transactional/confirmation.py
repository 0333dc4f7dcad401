"""``ctx.confirm()`` of one attempt: the outcome is recorded when the handler says so, and not by its return. The same in an
agent and in its worker processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from jobmaster.model.errors import Conflict, InputError, JobMasterError, OutcomeUnknown
from jobmaster.model.ids import text
from jobmaster.model.job import Conclusion, ErrorInfo, FinalRow
from jobmaster_agents.execute.transactional.attempt import TransactionSource, attempt_name, conclude


class Confirmation:
    """At most one confirmation: a transaction that holds nothing but the outcome.

    Args:
        success: the outcome if the attempt succeeds, but for its result.
        encode: the result as it will be recorded, or why it cannot be.
        ran_us: how long the handler has run by now.
        allowed: whether this process may still commit.
        on_asked: called before anything is sent.
        is_recorded: whether the row says that this very attempt has succeeded (a lost answer; confirmed from outside).
    """

    def __init__(
        self,
        source: TransactionSource,
        success: FinalRow,
        *,
        encode: Callable[[object], bytes | ErrorInfo | None],
        ran_us: Callable[[], int],
        allowed: Callable[[], bool],
        on_asked: Callable[[], None] = lambda: None,
        is_recorded: Callable[[FinalRow], Awaitable[bool]] | None = None,
    ) -> None:
        self._source = source
        self._encode = encode
        self._ran_us = ran_us
        self._allowed = allowed
        self._on_asked = on_asked
        self._is_recorded = is_recorded
        self.row = success
        """The outcome; whole once it was confirmed."""
        self.confirmation = attempt_name(success)
        self.conclusion: Conclusion | None = None
        """How the confirmation ended. UNKNOWN also while it is under way."""
        self.unavailable: JobMasterError | None = None

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Not here: what is confirmed is not what is returned."""
        raise InputError(
            "ctx.transaction() is not open to handlers with confirm='explicit'",
            hint="declare transactional=True instead",
        )

    async def confirm(self, result: object = None) -> None:
        """See ``JobContext.confirm``."""
        job = text(self.row.id)
        if self.conclusion is Conclusion.COMMITTED:
            raise InputError(f"job {job} is confirmed already")
        encoded = self._encode(result)
        if isinstance(encoded, ErrorInfo):
            raise InputError(f"job {job} cannot be confirmed like this: {encoded.message}")
        self.row = self.row._replace(result=encoded, ran_us=self._ran_us())
        self._on_asked()
        opened = await self._source.begin(self.confirmation)
        self.conclusion = Conclusion.UNKNOWN
        conclusion = await conclude(opened, self.row, self._allowed)
        if conclusion in (Conclusion.REFUSED, Conclusion.UNKNOWN) and self._is_recorded is not None:
            conclusion = Conclusion.COMMITTED if await self._is_recorded(self.row) else conclusion
        self.conclusion = conclusion
        if conclusion is Conclusion.UNKNOWN:
            raise OutcomeUnknown(f"job {job}: the answer to its confirmation was lost", job_ids=[self.row.id])
        if conclusion is not Conclusion.COMMITTED:
            raise Conflict(f"job {job} cannot be confirmed any more: this attempt has been superseded")

    async def rollback(self) -> None:
        """Nothing is open between two calls."""
