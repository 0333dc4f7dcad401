"""Port of the master for jobs with unique keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from jobmaster.model.flow.uniqueness import UniqueAnswer, UniqueKeyView, UniqueSubmit


class UniqueKeys(Protocol):
    """Unique keys, as far as operators look at them and release them."""

    async def held(self, handler: str | None, key: str | None, limit: int) -> list[UniqueKeyView]:
        """Keys that are held, by handler and key; ``None``: whatever it is."""
        ...

    async def release(self, handler: str, key: str, actor: str) -> bool:
        """Take the key from its job, with a line in the operator's log; False when there is none."""
        ...


class Uniqueness(UniqueKeys, Protocol):
    """Jobs that hold a unique key: the key and the row of the job are written together."""

    async def submit(self, jobs: Sequence[UniqueSubmit]) -> list[UniqueAnswer]:
        """HELD rows of the jobs that get their keys; one answer for each, in order. It may be sent again."""
        ...

    async def submit_in(self, connection: Any, job: UniqueSubmit) -> UniqueAnswer:
        """One of them inside the caller's own transaction on ``connection``. A holder in a bucket counts as started."""
        ...
