"""Which job an agent starts next when it cannot start all: by priority, raised by waiting.

Level = priority + waiting / age_boost (Ratchet's age boost, continuous instead of in steps, so that two jobs of one class
never overtake each other). Waiting counts from the moment a job could have run: its due time, or its creation. With a boost
of 15 minutes a ``low`` job that has waited 46 minutes has a higher level than a fresh ``critical`` one; 0 turns it off.

Age raises one job at a time. Where the job of the highest level is not of the highest priority, starts alternate between the
two. So while a process is overloaded:

* *Low jobs do not starve.* At least every second start goes to the highest level. Of the jobs that a process serves, one of
  priority p that was due at t has before it only those of priority q that were due before t + (q - p) * age_boost: with N of
  them it starts within the next 2 * (N + 1) starts, however many younger ones of higher priority arrive.
* *High jobs do not wait for a backlog.* At least every second start goes to the highest priority: N jobs of it need no
  more than 2 * N starts, however many old ones of lower priority wait.
"""

from __future__ import annotations


def effective_level(priority: int, waited_seconds: float, age_boost_seconds: float) -> float:
    """Level by which jobs are compared; higher goes first.

    Args:
        waited_seconds: a value below 0 counts as 0.
        age_boost_seconds: waiting that raises by one priority; 0 turns the boost off.
    """
    if age_boost_seconds <= 0.0:
        return float(priority)
    return priority + max(waited_seconds, 0.0) / age_boost_seconds
