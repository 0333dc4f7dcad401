"""An agent whose wall clock can be turned, and, as a mutant, one that lacks a guard. For the tests alone.

A mutant is the proof that the checker can fail: each leaves out one guard that a run under faults must miss. Nothing of it
is in the product: what is left out is exchanged here, before the agent's own main program runs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import SystemClock
from jobmaster.master.driver import batches
from jobmaster.master.driver.statements import sql
from jobmaster_agents import agent, agent_main, run_agent
from jobmaster_agents.launch.shared_deadline import Deadline
from jobmaster_agents.lease.heartbeat import Heartbeat
from jobmaster_agents.state.ownership import Ownership

CLOCK = "CHAOS_CLOCK"
MUTANT = "CHAOS_MUTANT"
_LOOK_SECONDS = 0.1
IDENTITY = """WHERE j.token = EXCLUDED.token
      AND j.bucket_id = EXCLUDED.bucket_id
      AND j.bucket_epoch = EXCLUDED.bucket_epoch
      AND j.state IN ('ASSIGNED', 'PROCESSING')"""


class Mutant(StrEnum):
    """What is left out."""

    LIST_BEFORE_COMMIT = "list_before_commit"
    """A claimed list is deleted as soon as it is in memory."""
    NO_SELF_FENCE = "no_self_fence"
    """Nothing ends an agent whose lease is over: not itself, not its supervisor, not the kernel's timer; and what it owns it
    believes to own for ever."""
    NO_IDENTITY = "no_identity"
    """As above, and an outcome is written whatever assignment the row names."""


def turn_clock(path: Path) -> None:
    """From now on the wall clock is off by the seconds in a file; it may be changed at any time."""
    looked_at, off_us = 0.0, 0

    def wall_us(_: SystemClock) -> int:
        nonlocal looked_at, off_us
        now = time.monotonic()
        if now - looked_at > _LOOK_SECONDS:
            looked_at = now
            try:
                off_us = int(float(path.read_text() or 0) * 1e6)
            except (OSError, ValueError):
                off_us = 0
        return time.time_ns() // 1000 + off_us

    type.__setattr__(SystemClock, "wall_us", wall_us)


def list_before_commit() -> None:
    """See `Mutant`."""
    claim = AgentStore.claim

    async def careless(self: AgentStore, *arguments: Any, **words: Any) -> Any:
        answer = await claim(self, *arguments, **words)
        if answer.entries:
            await self.settle(arguments[0], [arguments[1]], [])
        return answer

    type.__setattr__(AgentStore, "claim", careless)


def no_self_fence() -> None:
    """See `Mutant`."""

    def nothing(*_: Any, **__: Any) -> bool:
        return False

    def always(*_: Any) -> bool:
        return True

    for owner, name, instead in (
        (Ownership, "fence", nothing),
        (Ownership, "lose", nothing),
        (Ownership, "may_start", always),
        (Ownership, "may_commit", always),
        (Heartbeat, "_fence", nothing),
    ):
        type.__setattr__(owner, name, instead)
    vars(agent)["arm_kernel_timer"] = nothing
    before: property = vars(Deadline)["trusted_until"]
    written = before.fset
    assert written is not None

    def far_away(self: Deadline, value: float) -> None:
        written(self, value + 1e6)

    type.__setattr__(Deadline, "trusted_until", property(before.fget, far_away))


def no_identity() -> None:
    """See `Mutant`."""
    no_self_fence()
    assert IDENTITY in sql("outcomes/record_final")
    vars(batches)["sql"] = lambda name: (
        sql(name).replace(IDENTITY, "WHERE true") if name == "outcomes/record_final" else sql(name)
    )


MUTATIONS: dict[Mutant, Callable[[], None]] = {
    Mutant.LIST_BEFORE_COMMIT: list_before_commit,
    Mutant.NO_SELF_FENCE: no_self_fence,
    Mutant.NO_IDENTITY: no_identity,
}


def prepared() -> agent_main.RunAgent:
    """The agent's main function, after what was asked for."""
    if clock := os.environ.get(CLOCK):
        turn_clock(Path(clock))
    if mutant := os.environ.get(MUTANT):
        MUTATIONS[Mutant(mutant)]()
    return run_agent.run_agent


if __name__ == "__main__":
    exit_code = 1
    try:
        exit_code = agent_main.run_child(sys.argv[1:], prepared)
    finally:
        agent_main.leave(exit_code)
