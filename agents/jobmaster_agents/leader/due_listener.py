"""While this agent leads: notices of submits in SQL become hints at once, and need not wait for the leader's next tick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobmaster.ports import DueNotices
from jobmaster_agents.leader.due_notifier import DueNotifier, Group

PROBE_SECONDS = 30.0
"""How often the connection is looked at."""
IDLE_SECONDS = 60.0
"""Delay of an agent that does not lead; the leader wakes this task when that changes."""


class DueListener:
    """Periodic task that listens while this agent leads.

    Args:
        leads: returns True while this agent leads.
        on_listening: called when it begins to listen. Notices of earlier commits are lost, so the leader has to look for
            their jobs.
    """

    name = "due-listener"

    def __init__(
        self,
        notices: DueNotices,
        due_notifier: DueNotifier,
        leads: Callable[[], bool],
        on_listening: Callable[[], None],
    ) -> None:
        self._notices = notices
        self._due_notifier = due_notifier
        self._leads = leads
        self._on_listening = on_listening
        self._listens = False
        self._due: set[Group] = set()
        self.kicked = asyncio.Event()

    async def tick(self) -> float:
        """Pass on the notices, or follow the leadership."""
        if not self._leads():
            self._due.clear()
            if self._listens:
                self._listens = False
                await self._notices.stop()
            return IDLE_SECONDS
        due, self._due = self._due, set()
        if due:
            await self._due_notifier.notify(due)
            if self._listens:
                return PROBE_SECONDS
        self._listens = True
        if await self._notices.listen(self._on_notice, self._on_lost):
            self._on_listening()
        return PROBE_SECONDS

    def _on_notice(self, lane: str, priority: int) -> None:
        self._due.add((lane, priority))
        self.kicked.set()

    def _on_lost(self) -> None:
        # One kick can stand for both a last notice and the loss: the tick that passes on the notice has to listen again.
        self._listens = False
        self.kicked.set()
