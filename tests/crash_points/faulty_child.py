"""An agent whose ports have faults: a main program like ``jobmaster_agents.agent_main``, for the tests alone.

Functions of the program under test are replaced here before it runs: the two functions that open its
stores, and pauses of rare periodic tasks that would make a test wait for a minute.
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
from jobmaster_agents import agent_main, run_agent
from jobmaster_agents.buckets import anti_entropy
from jobmaster_agents.leader import maintenance, maintenance_runner
from tests.crash_points.faulty_ports import VARIABLE, FaultDirectory, FaultyPort

MAINTENANCE_SECONDS = 0.5


def prepared() -> agent_main.RunAgent:
    """The agent's main function, its ports replaced."""
    faults = FaultDirectory(Path(os.environ[VARIABLE]))

    async def faulty_master(settings: ClusterSettings, **words: Any) -> Master:
        return cast("Master", FaultyPort(await open_master(settings, **words), "master", faults))

    async def faulty_stores(settings: ClusterSettings, **words: Any) -> dict[str, AgentStore]:
        stores = await open_stores(settings, **words)
        return {name: cast("AgentStore", FaultyPort(store, "store", faults)) for name, store in stores.items()}

    class FaultyTransactions:
        """Each transaction is a port of its own."""

        def __init__(self, inner: Transactions) -> None:
            self._inner = inner
            self.access = inner.access
            self.close = inner.close

        async def begin(self, attempt: str) -> Transaction:
            return cast("Transaction", FaultyPort(await self._inner.begin(attempt), "transaction", faults))

    def faulty_transactions(settings: ClusterSettings, **words: Any) -> FaultyTransactions:
        return FaultyTransactions(open_transactions(settings, **words))

    hasten()
    vars(run_agent).update(open_master=faulty_master, open_stores=faulty_stores, open_transactions=faulty_transactions)
    return run_agent.run_agent


def hasten() -> None:
    """Periodic tasks that run every minute run every half second."""
    anti_entropy.IDLE_FACTOR = 1.0
    anti_entropy.PACE_SECONDS = 0.1
    vars(maintenance)["_SENDER_GONE_SECONDS"] = MAINTENANCE_SECONDS

    def hastened(name: str, every_seconds: float, run: Any) -> maintenance_runner.MaintenanceTask:
        return maintenance_runner.MaintenanceTask(name, min(every_seconds, MAINTENANCE_SECONDS), run)

    vars(maintenance)["MaintenanceTask"] = hastened


if __name__ == "__main__":
    exit_code = 1
    try:
        exit_code = agent_main.run_child(sys.argv[1:], prepared)
    finally:
        agent_main.leave(exit_code)
