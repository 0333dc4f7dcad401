"""The transaction, or the confirmation, of one attempt in a worker process, on a connection of its own.

It is opened when the handler asks for it and closed when the attempt is over. Whether the lease allows a commit is the
agent's business: it kills its workers in time.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from jobmaster.model.job import Conclusion, ErrorInfo, FinalRow
from jobmaster_agents.execute.transactional.attempt import AttemptTransaction
from jobmaster_agents.execute.transactional.confirmation import Confirmation


class WorkerTransaction:
    """One attempt's.

    Args:
        access: MessagePack of ``MasterAccess``.
        ran_us: how long the handler has run by now.
        encode: of handlers with an explicit confirmation: its result as it will be recorded.
        run: runs a coroutine to its end on the worker's loop, out of reach of a ``StopJob``.
    """

    def __init__(
        self,
        access: bytes,
        success: FinalRow,
        run: Callable[[Coroutine[Any, Any, Any]], Any],
        ran_us: Callable[[], int],
        encode: Callable[[object], bytes | ErrorInfo | None] | None = None,
    ) -> None:
        # Imported late: the driver costs a worker more memory than all the rest, and few handlers have transactions.
        from jobmaster.master.transactions import MasterAccess, Transactions

        self._transactions = Transactions(msgspec.msgpack.decode(access, type=MasterAccess))
        self._success = success
        self._run = run
        self._ran_us = ran_us
        self.attempt: AttemptTransaction | Confirmation = (
            AttemptTransaction(self._transactions, success)
            if encode is None
            else Confirmation(self._transactions, success, encode=encode, ran_us=ran_us, allowed=lambda: True)
        )

    @property
    def confirmed(self) -> tuple[Conclusion | None, bytes | None]:
        """How its confirmation ended, and with what result."""
        attempt = self.attempt
        return (attempt.conclusion, attempt.row.result) if isinstance(attempt, Confirmation) else (None, None)

    def conclude(self, result: bytes | None) -> Conclusion | None:
        """Outcome and commit; ``None`` when the handler did without."""
        if isinstance(self.attempt, Confirmation) or not self.attempt.pending:
            return None
        row = self._success._replace(result=result, ran_us=self._ran_us())
        conclusion: Conclusion = self._run(self.attempt.conclude(row, lambda: True))
        return conclusion

    def close(self) -> None:
        """Undo what was not concluded."""
        self._run(self._close())

    async def _close(self) -> None:
        await self.attempt.rollback()
        await self._transactions.close()
