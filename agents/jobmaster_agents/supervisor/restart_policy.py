"""When a supervisor replaces a child that has ended, and when it gives up instead.

The first death is followed by a start at once, deaths in a row by a start after a growing delay. The longest delay depends on
the cause: a server that does not answer, a job that kills its process, a refusal, or something else. Children that are
refused before any child has served would be refused for ever: the supervisor ends.
"""

from __future__ import annotations

from jobmaster.rules.backoff import backoff_delay
from jobmaster_agents.launch.shared_deadline import AgentPhase

STEADY_SECONDS = 30.0
"""A death after a longer life does not count as "in a row"."""
_CRASH_LOOP_DEATHS = 3
RESTART_SECONDS = 0.5
RESTART_SECONDS_MAX = 30.0
AWAY_SECONDS_MAX = 3.0
"""Longest delay after a child that ended because a server did not answer: the server may be back at any moment, and a failed
start costs half a second of one core."""
AWAY_EXIT_CODES = frozenset({69, 75})
"""A server did not answer; the lease could not be renewed."""
SERVED_SECONDS_MAX = 3.0
"""Longest delay after a child that had opened its buckets. The usual cause is a job that kills its process, and each death
makes progress: the job counts a rescue, and soon runs alone or fails. A longer delay would only cost the other jobs."""
REFUSED_SECONDS_MAX = 10.0
"""Longest delay after a child that was refused although others had been accepted: an operator repairs that, and waits."""
REFUSED_EXIT_CODES = frozenset({2, 77, 78})
"""Permanent errors: wrong input, refused, wrong configuration. A child that exits with one of these before it serves would
fail the same way again."""
BEFORE_SERVING = (AgentPhase.STARTING, AgentPhase.REGISTERED)
"""A child publishes REGISTERED before its registration; master or store may still refuse it or its buckets."""


def deaths_in_a_row(before: int, lived_seconds: float) -> int:
    """Number of deaths in a row, with the one of a child that has lived so long."""
    return before + 1 if lived_seconds < STEADY_SECONDS else 1


def is_crash_loop(deaths: int) -> bool:
    """True when so many deaths in a row are to be logged as a crash loop."""
    return deaths >= _CRASH_LOOP_DEATHS


def is_refusal(exit_code: int, phase: AgentPhase) -> bool:
    """True when the child was refused before it served: another start fails the same way until an operator acts."""
    return phase in BEFORE_SERVING and exit_code in REFUSED_EXIT_CODES


def restart_delay(deaths: int, exit_code: int, phase: AgentPhase = AgentPhase.STARTING) -> float:
    """Seconds until a new agent replaces a dead one: 0 the first time, then doubling.

    Args:
        deaths: deaths in a row.
        phase: how far the dead child had come.
    """
    if deaths <= 1:
        return 0.0
    if exit_code in AWAY_EXIT_CODES:
        longest = AWAY_SECONDS_MAX
    elif phase in BEFORE_SERVING:
        longest = REFUSED_SECONDS_MAX if exit_code in REFUSED_EXIT_CODES else RESTART_SECONDS_MAX
    else:
        longest = SERVED_SECONDS_MAX
    return backoff_delay(deaths - 1, RESTART_SECONDS, longest)
