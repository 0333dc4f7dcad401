"""Permits that the master has lent to this agent: jobs start with them, and nothing is written first.

An admission is one statement and one commit for a few starts, and those of one limit come one after another. So an agent that
starts many jobs of one limit asks for permits of its own, and starts one job after the other with each. A loan
counts as taken while the agent lives, and after a death certificate for a lease that ran out until its buckets are rescued.

The agent asks now and then (``execute.permit_borrower``). From its question until the answer it has no more in use than it
has at the question, and that is what the master leaves it at least. So it never counts on a permit that the master may have
lent to another: not when an answer is lost, and not when a question comes late, because the master takes no older one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from math import inf

from jobmaster.model.flow.limit import LimitKey, Loan, LoanQuestion

HOT_STARTS = 10
"""Admissions of one limit within ``ASK_SECONDS`` from which on permits are borrowed."""
IDLE_SECONDS = 3600.0
ASK_SECONDS = 0.25
ASK_SOON_SECONDS = 0.05
"""After an answer that leaves the agent more than its share, or less."""
_REST_SECONDS = 5.0
"""Until the next question about a limit that is not lent."""
_WARM_SECONDS = 1.0
"""Since the first question about a limit: until then its rate is not known."""
_DECAY = 0.7
"""What it wants, and its rate, fall by this at each question when they are less than before."""


class Borrowed(Enum):
    """Whether a job can start with a lent permit."""

    TAKEN = auto()
    """It has one."""
    ALL_IN_USE = auto()
    """It waits until a job of this agent has ended."""
    NONE_LENT = auto()
    """It asks the master."""


class _Held:
    """What the agent has of one key of a limit."""

    __slots__ = ("in_use", "permits", "rate", "sequence", "share", "since", "started", "usable", "wanted")

    def __init__(self, now: float, wanted: int) -> None:
        self.since = now
        self.started = 0
        """Jobs since the last question."""
        self.rate = 0.0
        """Starts a second, between the last questions."""
        self.permits = self.share = 0
        self.usable = 0
        """How many of them may be in use: the share, or less while a question is on its way."""
        self.in_use = 0
        self.wanted = wanted / _DECAY
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
        self._since = self._asked_at = 0.0
        self._rests_until: dict[LimitKey, float] = {}
        self._sequence = 0
        self.on_hot: Callable[[], None] = lambda: None
        """Called when many jobs of one limit were admitted in a short time."""

    # ------------------------------------------------------------ starts

    def take(self, limit: LimitKey, weight: int) -> Borrowed:
        """Take permits for one job, until ``give_back``."""
        held = self._held.get(limit)
        if held is None or weight > held.usable:
            return Borrowed.NONE_LENT
        if held.in_use + weight > held.usable:
            return Borrowed.ALL_IN_USE
        held.in_use += weight
        held.started += 1
        return Borrowed.TAKEN

    def starts_soon(self, limit: LimitKey) -> float:
        """How many jobs of the limit start here within a second; without bound while that is not known yet, 0 when nothing
        is lent."""
        held = self._held.get(limit)
        if held is None:
            return 0.0
        return inf if self._now() - held.since < _WARM_SECONDS else held.rate

    def holds(self, limit: LimitKey) -> bool:
        """True while permits are lent that jobs may start with."""
        held = self._held.get(limit)
        return held is not None and held.usable > 0

    def give_back(self, limit: LimitKey, weight: int) -> int:
        """The run of such a job has ended; permits that are free now."""
        held = self._held[limit]
        held.in_use -= weight
        return max(held.usable - held.in_use, 0)

    def admitted(self, limit: LimitKey) -> None:
        """The master has admitted one job, which could have started with a lent permit."""
        if limit in self._held:
            return
        now = self._now()
        if now - self._since > ASK_SECONDS:
            self._starts.clear()
            self._since = now
        starts = self._starts[limit] = self._starts.get(limit, 0) + 1
        if starts == HOT_STARTS:
            self.on_hot()

    # ------------------------------------------------------------ questions

    def questions(self, waiting: Callable[[LimitKey], int]) -> list[LoanQuestion]:
        """What to ask now. Until ``answered`` nothing more is in use than at this moment.

        Args:
            waiting: how many jobs wait here for permits of a limit.
        """
        now = self._now()
        self._rests_until = {limit: until for limit, until in self._rests_until.items() if until > now}
        for limit, starts in self._starts.items():
            if starts >= HOT_STARTS and limit not in self._rests_until:
                self._held[limit] = _Held(now, starts)
        self._starts.clear()
        elapsed, self._asked_at = now - self._asked_at, now
        asked = []
        for limit, held in self._held.items():
            could_use = held.in_use + waiting(limit)
            held.wanted = max(float(could_use), held.wanted * _DECAY if held.wanted >= 1 else 0.0)
            held.usable = held.permits = held.in_use
            held.rate, held.started = max(held.started / max(elapsed, 1e-3), held.rate * _DECAY), 0
            self._sequence += 1
            held.sequence = self._sequence
            asked.append(LoanQuestion(*limit, held.in_use, int(held.wanted), held.sequence))
        return asked

    def answered(self, loans: list[Loan]) -> list[tuple[LimitKey, int]]:
        """The answers to the last questions; limits with permits that are free now, and how many."""
        free = []
        for loan in loans:
            limit = (loan.name, loan.key)
            held = self._held[limit]
            held.permits, held.share = loan.permits, loan.share
            held.usable = min(loan.permits, loan.share)
            if held.usable > held.in_use:
                free.append((limit, held.usable - held.in_use))
            is_over = held.wanted < 1
            if not held.permits and not held.in_use and (is_over or not loan.share):
                del self._held[limit]
                if not is_over:
                    self._rests_until[limit] = self._now() + _REST_SECONDS
        return free

    @property
    def ask_after_seconds(self) -> float:
        """Until the next questions."""
        if not self._held:
            return IDLE_SECONDS
        settled = all(held.permits == held.share for held in self._held.values())
        return ASK_SECONDS if settled else ASK_SOON_SECONDS
