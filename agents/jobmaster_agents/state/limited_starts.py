"""Jobs with limits in this process: what they take, which limits are full, and when the master is asked again.

A limit is *full* when the master had no permit for a job. Jobs of a full limit are not sent to the master: they wait aside,
in memory, and occupy no slot (``execute.aside``). The master is asked again for as many of them as have ended here, after a
hint of another agent in which one has ended, and otherwise at intervals. A rate names the time of its next start. So the
number of statements does not grow with the number of jobs that wait.

Only the master gives permits: one for each start, or some that are lent to the agent (``permit_loans``). What is known of a
job lies on the job and goes with it; a limit is known here while jobs wait for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from math import inf

from jobmaster.encryption import CannotOpen, NotSealed
from jobmaster.handlers import Handler
from jobmaster.model.errors import InvalidArguments
from jobmaster.model.flow.limit import FullLimit, LimitKey, LimitUse
from jobmaster.model.job import Entry
from jobmaster_agents.state.job_table import ClaimedJob
from jobmaster_agents.state.limited_job import LimitedJob
from jobmaster_agents.state.permit_loans import Borrowed, PermitLoans, soon_seconds
from jobmaster_agents.state.time_limits import headers_of

Wake = Callable[[LimitKey, int], int]
"""Lets so many jobs that wait for a limit ask for their permits; how many there were."""

ORDERING = ""
"""Name that an ordering key has among the limits of a job; no limit has it."""
ASK_AGAIN_SECONDS = 0.25
"""Between two questions for a full limit under which no job of this process has ended."""
_RATE_SECONDS_MIN = 0.02
_RATE_SECONDS_MAX = 1.0
"""Rates change at run time: the master is asked this often in any case."""
_PAUSE_SECONDS_MAX = 1.0
"""The pause doubles up to this one where a question is dear or seldom worth it: there are many ordering keys, and the jobs
before mostly end in the same agent; and a rescued job has a process made for each question."""
_HINT_SECONDS = 0.02
"""At least so long after a question a hint leads to the next one."""
_PROBE_MAX = 256
_AWAY_SECONDS_MIN = 1.0
_AWAY_SECONDS_MAX = 300.0
"""How long a job for which there is no place here waits in the master."""
_KNOWN_STARTS = 20
_KNOWN_SECONDS = 1.0
"""With fewer starts in less time nothing is known of how long a start takes. (A guess from the first milliseconds sent jobs
away for a minute that could have started within a second.)"""
_AWAY_OF_KNOWN = 20.0
"""A job is sent away for at most so many times the time in which starts were counted. (After one slow second at the beginning
jobs were sent away for five minutes that could have started in the next one.) Of a limit without keys for no longer than that
time: while enough of its jobs wait here no more are fetched, so those that are due too early cost nothing."""
_AWAY_ORDERING_SECONDS_MAX = 30.0
"""One of an ordering key: all that come after it would wait for it when the jobs before it end sooner than expected."""


def has_limits(job: ClaimedJob) -> bool:
    """True when the job needs permits for its start."""
    options = None if job.handler is None else job.handler.options
    return options is not None and (bool(options.limits) or options.is_ordered)


def may_borrow(job: ClaimedJob) -> bool:
    """True when the job may start with a permit that was lent to this agent."""
    return job.handler is not None and job.handler.options.borrows and not job.entry.rescues


class _Full:
    """One full limit."""

    __slots__ = ("ask_at", "asked_at", "away_until", "by_rate", "freed", "missed", "pause", "probe", "since", "starts")

    def __init__(self, now: float) -> None:
        self.ask_at = now
        self.asked_at = now
        self.by_rate = False
        self.freed = 0
        """Number of the last end of a job of it here, among the questions and ends of the process."""
        self.missed = False
        """The end came during a question for which it was: that one is asked again at once."""
        self.pause = ASK_AGAIN_SECONDS
        self.probe = 1
        """How many jobs ask at the next interval: as many as had a permit the last time, or twice that."""
        self.since = now
        self.starts = 0
        """Since then, in this process."""
        self.away_until = now
        """When the last of the jobs that were sent away would have its turn."""


class LimitedStarts:
    """What is known of limits here.

    Args:
        now: CLOCK_BOOTTIME seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.wake: Wake = lambda _, __: 0
        self.wake_borrowers: Wake = lambda _, __: 0
        """Of those that may start with lent permits. Both are set by the executor, which has the jobs that wait."""
        self.on_freed: Callable[[Iterable[LimitKey]], None] = lambda _: None
        """Called with limits that have free permits and for which no job waits here, and with ordering keys."""
        self.loans = PermitLoans(now)
        self._used = False
        self._number = 0
        """Of the last question, or end of a job."""
        self._full: dict[LimitKey, _Full] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def __bool__(self) -> bool:
        """True when a job with limits has been here."""
        return self._used

    def needs_permits(self, job: ClaimedJob) -> bool:
        """True when the start of the job is an admission."""
        return has_limits(job) and bool(self._of(job).uses)

    def uses(self, job: ClaimedJob) -> tuple[LimitUse, ...]:
        """What the job takes; computed once for each copy.

        Raises:
            InvalidArguments: it cannot be computed from the arguments.
            NotSealed: they are plain, and the handler takes sealed ones alone.
        """
        return self._of(job).uses

    def _of(self, job: ClaimedJob) -> LimitedJob:
        found = job.limited
        if found is None:
            assert job.handler is not None
            options = job.handler.options
            uses = _uses_of(job.handler, job.entry) if options.limits else ()
            if options.is_ordered and (key := headers_of(job).ordering_key) is not None:
                uses = (LimitUse(ORDERING, key, 1), *uses)
            found = job.limited = LimitedJob(uses)
            self._used = True
        return found

    def full_limit(self, job: ClaimedJob, *, may_borrow: bool) -> LimitKey | None:
        """A full limit for which the job waits; ``None``: it may ask for its permits now, or has borrowed them.

        Args:
            may_borrow: it may start with permits that are lent to this agent.
        """
        state = self._of(job)
        if may_borrow and len(state.uses) == 1:
            use = state.uses[0]
            limit = (use.name, use.key)
            answer = self.loans.take(limit, use.weight)
            if answer is Borrowed.TAKEN:
                state.borrowed, state.asking = True, False
                if (full := self._full.get(limit)) is not None:
                    full.starts += 1
                return None
            if answer is Borrowed.ALL_IN_USE:
                return limit
        if self._full and not state.asking:
            for use in state.uses:
                if (use.name, use.key) in self._full:
                    return use.name, use.key
        self._number += 1
        state.asked = self._number
        return None

    def was_woken(self, job: ClaimedJob) -> bool:
        """True when the job has waited and may ask."""
        return self._of(job).asking

    def may_ask(self, jobs: Iterable[ClaimedJob]) -> None:
        """These jobs were woken: each asks once."""
        for job in jobs:
            self._of(job).asking = True

    # ------------------------------------------------------------ answers of the master

    def admitted(self, job: ClaimedJob) -> None:
        """The job has its permits."""
        state = self._of(job)
        state.admitted, state.denied = True, None
        asked, state.asking = state.asking, False
        for use in state.uses:
            key = (use.name, use.key)
            full = self._full.get(key)
            if full is None:
                continue
            full.starts += 1
            if not asked or use.name == ORDERING:  # the next one of an ordering key may start when this one has ended
                continue
            full.probe = min(full.probe * 2, _PROBE_MAX)
            if full.by_rate:
                self._ask_at(full, min(full.ask_at, self._now() + _RATE_SECONDS_MIN))
            elif not self.wake(key, 2):  # there may be more: each that is admitted wakes two
                del self._full[key]

    def denied(self, job: ClaimedJob, limit: FullLimit) -> None:
        """There is no permit for the job."""
        key = (limit.name, limit.key)
        state = self._of(job)
        state.asking, state.denied = False, key
        full = self._full.get(key)
        if full is None:
            full = self._full[key] = _Full(self._now())
        full.by_rate = limit.wait_seconds > 0.0
        full.probe = max(full.probe // 2, 1)
        full.asked_at = self._now()
        if limit.name == ORDERING and full.freed > state.asked:
            # The job before it has ended while the question was on its way: the end found none to wake but later ones.
            full.missed = True
            self._ask_at(full, full.asked_at + _HINT_SECONDS)
            return
        pause = (
            min(max(limit.wait_seconds, _RATE_SECONDS_MIN), _RATE_SECONDS_MAX)
            if full.by_rate
            else full.pause * random.uniform(0.8, 1.2)
        )
        if limit.name == ORDERING or job.entry.rescues:
            full.pause = min(full.pause * 2, _PAUSE_SECONDS_MAX)
        if not full.missed:
            self._ask_at(full, full.asked_at + pause)

    def is_denied(self, job: ClaimedJob) -> bool:
        """True after the job was denied a start, until ``take_denial``."""
        return job.limited is not None and job.limited.denied is not None

    def take_denial(self, job: ClaimedJob) -> LimitKey | None:
        """The limit for which the job was denied a start just now; ``None``: it was not."""
        if job.limited is None:
            return None
        limit, job.limited.denied = job.limited.denied, None
        return limit

    def starts_soon(self, limit: LimitKey, job: ClaimedJob) -> float:
        """How many jobs of a limit start here within ``soon_seconds``, with lent permits; without bound while that is not
        known yet.

        Args:
            job: one that waits for the limit.
        """
        full = self._full.get(limit)
        if full is not None and may_borrow(job) and self._now() - full.since < soon_seconds(limit):
            return inf
        return self.loans.starts_soon(limit)

    def waited_for(self, limit: LimitKey) -> None:
        """A job begins to wait for a limit. The limit may count as free meanwhile: another job was admitted between the
        answer to this one and now. Without a time of its next question the job would wait for ever."""
        if limit not in self._full:
            full = self._full[limit] = _Full(self._now())
            self._ask_at(full, full.asked_at + ASK_AGAIN_SECONDS)

    def seconds_away(self, limit: LimitKey, ahead: int) -> float:
        """How long a job for which there is no place here waits in the master: as long as the jobs before it take, by the
        starts so far. So few jobs are fetched before their turn, and jobs of other keys are not behind them.

        Args:
            ahead: jobs that wait here for the limit.
        """
        self.waited_for(limit)
        full, now = self._full[limit], self._now()
        is_known = full.starts >= _KNOWN_STARTS or now - full.since >= _KNOWN_SECONDS
        each = (now - full.since) / max(full.starts, 1) if is_known else 0.0
        if (starts := self.loans.starts_soon(limit)) > 0.0:
            each = soon_seconds(limit) / starts
        most = _AWAY_ORDERING_SECONDS_MAX if limit[0] == ORDERING else _AWAY_SECONDS_MAX
        times = _AWAY_OF_KNOWN if limit[1] else 1.0
        most = min(most, max(times * (now - full.since), _AWAY_SECONDS_MIN))
        full.away_until = min(max(full.away_until, now + ahead * each) + each, now + most)
        return max(full.away_until - now, _AWAY_SECONDS_MIN)

    # ------------------------------------------------------------ ends of jobs

    def ended(self, job: ClaimedJob) -> None:
        """The run of a job is over: what it had borrowed is free, and the next job here starts with it."""
        state = job.limited
        if state is None or not state.borrowed:
            return
        state.borrowed = False
        use = state.uses[0]
        limit = (use.name, use.key)
        free = self.loans.give_back(limit, use.weight)
        if free and limit in self._full:
            self.wake_borrowers(limit, free)

    def settled(self, jobs: Iterable[ClaimedJob]) -> None:
        """The master has the outcomes of these jobs: those that had permits have freed them."""
        freed: dict[LimitKey, int] = {}
        for job in jobs:
            state = job.limited
            if state is None or not state.admitted:
                continue
            state.admitted = False
            for use in state.uses:
                key = (use.name, use.key)
                freed[key] = freed.get(key, 0) + use.weight
        if freed:
            self._number += 1
        elsewhere: list[LimitKey] = []
        for key, count in freed.items():
            full = self._full.get(key)
            if full is not None:
                full.freed = self._number
            has_waiting = full is not None and (full.by_rate or self.wake(key, min(count, _PROBE_MAX)))
            if full is not None and not has_waiting and key[0] == ORDERING:
                # The time of the next question is that of an earlier denial, up to a second ahead. A job of the key that
                # comes now finds the key free. ``_ask`` forgets the limit; at once, an end during a question would be missed.
                self._ask_at(full, self._now() + _HINT_SECONDS)
            if not has_waiting or key[0] == ORDERING:
                # The next job of an ordering key may wait in another agent, though some wait here.
                elsewhere.append(key)
        if elsewhere:
            self.on_freed(elsewhere)

    # ------------------------------------------------------------ asking again

    def hinted(self) -> None:
        """Permits may be free that another agent has freed: ask now, wherever the last question is not too recent."""
        now = self._now()
        for full in self._full.values():
            if not full.by_rate:
                full.ask_at = min(full.ask_at, max(now, full.asked_at + _HINT_SECONDS))
                full.pause = ASK_AGAIN_SECONDS
        if self._full:
            self._arm(min(full.ask_at for full in self._full.values()))

    def _ask_at(self, full: _Full, at: float) -> None:
        full.ask_at = at
        self._arm(at)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(max(at - self._now(), 0.0), self._ask)

    def _ask(self) -> None:
        """Wake some jobs of every limit whose time has come, all in one turn: their questions go into one statement."""
        self._timer = None
        now = self._now()
        for key, full in list(self._full.items()):
            if now + _RATE_SECONDS_MIN / 2 >= full.ask_at:
                full.ask_at, full.asked_at, full.missed = now + ASK_AGAIN_SECONDS, now, False
                if not self.wake(key, full.probe):
                    del self._full[key]
        if self._full:
            self._arm(min(full.ask_at for full in self._full.values()))


def _uses_of(handler: Handler, entry: Entry) -> tuple[LimitUse, ...]:
    try:
        return handler.limit_uses(handler.args_of(entry))
    except NotSealed:
        raise
    except CannotOpen as error:
        raise InvalidArguments(error.message, hint=error.hint) from None
