"""Whether a job has another attempt, and when: exponential back-off with a cap, or listed delays, and symmetric jitter.

A job that one more rescue would end gets its attempt alone, in a process of its own.

The delay of the n-th failure is ``base * factor**(n-1)``, at most ``maximum``, or the n-th of a list; then it is spread by
``jitter`` to both sides. Jitter keeps 10^5 jobs that failed together from coming back together.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobmaster.rules.backoff import backoff_delay


def backoff_seconds(
    failures: int, *, base: float, factor: float, maximum: float, jitter: float, chance: float
) -> float:
    """Seconds until the next attempt.

    Args:
        failures: attempts that have failed so far, >= 1.
        chance: a number in [0, 1) from the caller's source of randomness.
    """
    if failures < 1:
        raise ValueError(f"failures must be at least 1, not {failures}")
    delay = backoff_delay(failures, base, maximum, factor)
    return min(_spread(delay, jitter, chance), maximum)


def listed_seconds(failures: int, delays: Sequence[float], *, jitter: float, chance: float) -> float:
    """Seconds until the next attempt by a list: its n-th entry after the n-th failure, then its last.

    Args:
        failures: attempts that have failed so far, >= 1.
        delays: at least one.
        chance: a number in [0, 1) from the caller's source of randomness.
    """
    if failures < 1:
        raise ValueError(f"failures must be at least 1, not {failures}")
    return _spread(delays[min(failures, len(delays)) - 1], jitter, chance)


def _spread(delay: float, jitter: float, chance: float) -> float:
    return max(delay * (1.0 + jitter * (2.0 * chance - 1.0)), 0.0)


def runs_alone(rescues: int, max_rescues: int) -> bool:
    """True for a job that must not share its process with other jobs: one more rescue would end it.

    A job that crashes an agent ends the runs of all jobs of that process, and the crash counts one rescue for each of them.
    With one rescue left, each runs in a process of its own, so only the job that crashes can reach the limit. Before that no
    job runs alone: most deaths have another cause, and a process for each of a thousand jobs after one SIGKILL takes minutes.
    """
    return rescues > 0 and rescues >= max_rescues - 1


def may_snooze(snoozes_used: int, max_snoozes: int) -> bool:
    """True while the handler may put the job off once more."""
    return snoozes_used < max_snoozes


def may_retry(attempts_used: int, max_attempts: int) -> bool:
    """True while the job has attempts left."""
    return attempts_used < max_attempts
