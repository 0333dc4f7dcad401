"""Jobs with limits in this process: what they take, which limits are full, and when the master is asked again.

A limit is *full* when the master had no permit for a job. Jobs of a full limit are not sent to the master: they wait aside,
in memory, and occupy no slot. The master is asked again for as many of them as have ended here, and otherwise at intervals:
a permit that another agent has freed is found by that. A rate names the time of its next start. So the number of statements
does not grow with the number of jobs that wait.

An agent has no count of its own. Only the master gives permits.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

from jobmaster.model.limit import FullLimit, LimitUse
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase
from jobmaster_agents.state.time_limits import headers_of

LimitKey = tuple[str, str]
"""Name and key of a limit."""
Wake = Callable[[LimitKey, int], int]
"""Lets so many jobs that wait for a limit ask for their permits; how many there were."""

ORDERING = ""
"""Name that an ordering key has among the limits of a job; no limit has it."""
ASK_AGAIN_SECONDS = 0.25
"""Between two questions for a full limit under which no job of this process has ended."""
_RATE_SECONDS_MIN = 0.02
_RATE_SECONDS_MAX = 1.0
"""Rates change at run time: the master is asked this often in any case."""
_ORDERING_SECONDS_MAX = 1.0
"""There are many ordering keys, and the jobs before mostly end in the same agent: the pause doubles up to this one."""
_PROBE_MAX = 256
_GONE = JobPhase.GONE


def has_limits(job: ClaimedJob) -> bool:
    """True when the job needs permits for its start."""
    options = None if job.handler is None else job.handler.options
    return options is not None and (bool(options.limits) or options.is_ordered)


class _Full:
    """One full limit."""

    __slots__ = ("ask_at", "by_rate", "pause", "probe")

    def __init__(self) -> None:
        self.ask_at = 0.0
        self.by_rate = False
        self.pause = ASK_AGAIN_SECONDS
        self.probe = 1
        """How many jobs ask at the next interval: as many as had a permit the last time, or twice that."""


class LimitedStarts:
    """What is known of limits here.

    Args:
        now: CLOCK_BOOTTIME seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.wake: Wake = lambda _, __: 0
        """Set by the executor, which has the jobs that wait."""
        self._uses: dict[ClaimedJob, tuple[LimitUse, ...]] = {}
        self._asking: set[ClaimedJob] = set()
        """Those that were woken and may ask although their limit is full."""
        self._admitted: set[ClaimedJob] = set()
        """Those that have their permits."""
        self._denied: dict[ClaimedJob, LimitKey] = {}
        self._full: dict[LimitKey, _Full] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        """True while a job with limits is here."""
        return bool(self._uses)

    def uses(self, job: ClaimedJob) -> tuple[LimitUse, ...]:
        """What the job takes; computed once for each copy.

        Raises:
            InvalidArguments: it cannot be computed from the arguments.
        """
        found = self._uses.get(job)
        if found is None:
            assert job.handler is not None
            options = job.handler.options
            found = job.handler.limit_uses(job.entry.args) if options.limits else ()
            if options.is_ordered and (key := headers_of(job).ordering_key) is not None:
                found = (LimitUse(ORDERING, key, 1), *found)
            self._uses[job] = found
        return found

    def full_limit(self, job: ClaimedJob) -> LimitKey | None:
        """A full limit for which the job waits; ``None``: it may ask for its permits now."""
        if not self._full or job in self._asking:
            return None
        for use in self.uses(job):
            if (use.name, use.key) in self._full:
                return use.name, use.key
        return None

    def may_ask(self, jobs: Iterable[ClaimedJob]) -> None:
        """These jobs were woken: each asks once."""
        self._asking.update(jobs)

    # ------------------------------------------------------------ answers of the master

    def admitted(self, job: ClaimedJob) -> None:
        """The job has its permits."""
        self._admitted.add(job)
        if job not in self._asking:
            return
        self._asking.discard(job)
        for use in self.uses(job):
            key = (use.name, use.key)
            full = self._full.get(key)
            if full is None:
                continue
            full.probe = min(full.probe * 2, _PROBE_MAX)
            if not full.by_rate and not self.wake(key, 2):  # there may be more: each that is admitted wakes two
                del self._full[key]

    def denied(self, job: ClaimedJob, limit: FullLimit) -> None:
        """There is no permit for the job."""
        key = (limit.name, limit.key)
        self._asking.discard(job)
        self._denied[job] = key
        full = self._full.get(key)
        if full is None:
            full = self._full[key] = _Full()
        full.by_rate = limit.wait_seconds > 0.0
        full.probe = max(full.probe // 2, 1)
        pause = (
            min(max(limit.wait_seconds, _RATE_SECONDS_MIN), _RATE_SECONDS_MAX)
            if full.by_rate
            else full.pause * random.uniform(0.8, 1.2)
        )
        if limit.name == ORDERING:
            full.pause = min(full.pause * 2, _ORDERING_SECONDS_MAX)
        full.ask_at = self._now() + pause
        self._schedule()

    def is_denied(self, job: ClaimedJob) -> bool:
        """True after the job was denied a start, until ``take_denial``."""
        return job in self._denied

    def take_denial(self, job: ClaimedJob) -> LimitKey | None:
        """The limit for which the job was denied a start just now; ``None``: it was not."""
        return self._denied.pop(job, None)

    # ------------------------------------------------------------ ends of jobs

    def settled(self, jobs: Iterable[ClaimedJob]) -> None:
        """The master has the outcomes of these jobs: those that had permits have freed them."""
        freed: dict[LimitKey, int] = {}
        for job in jobs:
            uses = self._uses.pop(job, None)
            if uses is None:
                continue
            self._asking.discard(job)
            self._denied.pop(job, None)
            if job in self._admitted:
                self._admitted.discard(job)
                for use in uses:
                    key = (use.name, use.key)
                    if key in self._full:
                        freed[key] = freed.get(key, 0) + use.weight
        for key, count in freed.items():
            if not self._full[key].by_rate:
                self.wake(key, min(count, _PROBE_MAX))

    # ------------------------------------------------------------ asking again

    def _schedule(self) -> None:
        if self._timer is not None or not self._full:
            return
        first = min(full.ask_at for full in self._full.values())
        self._timer = asyncio.get_running_loop().call_later(max(first - self._now(), _RATE_SECONDS_MIN), self._ask)

    def _ask(self) -> None:
        """Wake some jobs of every limit whose time has come, all in one turn: their questions go into one statement."""
        self._timer = None
        self.settled([job for job in self._uses if job.phase is _GONE])  # also those that ended another way
        now = self._now()
        for key, full in list(self._full.items()):
            if now + _RATE_SECONDS_MIN / 2 >= full.ask_at:
                full.ask_at = now + ASK_AGAIN_SECONDS
                if not self.wake(key, full.probe):
                    del self._full[key]
        self._schedule()
