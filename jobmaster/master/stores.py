"""Generations of agent stores: how a swapped or emptied store is noticed."""

from __future__ import annotations

from jobmaster.master.driver.connection import StatementRunner
from jobmaster.ports import StoreGeneration


class Stores:
    """Generations of agent stores."""

    def __init__(self, control: StatementRunner) -> None:
        self._control = control

    async def store_generation(self, name: str, proposed: bytes) -> StoreGeneration:
        """The generation of a store in the master; ``proposed`` is written when there is none.

        The same value lies in the store. A store that answers with another one was swapped, or belongs to a master that
        was restored from a backup. ``served`` is of the moment before the caller looks at the store: each bucket was opened
        in a store that had been initialised.
        """
        rows = await self._control.write("stores/generation", name, proposed)
        return StoreGeneration(rows[0]["generation"], rows[0]["served"])
