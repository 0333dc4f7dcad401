"""Pauses of handlers, lanes, priorities and tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobmaster.master.driver.connection import StatementRunner
from jobmaster.model.pause import Pause, PauseFollower, PauseKind, PausesInForce
from jobmaster.ports import WrittenPause

IN_FORCE = "pauses/in_force"
"""Statement that reads the pauses."""
FOLLOWERS = "pauses/followers"
"""Statement that reads which agents obey a version of them."""


class Pauses:
    """``jobmaster.ports.Pauses`` on PostgreSQL."""

    def __init__(self, control: StatementRunner) -> None:
        self._control = control

    async def pause(
        self, kind: PauseKind, value: str, until_us: int | None, for_seconds: float | None, actor: str, reason: str
    ) -> WrittenPause | None:
        """Pause; ``None``: the end is not in the future."""
        rows = await self._control.write("pauses/pause", str(kind), value, until_us, for_seconds, actor, reason)
        return WrittenPause(rows[0]["version"], rows[0]["until_us"]) if rows else None

    async def resume(self, kind: PauseKind, value: str, actor: str, reason: str) -> int | None:
        """End a pause; the version, ``None``: there was none."""
        rows = await self._control.write("pauses/resume", str(kind), value, actor, reason)
        return int(rows[0]["version"]) if rows else None

    async def in_force(self) -> PausesInForce:
        """The version, and the pauses that are not over."""
        return in_force_of(await self._control.read(IN_FORCE))

    async def obey(self, agent_id: bytes, version: int) -> bool:
        """The agent has applied a version; False when it has ended."""
        return bool(await self._control.write("pauses/obey", agent_id, version))

    async def followers(self, version: int) -> list[PauseFollower]:
        """The living agents that run jobs, and which of them obey a version."""
        return [PauseFollower(*row) for row in await self._control.read(FOLLOWERS, version)]


def in_force_of(rows: Sequence[Any]) -> PausesInForce:
    """The rows of ``IN_FORCE``, by column name."""
    pauses = tuple(
        Pause(
            kind=PauseKind(row["kind"]),
            value=row["value"],
            actor=row["actor"],
            reason=row["reason"],
            since_us=row["at_us"],
            until_us=row["until_us"],
            left_seconds=row["left_seconds"],
            handlers=tuple(row["handlers"] or ()),
            trials=tuple(row["trials"] or ()),
        )
        for row in rows
        if row["kind"] is not None
    )
    ranges = frozenset(map(bytes.fromhex, rows[0]["cancelled_ranges"]))
    return PausesInForce(rows[0]["version"], pauses, ranges)
