"""``ctx.confirm()`` of one attempt: the outcome is written when the handler calls it, not when it returns. Used in agents and
in their worker processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from jobmaster.model.errors import Conflict, InputError, JobMasterError, OutcomeUnknown
from jobmaster.model.ids import text
from jobmaster.model.job import Conclusion, ErrorInfo, FinalRow
from jobmaster_agents.execute.transactional.attempt import TransactionSource, attempt_name, conclude


class Confirmation:
    """The confirmation of one attempt, at most one: a transaction with the outcome as its only statement.

    Args:
        success: the outcome if the attempt succeeds, but for its result.
        encode: the result as JSON bytes, or the error that shows why it cannot be encoded.
        ran_us: microseconds that the handler has run by now.
        allowed: whether this process may still commit.
        on_confirm: called before the first statement is sent.
        is_recorded: whether the row shows that this very attempt has succeeded (after a lost reply; confirmed from outside).
    """

    def __init__(
        self,
        source: TransactionSource,
        success: FinalRow,
        *,
        encode: Callable[[object], bytes | ErrorInfo | None],
        ran_us: Callable[[], int],
        allowed: Callable[[], bool],
        on_confirm: Callable[[], None] = lambda: None,
        is_recorded: Callable[[FinalRow], Awaitable[bool]] | None = None,
    ) -> None:
        self._source = source
        self._encode = encode
        self._ran_us = ran_us
        self._allowed = allowed
        self._on_confirm = on_confirm
        self._is_recorded = is_recorded
        self.row = success
        """The outcome; complete once it was confirmed."""
        self.confirmation = attempt_name(success)
        self.conclusion: Conclusion | None = None
        """How the confirmation ended. UNKNOWN also while it is under way."""
        self.unavailable: JobMasterError | None = None

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Not with explicit confirmation."""
        raise InputError(
            "ctx.transaction() is not open to handlers with confirm='explicit'",
            hint="declare transactional=True instead",
        )

    async def send_message(self, handler: str, arguments: dict[str, object], key: str | None) -> None:
        """Not with explicit confirmation: there is no transaction."""
        self.transaction()

    async def confirm(self, result: object = None) -> None:
        """See ``JobContext.confirm``."""
        job = text(self.row.id)
        if self.conclusion is Conclusion.COMMITTED:
            raise InputError(f"job {job} is confirmed already")
        encoded = self._encode(result)
        if isinstance(encoded, ErrorInfo):
            raise InputError(f"job {job} cannot be confirmed like this: {encoded.message}")
        self.row = self.row._replace(result=encoded, ran_us=self._ran_us())
        self._on_confirm()
        opened = await self._source.begin(self.confirmation)
        self.conclusion = Conclusion.UNKNOWN
        conclusion = await conclude(opened, self.row, self._allowed)
        if conclusion in (Conclusion.REFUSED, Conclusion.UNKNOWN) and self._is_recorded is not None:
            conclusion = Conclusion.COMMITTED if await self._is_recorded(self.row) else conclusion
        self.conclusion = conclusion
        if conclusion is Conclusion.UNKNOWN:
            raise OutcomeUnknown(f"job {job}: the answer to its confirmation was lost", id_bytes=[self.row.id])
        if conclusion is not Conclusion.COMMITTED:
            raise Conflict(f"job {job} cannot be confirmed any more: this attempt has been superseded")

    async def rollback(self) -> None:
        """No-op: no transaction is open between two calls."""
