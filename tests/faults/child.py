"""An agent whose ports have faults: a main program like ``jobmaster_agents.child``, for the tests alone.

What the program under test is told by its own modules is exchanged here before it runs: the two functions that open its
stores, and pauses of rare duties that would make a test wait for a minute.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, cast

from jobmaster.agentstore.store import AgentStore
from jobmaster.master.master import Master
from jobmaster.master.transactions import Transaction, Transactions
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import open_master, open_stores, open_transactions
from jobmaster_agents import anti_entropy, child, coordination, housekeeping, process
from tests.faults.ports import VARIABLE, FaultyPort, Orders

CHORE_SECONDS = 0.5


def run_agent() -> child.RunAgent:
    """The agent's main function, its ports replaced."""
    orders = Orders(Path(os.environ[VARIABLE]))

    async def faulty_master(settings: ClusterSettings, **words: Any) -> Master:
        return cast("Master", FaultyPort(await open_master(settings, **words), "master", orders))

    async def faulty_stores(settings: ClusterSettings, **words: Any) -> dict[str, AgentStore]:
        stores = await open_stores(settings, **words)
        return {name: cast("AgentStore", FaultyPort(store, "store", orders)) for name, store in stores.items()}

    class FaultyTransactions:
        """Each transaction is a port of its own."""

        def __init__(self, inner: Transactions) -> None:
            self._inner = inner
            self.access = inner.access
            self.close = inner.close

        async def begin(self, attempt: str) -> Transaction:
            return cast("Transaction", FaultyPort(await self._inner.begin(attempt), "transaction", orders))

    def faulty_transactions(settings: ClusterSettings, **words: Any) -> FaultyTransactions:
        return FaultyTransactions(open_transactions(settings, **words))

    hasten()
    vars(process).update(open_master=faulty_master, open_stores=faulty_stores, open_transactions=faulty_transactions)
    return process.run_agent


def hasten() -> None:
    """Duties that come every minute come every half second."""
    anti_entropy.IDLE_FACTOR = 1.0
    anti_entropy.PACE_SECONDS = 0.1

    def chore(name: str, every_seconds: float, run: Any) -> coordination.Chore:
        return coordination.Chore(name, min(every_seconds, CHORE_SECONDS), run)

    vars(housekeeping)["Chore"] = chore


if __name__ == "__main__":
    exit_code = 1
    try:
        exit_code = child.serve(sys.argv[1:], run_agent)
    finally:
        child.leave(exit_code)
