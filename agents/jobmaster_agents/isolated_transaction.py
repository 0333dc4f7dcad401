"""The transaction of one attempt in a worker process, on a connection of its own: opened when the handler asks for it,
closed when the attempt is over. Whether the lease allows a commit is the agent's business: it kills its workers in time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from jobmaster.model.job import Conclusion, FinalRow
from jobmaster_agents.attempt_transaction import AttemptTransaction


class IsolatedTransaction:
    """One attempt's.

    Args:
        access: MessagePack of ``MasterAccess``.
        run: runs a coroutine to its end on the worker's loop, out of reach of a ``Stop``.
    """

    def __init__(self, access: bytes, success: FinalRow, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        # Imported late: the driver costs a worker more memory than all the rest, and few handlers have transactions.
        from jobmaster.master.transactions import MasterAccess, Transactions

        self._transactions = Transactions(msgspec.msgpack.decode(access, type=MasterAccess))
        self._success = success
        self._run = run
        self.attempt = AttemptTransaction(self._transactions, success)

    def conclude(self, result: bytes | None, ran_us: int) -> Conclusion | None:
        """Outcome and commit; ``None`` when the handler did without."""
        if not self.attempt.pending:
            return None
        row = self._success._replace(result=result, ran_us=ran_us)
        conclusion: Conclusion = self._run(self.attempt.conclude(row, lambda: True))
        return conclusion

    def close(self) -> None:
        """Undo what was not concluded."""
        self._run(self._close())

    async def _close(self) -> None:
        await self.attempt.rollback()
        await self._transactions.close()
