"""The transaction, or the confirmation, of one attempt in a worker process, on a connection of its own.

It is opened at the handler's call and closed when the attempt has ended. The worker does not check the lease: the agent kills
its workers before the lease ends.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from jobmaster.model.job import Conclusion, ErrorInfo, FinalRow
from jobmaster_agents.execute.transactional.attempt import AttemptTransaction
from jobmaster_agents.execute.transactional.confirmation import Confirmation


class WorkerTransaction:
    """The transaction or confirmation of one attempt.

    Args:
        access: MessagePack of ``MasterAccess``.
        ran_us: microseconds that the handler has run by now.
        encode: for handlers with explicit confirmation: encodes the result.
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
        """How the confirmation ended, and its result."""
        attempt = self.attempt
        return (attempt.conclusion, attempt.row.result) if isinstance(attempt, Confirmation) else (None, None)

    def conclude(self, result: bytes | None) -> Conclusion | None:
        """Write the outcome and commit; ``None`` when the handler has not opened a transaction."""
        if isinstance(self.attempt, Confirmation) or not self.attempt.pending:
            return None
        row = self._success._replace(result=result, ran_us=self._ran_us())
        conclusion: Conclusion = self._run(self.attempt.conclude(row, lambda: True))
        return conclusion

    def close(self) -> None:
        """Roll back what was not concluded, and close the connection."""
        self._run(self._close())

    async def _close(self) -> None:
        await self.attempt.rollback()
        await self._transactions.close()
