"""Asks the master for permits of limits of which this agent starts many jobs, and gives back those that it does not need."""

from __future__ import annotations

import asyncio

from jobmaster.ports import PermitLender
from jobmaster_agents.execute.aside import Aside
from jobmaster_agents.state.limited_starts import LimitedStarts
from jobmaster_agents.state.permit_loans import IDLE_SECONDS

_QUESTIONS_MAX = 1000


class PermitBorrower:
    """Periodic task; it sleeps while no limit is hot."""

    name = "permit-borrower"

    def __init__(self, agent_id: bytes, lender: PermitLender, limits: LimitedStarts, aside: Aside) -> None:
        self._agent_id = agent_id
        self._lender = lender
        self._limits = limits
        self._aside = aside
        self.kicked = asyncio.Event()
        limits.loans.on_hot = self.kicked.set

    async def tick(self) -> float:
        """Ask about every limit that is lent or to be borrowed; seconds until the next time."""
        loans = self._limits.loans
        questions = loans.questions(self._aside.could_borrow)
        if not questions:
            return IDLE_SECONDS
        for first in range(0, len(questions), _QUESTIONS_MAX):
            answers = await self._lender.lend(self._agent_id, questions[first : first + _QUESTIONS_MAX])
            lent, refused = loans.answered(answers)
            for limit, free in lent:
                self._limits.wake_borrowers(limit, free)
            if refused:
                self._limits.hinted()
        return loans.ask_after_seconds
