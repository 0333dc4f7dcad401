"""Permits that the master has lent to this agent: jobs start with them, and nothing is written first.

An admission is one statement and one commit for a few starts, and those of one limit come one after another. So an agent that
starts many jobs of one limit asks for permits of its own, and starts one job after the other with each. A loan
counts as taken while the agent lives, and after a death certificate for a lease that ran out until its buckets are rescued.

The agent asks now and then (``execute.permit_borrower``). Each question names what the agent keeps, whatever the answer. From
the question until the answer no more is in use, and the master leaves it at least that. So the agent never counts on a permit
that the master may have lent to another: not when an answer is lost, and not when a question comes late, because the master
takes no older one. (Only what was in use at the question was kept at first: with short jobs that is none at some questions,
and the jobs that began before the answer asked the master one by one.)
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from math import inf

from jobmaster.model.flow.limit import LimitKey, Loan, LoanQuestion

HOT_STARTS = 10
"""Jobs of one limit that are to start within ``ASK_SECONDS`` from which on permits are borrowed. (Admissions were counted at
first. Where many agents have jobs of one limit, admissions are slow and no agent gets many: the more there were to start, the
later they borrowed.)"""
IDLE_SECONDS = 3600.0
ASK_SECONDS = 0.25
ASK_SOON_SECONDS = 0.05
"""After an answer with more permits, or with others than the share of the agent; twice as long after each that says the
same."""
_REST_SECONDS = 5.0
"""Until the next question about a limit that is not lent."""
_SOON_SECONDS = 5.0
_SOON_OF_KEY_SECONDS = 1.0
"""Jobs that start with lent permits within this time stay here, and count as the buffer of the agent; of a limit with keys
fewer, so that one key does not hold up the jobs of others. For so long after the first permits of a limit its rate is not
known. (With one second for all, agents that shared two processors with their master sent half of their jobs away, and each of
these cost two more writes.)"""
_ENTITLED_SECONDS = 10.0
"""An agent that has a share and no permits waits so long for those that others give back, of a limit without keys. Then their
runs are long ones."""
_SILENT_SECONDS = 5.0
"""Without an answer: jobs ask for their starts then, where no permit is lent."""
_DECAY = 0.7
"""In ``ASK_SECONDS`` what it wants, and its rate, fall by this when they are less than before."""


def soon_seconds(limit: LimitKey) -> float:
    """Jobs of the limit that start within so many seconds are not sent away."""
    return _SOON_OF_KEY_SECONDS if limit[1] else _SOON_SECONDS


class Borrowed(Enum):
    """Whether a job can start with a lent permit."""

    TAKEN = auto()
    """It has one."""
    ALL_IN_USE = auto()
    """It waits until a job of this agent has ended, or permits are lent."""
    NONE_LENT = auto()
    """It asks the master."""


class _Held:
    """What the agent has of one key of a limit."""

    __slots__ = (
        "asked_at", "heard_at", "in_use", "permits", "rate", "sequence", "share", "since", "started", "usable", "wanted",
    )  # fmt: skip

    def __init__(self, now: float, wanted: int) -> None:
        self.since = self.asked_at = self.heard_at = now
        self.started = 0
        """Jobs since the last question."""
        self.rate = 0.0
        """Starts a second, between the last questions."""
        self.permits = 0
        """By the last answer."""
        self.share: int | None = None
        """``None`` until the first answer."""
        self.usable = 0
        """How many may be in use: the share, or less while a question is on its way."""
        self.in_use = 0
        self.wanted = float(wanted)
        self.sequence = 0


class PermitLoans:
    """The loans of one process.

    Args:
        now: CLOCK_BOOTTIME seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._held: dict[LimitKey, _Held] = {}
        self._starts: dict[LimitKey, int] = {}
        self._since = 0.0
        self._rests_until: dict[LimitKey, float] = {}
        self._sequence = 0
        self._calm = 0
        """Questions in a row whose answers said the same."""
        self.on_hot: Callable[[], None] = lambda: None
        """Called when a limit is to be asked for at once: many of its jobs are to start."""

    # ------------------------------------------------------------ starts

    def take(self, limit: LimitKey, weight: int) -> Borrowed:
        """Take permits for one job, until ``give_back``."""
        held = self._held.get(limit)
        if held is None:
            return Borrowed.ALL_IN_USE if self._becomes_hot(limit) else Borrowed.NONE_LENT
        if held.in_use + weight <= held.usable:
            held.in_use += weight
            held.started += 1
            return Borrowed.TAKEN
        if held.usable or (held.share != 0 and self._now() - held.heard_at < _SILENT_SECONDS):
            return Borrowed.ALL_IN_USE
        return Borrowed.NONE_LENT

    def _becomes_hot(self, limit: LimitKey) -> bool:
        now = self._now()
        if self._rests_until.get(limit, now) > now:
            return False
        if now - self._since > ASK_SECONDS:
            self._starts.clear()
            self._since = now
        starts = self._starts[limit] = self._starts.get(limit, 0) + 1
        if starts < HOT_STARTS:
            return False
        del self._starts[limit]
        self._held[limit] = _Held(now, starts)
        self._calm = 0
        self.on_hot()
        return True

    def starts_soon(self, limit: LimitKey) -> float:
        """How many jobs of the limit start here within ``soon_seconds``; without bound while that is not known yet, 0 when
        nothing is lent."""
        held = self._held.get(limit)
        if held is None:
            return 0.0
        unknown_seconds = soon_seconds(limit) if held.permits else 0.0 if limit[1] else _ENTITLED_SECONDS
        return inf if self._now() - held.since < unknown_seconds else held.rate * soon_seconds(limit)

    def holds(self, limit: LimitKey) -> bool:
        """True while permits are lent that jobs may start with."""
        held = self._held.get(limit)
        return held is not None and held.usable > 0

    def give_back(self, limit: LimitKey, weight: int) -> int:
        """The run of such a job has ended; permits that are free now."""
        held = self._held[limit]
        held.in_use -= weight
        return max(held.usable - held.in_use, 0)

    # ------------------------------------------------------------ questions

    def questions(self, waiting: Callable[[LimitKey], int]) -> list[LoanQuestion]:
        """What to ask now. Until ``answered`` no more is in use than these questions keep.

        Args:
            waiting: how many jobs wait here for permits of a limit.
        """
        now = self._now()
        self._rests_until = {limit: until for limit, until in self._rests_until.items() if until > now}
        self._calm += 1
        asked = []
        for limit, held in self._held.items():
            elapsed, held.asked_at = now - held.asked_at, now
            decay = _DECAY ** (elapsed / ASK_SECONDS)
            held.wanted = max(float(held.in_use + waiting(limit)), held.wanted * decay if held.wanted >= 1 else 0.0)
            held.usable = max(held.in_use, min(held.usable, int(held.wanted)))
            held.rate, held.started = max(held.started / max(elapsed, 1e-3), held.rate * decay), 0
            self._sequence += 1
            held.sequence = self._sequence
            asked.append(LoanQuestion(*limit, held.usable, int(held.wanted), held.sequence))
        return asked

    def answered(self, loans: list[Loan]) -> tuple[list[tuple[LimitKey, int]], list[LimitKey]]:
        """The answers to the last questions. Limits with permits that are free now, and how many; and limits of which nothing
        is lent, so that the jobs that wait for them ask for their starts."""
        free, refused = [], []
        now = self._now()
        for loan in loans:
            limit = (loan.name, loan.key)
            held = self._held[limit]
            if loan.permits > held.permits or (loan.permits != loan.share and loan[2:] != (held.permits, held.share)):
                self._calm = 0
            if loan.permits and not held.permits:
                held.since = now
            held.permits, held.share, held.heard_at = loan.permits, loan.share, now
            held.usable = min(loan.permits, loan.share)
            if held.usable > held.in_use:
                free.append((limit, held.usable - held.in_use))
            is_over = held.wanted < 1
            if not held.permits and not held.in_use and (is_over or not loan.share):
                del self._held[limit]
                if not is_over:
                    self._rests_until[limit] = now + _REST_SECONDS
                    refused.append(limit)
        return free, refused

    @property
    def ask_after_seconds(self) -> float:
        """Until the next questions."""
        return min(ASK_SOON_SECONDS * 2**self._calm, ASK_SECONDS) if self._held else IDLE_SECONDS
